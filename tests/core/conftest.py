"""What the tests of the definition share."""

import importlib.util
from collections.abc import Iterator
from types import ModuleType

import pytest

import attention_core


@pytest.fixture
def core() -> ModuleType:
    """The package under test; the mutants' tests pass wrong ones instead."""
    return attention_core


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Let JAX hold float64 during one test; without JAX there is nothing to let."""
    if importlib.util.find_spec("jax") is None:
        yield
        return
    import jax

    with jax.enable_x64(True):
        yield
