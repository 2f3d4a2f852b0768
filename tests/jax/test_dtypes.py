"""The tiled kernel errs in every dtype as the definition does there, against the definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the kernel under test is JAX's")
import jax.numpy as jnp  # noqa: E402  after the skip

import attention_jax as attention  # noqa: E402
from attention_jax import masks  # noqa: E402

pytestmark = [pytest.mark.usefixtures("double_precision"), pytest.mark.slow]

SHAPES = ((2, 3, 129, 32), (2, 3, 700, 32), (2, 3, 700, 16))  # two key tiles, one of them ragged


def call(attend: Any, dtype: Any, arrays: list[Any]) -> list[np.ndarray]:
    """Out, lse and gradients for inputs rounded to ``dtype``, in float64."""
    given = [x.astype(dtype) for x in arrays]

    def loss(*given: Any) -> Any:
        out, lse = attend(*given)
        return (out.astype(jnp.float64) * jnp.cos(jnp.arange(16.0))).sum() + lse.sum(), (out, lse)

    (_, results), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(*given)
    for x in (results[0], *gradients):
        assert x.dtype == dtype
    return [np.asarray(x, np.float64) for x in (*results, *gradients)]


def attend(impl: str) -> Any:
    def run(*arrays: Any) -> Any:
        mask = masks.causal()
        return attention.dot_product_attention(*arrays, mask=mask, query_positions=571, impl=impl, return_lse=True)[:2]

    return run


@pytest.mark.parametrize(("dtype", "logit_scale"), [("float16", 1), ("bfloat16", 16), ("float32", 16), ("float64", 16)])
def test_errors_are_those_of_rounding(dtype: str, logit_scale: int) -> None:
    rng = np.random.default_rng(3)
    arrays = [jnp.asarray(rng.normal(size=shape)).astype(dtype) for shape in SHAPES]
    arrays[0] = arrays[0] * logit_scale
    found = call(attend("tiled"), jnp.dtype(dtype), arrays)
    plain = call(attend("dense"), jnp.dtype(dtype), arrays)
    truth = call(attend("dense"), jnp.dtype("float64"), arrays)
    eps = float(jnp.finfo(dtype).eps)
    compute_eps = min(eps, float(jnp.finfo("float32").eps))
    for ours, theirs, true in zip(found, plain, truth, strict=True):
        worst = np.abs(true).max()
        allowed = 4 * np.abs(theirs - true).max() + 0.51 * eps * worst + 16 * compute_eps * worst
        assert np.abs(ours - true).max() <= (allowed if dtype != "float64" else 1e-12 * logit_scale * worst)
