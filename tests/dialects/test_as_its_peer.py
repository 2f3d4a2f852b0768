"""Through the conformance suite a dialect passes exactly where its peer does, but for what the table here explains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance import runner
from conformance.adapters import dialects, load
from conformance.adapters.flash_attention import FlashAttention
from conformance.cases import Case, Group
from conformance.format import read_groups
from tests.dialects import flash_reference

LEAKS = "NaN or an infinity in a hidden key or value reaches the peer's output"
NARROW = "the peer computes in fewer bits"
MIXED = "the peer refuses inputs of two dtypes"
NAN_ROWS = "PyTorch gives NaN to a row that sees no key where it returns weights"
ROOT = "the evaluator takes the square root of a negative scale"
NO_KEYS = "the evaluator refuses to have no keys"
ONE_ROW = "the evaluator misplaces `is_causal` beside a mask of one row"

# Where only the dialect passes: the beginnings of ids, and why.
ONLY_THE_DIALECT: Mapping[str, Mapping[str, str]] = {
    "torch.sdpa-math": {"poison-": LEAKS, "visible-nan-": LEAKS, "precision-wider-value": MIXED},
    "torch.mha": {
        "poison-": LEAKS,
        "visible-nan-": LEAKS,
        "precision-wider-value": MIXED,
        **dict.fromkeys(("empty-row-", "lengths-", "segments-padded-", "several-causal-"), NAN_ROWS),
        **dict.fromkeys(("one-depth-mask", "one-depth-segments"), NAN_ROWS),
    },
    "onnx": {
        "poison-": LEAKS,
        "visible-nan-": LEAKS,
        "scale-negative": ROOT,
        "sizes-no-keys": NO_KEYS,
        "one-depth-padded-causal": ONE_ROW,
        **dict.fromkeys(("extreme-", "lse-", "overflow-", "precision-", "scale-"), NARROW),
    },
    "jax.nn": {},
    "mlx": {"poison-": LEAKS, "visible-nan-": LEAKS},
    "flash-attention": {"sizes-no-batch": "the published reference is written for at least one item"},
}
DIALECTS = {
    "torch.sdpa-math": dialects.SdpaDialect,
    "torch.mha": dialects.MultiheadAttentionDialect,
    "onnx": dialects.OnnxDialect,
    "jax.nn": dialects.JaxNnDialect,
    "mlx": dialects.MlxDialect,
    "flash-attention": dialects.FlashAttentionDialect,
}


class Published(FlashAttention):
    """FlashAttention has no build for CPUs: in its place stands its published meaning, in float64."""

    version = "published"

    def __init__(self) -> None:
        pass

    def attend(self, *arrays: np.ndarray, **settings: Any) -> tuple[Any, Any]:
        out, lse, _ = flash_reference.attend(*(x.astype(np.float64) for x in arrays), **settings)
        return out.astype(arrays[0].dtype), lse

    def attend_packed(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, *offsets: np.ndarray, **settings: Any
    ) -> tuple[Any, Any]:
        out, lse, _ = flash_reference.packed(*(x.astype(np.float64) for x in (q, k, v)), *offsets, **settings)
        return out.astype(q.dtype), lse


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
    adapter = Published() if peer == "flash-attention" else load(peer)
    theirs, ours = statuses(adapter, groups), statuses(DIALECTS[peer](), groups)
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
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_the_dialect_of_mlx_passes_where_mlx_does() -> None:
    pytest.importorskip("mlx.core", reason="the peer is not installed; `pip install 'mlx[cpu]'` brings it on Linux")
    assert differences("mlx", "float32") == []


@pytest.mark.slow
def test_the_dialect_of_flash_attention_passes_where_its_published_meaning_does() -> None:
    assert differences("flash-attention", "float32") == []


@pytest.mark.slow
def test_the_dialect_of_jax_nn_passes_where_jax_nn_does() -> None:
    pytest.importorskip("jax", reason="the peer is not installed; `pip install jax` brings it")
    assert differences("jax.nn", "float32") == []
