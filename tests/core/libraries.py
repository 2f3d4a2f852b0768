"""The array libraries that the definition is held to: each as one value that makes arrays and reads them back."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest

__all__ = ["EACH", "EACH_ONCE", "EAGER", "JITTED", "NAMES", "NUMPY", "UNCOMPILED", "Library"]

MODULES = {"numpy": "numpy", "jax": "jax.numpy", "torch": "torch", "array_api_strict": "array_api_strict"}


@dataclass(frozen=True)
class Library:
    """An array library; ``jit`` says whether ``call`` traces the function with its arrays as arguments."""

    name: str
    jit: bool = False

    @property
    def xp(self) -> ModuleType:
        """The namespace of its arrays, as the core finds it."""
        module = importlib.import_module(MODULES[self.name])
        if self.name == "torch":
            return importlib.import_module("array_api_compat.torch")
        if self.name == "jax":
            importlib.import_module("attention_jax")  # makes masks and biases pytrees
        return module

    def to(self, x: Any) -> Any:
        """Make an array of NumPy's; what is no NumPy array stays."""
        if not isinstance(x, np.ndarray):
            return x
        # torch warns of read-only memory, and may keep what it is given
        return self.xp.asarray(x.copy() if self.name in ("torch", "array_api_strict") else x)

    def numpy(self, x: Any) -> np.ndarray:
        """Read an array."""
        return np.asarray(x.numpy(force=True) if self.name == "torch" else x)

    def call(self, fn: Callable[..., Any], *arguments: Any) -> Any:
        """Return ``fn(*arguments)``, its NumPy arrays as this library's, traced where that is what is tested."""
        ours = [self.to(x) for x in arguments]
        if not self.jit:
            return fn(*ours)
        import jax

        def of_arrays(*arrays: Any) -> Any:
            rest = iter(arrays)
            return fn(*(next(rest) if isinstance(x, jax.Array) else x for x in ours))

        return jax.jit(of_arrays)(*(x for x in ours if isinstance(x, jax.Array)))


NUMPY = Library("numpy")
JITTED = Library("jax", jit=True)
EAGER = [NUMPY, Library("jax"), Library("torch"), Library("array_api_strict")]
NAMES = {each: f"{each.name}{'-jit' if each.jit else ''}" for each in [*EAGER, JITTED]}


def _marks(library: Library) -> list[pytest.MarkDecorator]:
    if library.name == "torch":
        return [pytest.mark.torch]
    try:
        importlib.import_module(MODULES[library.name])
    except ModuleNotFoundError:
        return [pytest.mark.skip(reason=f"{library.name} is not installed; `pip install {library.name}` brings it")]
    return []


def _parameters(libraries: list[Library]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "library", [pytest.param(each, id=NAMES[each], marks=_marks(each)) for each in libraries]
    )


EACH = _parameters([*EAGER, JITTED])
"""Run a test on every library."""

EACH_ONCE = _parameters([each for each in [*EAGER, JITTED] if each.name != "jax" or each.jit])
"""The same without eager JAX, which compiles each operation for each shape; `test_libraries` runs the whole of it."""

UNCOMPILED = _parameters([each for each in EAGER if each.name != "jax"])
"""The libraries that compile nothing: for tests of very many shapes."""
