"""One call of the core on NumPy, and the same under ``jax.jit`` in float64, both giving NumPy arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attention_np
from attention_np import Result

LIBRARIES = ("numpy", "jax")

on_every_library = pytest.mark.parametrize("library", LIBRARIES)


def core(query: Any, key: Any, value: Any, **call: Any) -> Result:
    return attention_np.dot_product_attention(query, key, value, **call, return_lse=True, return_weights=True)


def as_arrays(*arrays: Any) -> list[np.ndarray]:
    """Lists become float64 arrays."""
    return [np.asarray(x) if hasattr(x, "dtype") else np.asarray(x, dtype=float) for x in arrays]


def attention(library: str, query: Any, key: Any, value: Any, **call: Any) -> Result:
    """Out, lse and weights of one call; under JAX all its arrays are traced."""
    return evaluate(library, core, *as_arrays(query, key, value), **call)


def evaluate(library: str, function: Callable[..., Any], *arrays: Any, **call: Any) -> Any:
    """Evaluate a function of arrays, on NumPy as it is, on JAX jitted over all arrays of the call; x64 is on."""
    if library == "numpy":
        return function(*arrays, **call)
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    pytest.importorskip("attention_jax")  # its import makes masks and biases pytrees
    leaves, tree = jax.tree.flatten((arrays, call))
    is_array = [hasattr(leaf, "dtype") for leaf in leaves]

    def compiled(traced: list[Any]) -> Any:
        given = iter(traced)
        filled = [next(given) if array else leaf for array, leaf in zip(is_array, leaves, strict=True)]
        arrays, call = jax.tree.unflatten(tree, filled)
        return function(*arrays, **call)

    with jax.enable_x64(True):
        traced = [jax.numpy.asarray(leaf) for leaf, array in zip(leaves, is_array, strict=True) if array]
        return jax.tree.map(np.asarray, jax.jit(compiled)(traced))


def assert_same(actual: Any, expected: Any, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    """Equal within a tolerance, of the same shape; NaN equals only NaN, an infinity only itself."""
    actual, expected = (np.asarray(x, dtype=float) for x in (actual, expected))
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


def spread(*shape: int, seed: int = 0) -> np.ndarray:
    """Random numbers of both signs whose dot products differ by several units, so that softmax is not flat."""
    return 1.5 * np.random.default_rng((seed, *shape)).normal(size=shape)
