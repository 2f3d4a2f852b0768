"""The MLX dialect is MLX on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from attention_np.dialects.mlx import scaled_dot_product_attention
from tests.dialects.draws import additive, boolean, close, normal, numbers, sizes

mx = pytest.importorskip("mlx.core", reason="the peer is not installed; `pip install 'mlx[cpu]'` brings it on Linux")

Call = dict[str, Any]


def by_mlx(call: Call) -> np.ndarray:
    arrays = {name: mx.array(x) if isinstance(x, np.ndarray) else x for name, x in call.items()}
    return np.array(mx.fast.scaled_dot_product_attention(**arrays))


@st.composite
def calls(draw: DrawFn) -> Call:
    """Any documented call; numbers that are added hide no whole row."""
    n, rng = draw(sizes()), numbers(draw)
    shapes = {"q": ("Hq", "Lq", "D"), "k": ("Hkv", "Lk", "D"), "v": ("Hkv", "Lk", "Dv")}
    call: Call = {name: normal(rng, np.float32, n["B"], *(n[x] for x in axes)) for name, axes in shapes.items()}
    kind = draw(st.sampled_from(["none", "causal", "boolean", "additive"]))
    full = (n["B"], n["Hq"], n["Lq"], n["Lk"])
    if kind == "causal":
        call["mask"] = "causal"
    if kind == "boolean":
        call["mask"] = boolean(draw, rng, full)
    if kind == "additive":
        call["mask"] = additive(draw, rng, np.float32, full)
        call["mask"][..., 0] = 0.5
    if draw(st.booleans()):
        call["sinks"] = normal(rng, np.float32, n["Hq"])
    return {**call, "scale": draw(st.sampled_from([0.5, 0.0, -1.5]))}


@given(calls())
def test_every_call_is_mlxs(call: Call) -> None:
    found = scaled_dot_product_attention(**call)
    assert found.dtype == np.float32
    close(found, by_mlx(call))


def small(**more: Any) -> Call:
    rng = np.random.default_rng(0)
    shapes = {"q": (1, 2, 3, 4), "k": (1, 1, 2, 4), "v": (1, 1, 2, 5)}
    return {**{name: normal(rng, np.float32, *shape) for name, shape in shapes.items()}, "scale": 0.5, **more}


def test_a_row_that_sees_no_key_is_the_mean_of_the_values() -> None:
    for mask in ("causal", np.array([[False, False], [True, False], [True, True]])):
        call = small(mask=mask)
        close(scaled_dot_product_attention(**call)[0, :, 0], np.repeat(call["v"].mean(2)[0], 2, axis=0))
        close(scaled_dot_product_attention(**call), by_mlx(call))


def test_with_sinks_it_is_zero() -> None:
    call = small(mask="causal", sinks=np.array([0.5, -1.0], np.float32))
    assert not scaled_dot_product_attention(**call)[0, :, 0].any()
    close(scaled_dot_product_attention(**call), by_mlx(call))


def test_a_row_that_added_infinities_hide_is_the_mean_too() -> None:
    """MLX gives NaN there."""
    call = small(mask=np.array([[-np.inf, -np.inf], [0.0, -np.inf], [0.0, 0.0]], np.float32))
    found, theirs = scaled_dot_product_attention(**call), by_mlx(call)
    close(found[0, :, 0], np.repeat(call["v"].mean(2)[0], 2, axis=0))
    assert np.isnan(theirs[0, :, 0]).all()
    close(found[:, :, 1:], theirs[:, :, 1:])


WRONG = [
    ({"mask": "lower"}, ValueError, '`mask` must be "causal", an array or None'),
    ({"mask": np.ones((3, 2), np.int32)}, TypeError, "real floating-point"),
    ({"mask": np.ones((1, 1, 1, 3, 2), bool)}, ValueError, "does not broadcast"),
    ({"sinks": np.ones(3, np.float32)}, ValueError, "`sinks` has shape"),
    ({"force_fused": True}, NotImplementedError, "MLX's own means"),
    ({"stream": "gpu"}, NotImplementedError, "MLX's own means"),
    ({"q": np.ones((3, 4), np.float32)}, ValueError, r"must be \(B, H, L, D\)"),
    ({"scale": None}, TypeError, "`scale` has no default"),
]


@pytest.mark.parametrize(("change", "error", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_a_wrong_call_says_what_is_wrong(change: Call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        scaled_dot_product_attention(**small(**change))
