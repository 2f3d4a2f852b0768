"""Who multiplies: NumPy, or MKL where the extra `mkl` is installed; and whose work a user has chosen."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .once import once

__all__ = ["Multiply", "chosen", "has", "multiply", "provider", "use_provider"]

Multiply: TypeAlias = Callable[[Any, Any, Any], Any]
"""``multiply(a, b, out)`` writes ``a @ b`` of matrices into ``out``."""

_NAMES = ("auto", "mkl", "numba", "numpy")
_CHOSEN: dict[str, str] = {}


def provider() -> str:
    """Return who multiplies: as chosen, by ``ARRAY_ATTENTION_GEMM`` too, or else MKL on Intel's processors.

    On others its products take a tenth longer than OpenBLAS's.
    """
    name = chosen()
    return "mkl" if name == "mkl" or (name == "auto" and _is_intel() and has("mkl")) else "numpy"


def chosen() -> str:
    """Return the chosen word; ``ImportError`` where it names what cannot be used."""
    name = _CHOSEN.get("name") or os.environ.get("ARRAY_ATTENTION_GEMM") or "auto"
    if name not in _NAMES:
        raise ValueError(f"the provider must be one of {', '.join(map(repr, _NAMES))}; got {name!r}")
    if name in _LACKING and not has(name):
        raise ImportError(_LACKING[name])
    return name


_LACKING = {
    "mkl": "MKL is not installed (`pip install array-attention[mkl]` brings it), or in use by others in this process",
    "numba": "numba is not installed (`pip install array-attention[numba]` brings it), does not suit this NumPy, or "
    "compiles nothing (NUMBA_DISABLE_JIT)",
}


def has(name: str, dtype: Any = np.float32) -> bool:
    """Say whether ``"mkl"`` or ``"numba"`` can be used."""
    if name == "mkl":
        return _mkl().load() is not None
    from . import compiled

    return compiled.load(np.dtype(dtype), False) is not None


@once
def _mkl() -> Any:
    from . import mkl  # what it imports would double the time of the first call

    return mkl


@cache
def _is_intel() -> bool:
    described = Path("/proc/cpuinfo")
    text = described.read_text(encoding="utf-8") if described.exists() else platform.processor()
    return "GenuineIntel" in text


def use_provider(name: str) -> None:
    """Choose whose matrix products and exponential this process uses.

    Args:
        name: ``"numpy"`` takes both from NumPy, ``"mkl"`` both from MKL, ``"numba"`` compiles the exponential and takes
            the products from NumPy, ``"auto"`` takes the faster of what is installed.

    Raises:
        ImportError: MKL or numba is asked for and cannot be used.
        ValueError: another word.

    >>> from attention_np.config import show_config, use_provider
    >>> use_provider("numpy")
    >>> show_config()["gemm"]
    'numpy'
    >>> use_provider("auto")
    """
    before = _CHOSEN.copy()
    _CHOSEN["name"] = name
    try:
        chosen()
    except (ValueError, ImportError):
        _CHOSEN.clear()
        _CHOSEN.update(before)
        raise


def multiply() -> Multiply:
    """Return the product to use now."""
    if provider() == "numpy":
        return np.matmul
    from .mkl import multiply as found

    return found
