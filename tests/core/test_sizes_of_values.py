"""Values of any size keep their digits in the kernels, wherever within its bound the scores of a row lie.

A kernel that shifts no scores has weights that are all tiny, or all huge, where a row's scores lie at an end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attention_np
from attention_core.masks import Mask, causal

LENGTH = 40


@pytest.fixture(params=["numpy", "jax"])
def attend(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A backend's attention of NumPy's arrays."""
    if request.param == "numpy":
        return attention_np.dot_product_attention
    jax = pytest.importorskip("jax", reason="the `jax` extra is not installed")
    import attention_jax

    return lambda *given, **call: attention_jax.dot_product_attention(*map(jax.numpy.asarray, given), **call)


@pytest.mark.parametrize("mask", [None, causal()], ids=["full", "causal"])
@pytest.mark.parametrize("size", [1e-30, 1e-20, 1.0, 1e35])
@pytest.mark.parametrize("score", [-54.0, -25.0, 54.0])
def test_values_of_any_size_keep_their_digits(
    score: float, size: float, mask: Mask | None, attend: Callable[..., Any]
) -> None:
    rng = np.random.default_rng(0)
    query, key = (np.full((2, LENGTH, 8), abs(score / 8) ** 0.5) + rng.normal(size=(2, LENGTH, 8)) * 0.01 for _ in "qk")
    key *= np.sign(score)
    value = rng.normal(size=(2, LENGTH, 5)) * size * [1, 1e-3, 1, 0, 1]
    scores = np.einsum("hid,hjd->hij", query, key)
    if mask is not None:
        scores[:, ~np.tri(LENGTH, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("hij,hjd->hid", weights / weights.sum(-1, keepdims=True), value)
    given = (x.astype(np.float32) for x in (query, key, value))
    found = np.asarray(attend(*given, mask=mask, scale=1.0, impl="tiled"), np.float64)
    scale = np.abs(value).mean(axis=1, keepdims=True) + np.finfo(np.float32).tiny
    np.testing.assert_array_less(np.abs(found - expected) / scale, 4e-5)
