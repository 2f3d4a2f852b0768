"""Through the conformance suite a dialect passes exactly where its peer does, but for what the table here explains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from conformance import runner
from conformance.adapters import dialects, load
from conformance.cases import Case, Group
from conformance.format import read_groups

LEAKS = "NaN or an infinity in a hidden key or value reaches the peer's output"
NARROW = "the peer computes in fewer bits"
MIXED = "the peer refuses inputs of two dtypes"
NAN_ROWS = "PyTorch gives NaN to a row that sees no key where it returns weights"
ROOT = "the evaluator takes the square root of a negative scale"
NO_KEYS = "the evaluator refuses to have no keys"

# Where only the dialect passes: the beginnings of ids, and why.
ONLY_THE_DIALECT: Mapping[str, Mapping[str, str]] = {
    "torch.sdpa-math": {"poison-": LEAKS, "visible-nan-": LEAKS, "precision-wider-value": MIXED},
    "torch.mha": {
        "poison-": LEAKS,
        "visible-nan-": LEAKS,
        "precision-wider-value": MIXED,
        **dict.fromkeys(("empty-row-", "lengths-", "segments-padded-", "several-causal-"), NAN_ROWS),
    },
    "onnx": {
        "poison-": LEAKS,
        "visible-nan-": LEAKS,
        "scale-negative": ROOT,
        "sizes-no-keys": NO_KEYS,
        **dict.fromkeys(("extreme-", "lse-", "overflow-", "precision-", "scale-"), NARROW),
    },
    "jax.nn": {},
}
DIALECTS = {
    "torch.sdpa-math": dialects.SdpaDialect,
    "torch.mha": dialects.MultiheadAttentionDialect,
    "onnx": dialects.OnnxDialect,
    "jax.nn": dialects.JaxNnDialect,
}


def statuses(adapter: Any, groups: list[Group]) -> dict[tuple[str, str], str]:
    return {(row.case.id, row.dtype): row.status for row in runner.run(groups, [adapter])}


def asked(peer: str, dtype: str) -> list[Group]:
    """Every case that can be asked in one dtype, in that one alone."""
    return [
        replace(
            group,
            cases=tuple(
                replace(case, dtypes=(dtype,)) for case in group.cases if dtype in case.dtypes and may_take(peer, case)
            ),
        )
        for group in read_groups()
    ]


def may_take(peer: str, case: Case) -> bool:
    """Whether it is worth asking: jax.nn, which compiles much before it refuses, takes values of the keys' shape."""
    shapes = [case.inputs[name].shape for name in ("key", "value") if name in case.inputs]
    return peer != "jax.nn" or (len(shapes) == 2 and shapes[0] == shapes[1])


def differences(peer: str, dtype: str) -> list[str]:
    """Lines on every case that one of the two passes alone, and that the table does not explain."""
    groups = asked(peer, dtype)
    theirs, ours = statuses(load(peer), groups), statuses(DIALECTS[peer](), groups)
    explained = tuple(ONLY_THE_DIALECT[peer])
    return [
        f"{key[0]}: {peer} {theirs[key]}, dialect {ours[key]}"
        for key in theirs
        if (theirs[key] == "pass") != (ours[key] == "pass")
        and not (ours[key] == "pass" and key[0].startswith(explained))
    ]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("peer", ["torch.sdpa-math", "torch.mha"])
def test_a_dialect_of_pytorch_passes_where_pytorch_does(peer: str) -> None:
    assert differences(peer, "float64") == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_the_dialect_of_onnx_passes_where_the_evaluator_does() -> None:
    pytest.importorskip("onnx", reason="the peer is not installed; `pip install onnx` brings it")
    assert differences("onnx", "float32") == []


@pytest.mark.slow
def test_the_dialect_of_jax_nn_passes_where_jax_nn_does() -> None:
    pytest.importorskip("jax", reason="the peer is not installed; `pip install jax` brings it")
    assert differences("jax.nn", "float32") == []
