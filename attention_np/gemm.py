"""Who multiplies and exponentiates: NumPy, or MKL where the extra `mkl` is installed."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Multiply", "exponential_provider", "multiply", "provider", "use_provider"]

Multiply: TypeAlias = Callable[[Any, Any, Any], Any]
"""``multiply(a, b, out)`` writes ``a @ b`` of matrices into ``out``."""

_CHOSEN: dict[str, str] = {}


def provider() -> str:
    """Return who multiplies: as chosen, by ``ARRAY_ATTENTION_GEMM`` too, or else MKL on Intel's processors.

    On others its products take a tenth longer than OpenBLAS's.
    """
    return _provider() if _wanted() != "auto" or _is_intel() else "numpy"


def exponential_provider() -> str:
    """Return whose exponential is used: as chosen, or else MKL's wherever it is installed, on any processor."""
    return _provider()


def _wanted() -> str:
    wanted = _CHOSEN.get("name") or os.environ.get("ARRAY_ATTENTION_GEMM") or "auto"
    if wanted not in ("auto", "mkl", "numpy"):
        raise ValueError(f'the GEMM provider must be "auto", "mkl" or "numpy"; got {wanted!r}')
    return wanted


def _provider() -> str:
    wanted = _wanted()
    if wanted != "numpy" and _has_mkl():
        return "mkl"
    if wanted == "mkl":
        raise ImportError(
            "MKL is not installed (`pip install array-attention[mkl]` brings it), or in use by others in this process"
        )
    return "numpy"


@cache
def _is_intel() -> bool:
    described = Path("/proc/cpuinfo")
    text = described.read_text(encoding="utf-8") if described.exists() else platform.processor()
    return "GenuineIntel" in text


def _has_mkl() -> bool:
    from . import mkl  # what it imports would double the time of the first call

    return mkl.load() is not None


def use_provider(name: str) -> None:
    """Choose ``"auto"``, ``"mkl"`` or ``"numpy"`` for this process.

    ``ImportError`` where MKL is asked for and not installed, ``ValueError`` for another word.

    >>> from attention_np.config import show_config, use_provider
    >>> use_provider("numpy")
    >>> show_config()["gemm"]
    'numpy'
    >>> use_provider("auto")
    """
    before = _CHOSEN.copy()
    _CHOSEN["name"] = name
    try:
        provider()
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
