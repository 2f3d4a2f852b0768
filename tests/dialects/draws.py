"""Random arguments for the peers' calls: hypothesis chooses the call, a seed the numbers in its arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

__all__ = ["Sizes", "additive", "boolean", "close", "lengths", "normal", "numbers", "sizes"]

Sizes = dict[str, int]
Numbers = np.random.Generator


@st.composite
def sizes(draw: DrawFn, **most: int) -> Sizes:
    """Sizes ``B, Hkv, G, Hq, Lq, Lk, D, Dv``, small and mostly unequal."""
    largest = {"B": 3, "Hkv": 2, "G": 3, "Lq": 4, "Lk": 6, "D": 5, "Dv": 4, **most}
    found = {name: draw(st.integers(1, most)) for name, most in largest.items()}
    return {**found, "Hq": found["G"] * found["Hkv"]}


def numbers(draw: DrawFn) -> Numbers:
    return np.random.default_rng(draw(st.integers(0, 2**32 - 1)))


def normal(rng: Numbers, dtype: Any, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(dtype)


def broadcastable(draw: DrawFn, full: tuple[int, ...], least_rank: int = 1) -> tuple[int, ...]:
    """A shape that broadcasts to the full one; its last axis is whole."""
    rank = draw(st.integers(least_rank, len(full)))
    return (*(draw(st.sampled_from([1, size])) for size in full[-rank:-1]), full[-1])


def boolean(draw: DrawFn, rng: Numbers, full: tuple[int, ...], least_rank: int = 2) -> np.ndarray:
    """Booleans that broadcast to the full shape; one row in four is all False."""
    shape = broadcastable(draw, full, least_rank)
    seen: np.ndarray = rng.random(shape) < 0.7
    return seen & (rng.random((*shape[:-1], 1)) < 0.75)


def additive(draw: DrawFn, rng: Numbers, dtype: Any, full: tuple[int, ...], least_rank: int = 2) -> np.ndarray:
    """Numbers that broadcast to the full shape, one in four ``-inf``."""
    shape = broadcastable(draw, full, least_rank)
    return np.where(rng.random(shape) < 0.25, -np.inf, rng.normal(size=shape)).astype(dtype)


def lengths(draw: DrawFn, count: int, most: int, dtype: Any = np.int32) -> np.ndarray:
    return np.array([draw(st.integers(0, most)) for _ in range(count)], dtype)


def close(found: Any, expected: Any) -> None:
    """Equal shapes and, within the rounding of the narrower dtype, equal numbers; an infinity equals itself."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    tolerance = 1e-11 if found.dtype == expected.dtype == np.float64 else 2e-5
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
