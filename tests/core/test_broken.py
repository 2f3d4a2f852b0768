"""What attacks on the library found: each test is a call that once gave a wrong answer, or no clear error."""

from typing import Any

import numpy as np
import pytest

import attention_core
import attention_np as attention
from attention_core.problem import make_problem
from attention_core.tiled import tiled_attention, tiled_vjp

from .libraries import JITTED, Library

# Gradients of rows whose lse is large: log n, lost when lse was rounded, is not lost from the weights

FILLS = [-1e9, float(np.finfo(np.float32).min), 1e7]
QUERIES, KEYS, DEPTH = 5, 7, 3


def filled_rows(fill: float) -> tuple[dict[str, Any], np.ndarray]:
    """Rows that a padding mask of large numbers fills: all their weights are 1/7."""
    rng = np.random.default_rng(3)
    query, dout = rng.normal(size=(2, 1, QUERIES, DEPTH)).astype(np.float32)
    key, value = rng.normal(size=(2, 1, KEYS, DEPTH)).astype(np.float32)
    bias = np.full((QUERIES, KEYS), fill, np.float32)
    return {"query": query, "key": key, "value": value, "bias": bias}, dout


def assert_spread_evenly(dvalue: Any, dout: np.ndarray) -> None:
    expected = np.broadcast_to(dout.sum(axis=-2, keepdims=True) / KEYS, (1, KEYS, DEPTH))
    np.testing.assert_allclose(np.asarray(dvalue), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("name", ["numpy", "array_api_strict", pytest.param("torch", marks=pytest.mark.torch)])
def test_weights_of_rows_with_a_large_lse(name: str, fill: float) -> None:
    library = Library(name)
    call, dout = filled_rows(fill)
    arrays = {argument: library.to(x) for argument, x in call.items()}
    _, pullback = attention_core.vjp(**arrays, scale=0.0, impl="tiled")
    assert_spread_evenly(library.numpy(pullback(library.to(dout)).value), dout)
    problem = make_problem(**arrays, scale=0.0)
    result = tiled_attention(problem, tile=(2, 3))
    gradients = tiled_vjp(problem, result, library.to(dout), None, tile=(2, 3))
    assert_spread_evenly(library.numpy(gradients.value), dout)


@pytest.mark.parametrize("fill", FILLS)
def test_weights_of_rows_with_a_large_lse_in_jax(fill: float) -> None:
    jax = pytest.importorskip("jax", reason="needs jax")
    import attention_jax

    call, dout = filled_rows(fill)

    def loss(value: Any, rest: dict[str, Any]) -> Any:
        return (attention_jax.dot_product_attention(**rest, value=value, scale=0.0, impl="tiled") * dout).sum()

    arrays = {name: JITTED.to(x) for name, x in call.items()}
    assert_spread_evenly(jax.jit(jax.grad(loss))(arrays.pop("value"), arrays), dout)


def test_a_large_lse_leaves_other_rows_and_empty_rows_alone() -> None:
    call, dout = filled_rows(-1e9)
    call["bias"][1:] = 0.0
    call["bias"][4] = -np.inf
    _, pullback = attention.vjp(**call, scale=0.0, impl="tiled")
    assert_spread_evenly(pullback(dout).value, np.delete(dout, 4, axis=-2))
    assert (pullback(dout).query[:, 4] == 0).all()
