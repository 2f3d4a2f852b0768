"""Merging parts, and calls that must raise."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.record import merging
from conformance.record.ask import DTYPES, Ask, Size
from conformance.record.draft import Draft
from conformance.record.drafting import GITHUB
from conformance.record.draw import eighths
from conformance.record.groups.rules import CAUSAL, both, window
from conformance.record.groups.theme import DENSE, Theme, Themed

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


def groups() -> Iterator[Themed]:
    """Yield the group of calls that must raise."""
    yield _INVALID, [*_invalid()]


_INVALID = Theme(
    "invalid",
    "Calls that must raise",
    "A wrong call raises at once and names the argument; nothing is guessed, broadcast by chance or computed in "
    "integers.",
    "A mistake in a model's code runs on with numbers that look like results.",
    "pytorch/pytorch/pull/191325 keras-team/keras/pull/21558 ml-explore/mlx/issues/2626",
)
SIZE = Size(3, 5, 4, 2, 2, 2)


def _integers(name: str) -> Any:
    def edit(arrays: Arrays) -> None:
        arrays[name] = np.round(arrays[name]).astype(np.int32)

    return edit


def _cut(name: str, where: Any) -> Any:
    def edit(arrays: Arrays) -> None:
        arrays[name] = arrays[name][where]

    return edit


def _invalid() -> Iterator[Ask]:
    def ask(suffix: str, words: str, size: Size = SIZE, **more: Any) -> Ask:
        shared: Arrays = {"valid": False, "gradients": False, "dtypes": ("float32",), "outputs": ""}
        return _INVALID.ask(suffix, words, size, **{**shared, **more})

    for name in ("query", "key", "value"):
        yield ask(f"integer-{name}", f"an integer {name}", edit=_integers(name))
    yield ask(
        "two-halves", "float16 beside bfloat16", fixed={"query": "float16", "key": "bfloat16", "value": "float16"}
    )
    yield ask("two-halves-value", "a bfloat16 value beside float16", fixed={"value": "bfloat16"}, dtypes=("float16",))
    yield ask("depths", "key is narrower than query", edit=_cut("key", (..., slice(0, 3))))
    yield ask("lengths", "value is shorter than key", edit=_cut("value", (..., slice(0, 4), slice(None))))
    yield ask("value-heads", "value has fewer heads than key", edit=_cut("value", (slice(0, 1),)))
    yield ask("head-groups", "4 query heads, 3 key heads", Size(3, 5, 4, 2, 4, 3))
    yield ask("no-kv-heads", "2 query heads, no key heads", Size(3, 5, 4, 2, 2, 0))
    yield ask("more-kv-heads", "2 query heads, 4 key heads", Size(3, 5, 4, 2, 2, 4))
    yield ask("batches", "leading axes of 3 and 2", Size(3, 5, 4, 2, 2, 2, (3,), (2,)))
    yield ask(
        "plain-beside-heads",
        "plain query beside key and value with heads",
        Size(3, 5, 4, 2, 1, 1),
        edit=_cut("query", 0),
    )
    yield ask("layout", "an unknown layout", layout="LBHD")
    yield ask("mask-float", "a float array as mask", mask=DENSE, edit=_float_mask)
    yield ask("mask-integer", "an integer array as mask", mask=DENSE, edit=_integer_mask)
    yield ask("mask-shape", "a mask for 4 keys beside 5", mask=DENSE, shapes={"mask": (3, 4)})
    yield ask("mask-transposed", "a mask of shape (Lk, Lq)", mask=DENSE, shapes={"mask": (5, 3)})
    yield ask("bias-shape", "a bias for 4 heads beside 2", bias=DENSE, shapes={"bias": (4, 3, 5)})
    yield ask("bias-integer", "an integer bias", bias=DENSE, edit=_integers("bias"))
    yield ask("softcap-zero", "a soft cap of 0 is not `off`", softcap=0.0)
    yield ask("softcap-negative", "a negative soft cap", softcap=-5.0)
    yield ask("window-negative", "a negative window", mask=window(-1, 0))
    yield ask("chunk-zero", "chunks of 0", mask={"rule": "chunked", "size": 0})
    yield ask("dilation-zero", "a dilation of 0", mask={"rule": "dilated", "step": 0})
    yield ask("sinks-shape", "a sink a key head", Size(3, 5, 4, 2, 4, 2), sinks=True, shapes={"sinks": (2,)})
    yield ask("sinks-integer", "integer sinks", sinks=True, edit=_integers("sinks"))
    yield ask("positions-length", "positions for 4 queries beside 3", mask=CAUSAL, query_positions=[0, 1, 2, 3])
    yield ask(
        "positions-twice",
        "causal_lower_right() beside query positions",
        mask={"rule": "causal_lower_right"},
        query_positions=1,
    )
    yield ask(
        "segments-shape",
        "ids for 4 keys beside 5",
        mask={"rule": "segments", "query_ids": [0, 0, 1], "key_ids": [0, 0, 1, 1]},
    )
    yield ask("alibi-heads", "slopes for 3 heads beside 2", bias={"rule": "alibi", "slopes": 3})
    yield ask("dropout-all", "a dropout rate of 1", dropout=1.0)
    yield ask(
        "several",
        "two masks, one of another length",
        mask=both(CAUSAL, {"rule": "dense", "input": "given"}),
        shapes={"given": (3, 6)},
    )


def _float_mask(arrays: Arrays) -> None:
    arrays["mask"] = arrays["mask"].astype(np.float32)


def _integer_mask(arrays: Arrays) -> None:
    arrays["mask"] = arrays["mask"].astype(np.int32)
