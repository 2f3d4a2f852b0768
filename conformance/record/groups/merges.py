"""Merging parts of attention over disjoint keys."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.record import merging
from conformance.record.ask import DTYPES
from conformance.record.draft import Draft
from conformance.record.drafting import GITHUB
from conformance.record.draw import eighths
from conformance.record.groups.theme import Theme

Arrays = dict[str, Any]
INF, NAN = float("inf"), float("nan")
MERGE = Theme(
    "merge",
    "Merging",
    "out and lse of attention over disjoint key sets give those over their union; an empty part (lse -inf) "
    "changes nothing.",
    "Ring attention, split keys and prefix sharing are wrong where parts differ in weight, or NaN where one is empty.",
    "Dao-AILab/flash-attention/pull/978 vllm-project/vllm/pull/39148 sgl-project/sglang/issues/33064 "
    "zhuzilin/ring-flash-attention/issues/20",
)


def merges() -> Iterator[Draft]:
    """Yield the cases of `merge`: parts drawn, some of them empty."""
    yield _merge("two", "two parts", (2, 3, 4), 2, "merge=mean merge=base_2 merge=lses_added merge=last")
    yield _merge("three", "three parts", (2, 3, 2), 3, "merge=mean merge=sum merge=lse_is_maximum")
    yield _merge("batch", "a batch of two parts", (2, 2, 3, 4), 2, "merge=mean merge=base_2")
    yield _merge(
        "empty", "an empty part beside a full one", (2, 3, 4), 2, "merge=empty_is_plus_inf merge=mean", {1: (0,)}
    )
    yield _merge(
        "empty-rows",
        "rows that are empty in one part or the other",
        (2, 3, 2),
        2,
        "merge=empty_is_plus_inf",
        {0: (0,), 1: (2,)},
    )
    yield _merge(
        "all-empty",
        "a row that is empty in all parts stays empty",
        (1, 4, 3),
        2,
        "merge=empty_is_nan",
        {0: (1,), 1: (1,)},
    )
    yield _merge(
        "poison", "what an empty part holds does not count", (2, 3, 3), 2, "merge=empty_is_nan", {1: (0, 1)}, NAN
    )
    yield _merge("far", "parts whose lse lie far apart", (2, 3, 4), 2, "merge=mean merge=sum", far=True)


def _merge(
    suffix: str,
    words: str,
    shape: tuple[int, ...],
    count: int,
    kills: str,
    empty: Any = None,
    held: float = 0.0,
    far: bool = False,
) -> Draft:
    import torch

    inputs: Arrays = {}
    for n in range(count):
        out = eighths(f"merge-{suffix}/outs/{n}", shape, -2.0, 4.0)
        lse = eighths(f"merge-{suffix}/lses/{n}", shape[:-1], -1.0, 3.0)
        lse = np.round(lse) + 64.0 * n - 96.0 if far else lse
        for row in (empty or {}).get(n, ()):
            out[..., row, :], lse[..., row] = held, -INF
        inputs |= {f"outs.{n}": torch.from_numpy(out), f"lses.{n}": torch.from_numpy(lse.astype(np.float32))}
    return Draft(
        id=f"merge-{suffix}",
        name=f"{MERGE.title}: {words}",
        why=f"{MERGE.why} Here: {words}.",
        failure=MERGE.failure,
        op="merge",
        inputs=inputs,
        parameters={"layout": "BHLD"},
        wrong={name: (merging.MEANS[name], _wrong(name)) for name in kills.split()},
        dtypes=DTYPES[:3] if "base_2" in kills or "lse_is" in kills else DTYPES,
        features=("merge",),
        reports=tuple(GITHUB + each for each in MERGE.reports.split()),
        outputs=("out", "lse"),
        loops=True,
    )


def _wrong(name: str) -> Any:
    output = "lse" if "lse" in name else "out"
    return lambda inputs: {output: merging.merge(inputs, {}, name)[output]}
