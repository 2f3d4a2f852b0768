"""JAX in float64, where truth is asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Enable float64 in JAX for one test."""
    jax = pytest.importorskip("jax", reason="the kernel under test is JAX's")
    with jax.enable_x64(True):
        yield
