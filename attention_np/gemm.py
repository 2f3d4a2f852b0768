"""The matrix product that the kernel uses: NumPy's, or MKL's through ctypes where the extra `mkl` is installed."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Multiply", "multiply", "provider", "use_provider"]

Multiply: TypeAlias = Callable[[Any, Any, Any], Any]
"""``multiply(a, b, out)`` writes ``a @ b`` of matrices into ``out``."""

_SEQUENTIAL, _REPRODUCIBLE = 1, 2
_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112
_CHOSEN: dict[str, str] = {}


def _numpy_multiply(a: Any, b: Any, out: Any) -> Any:
    return np.matmul(a, b, out=out)


def provider() -> str:
    """Return ``"mkl"`` or ``"numpy"``: as chosen, by ``ARRAY_ATTENTION_GEMM``, or else MKL on Intel's processors.

    On others MKL is the slower one.
    """
    wanted = _CHOSEN.get("name") or os.environ.get("ARRAY_ATTENTION_GEMM") or "auto"
    if wanted not in ("auto", "mkl", "numpy"):
        raise ValueError(f'the GEMM provider must be "auto", "mkl" or "numpy"; got {wanted!r}')
    if wanted == "numpy" or (wanted == "auto" and not _is_intel()):
        return "numpy"
    if _mkl() is not None:
        return "mkl"
    if wanted == "mkl":
        raise ImportError("MKL is not installed; `pip install array-attention[mkl]` brings it")
    return "numpy"


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
    return _mkl_multiply if provider() == "mkl" else _numpy_multiply


@cache
def _mkl() -> ctypes.CDLL | None:
    """Load MKL's single library, sequential: threads are the pool's business."""
    path = _mkl_path()
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    library.MKL_Set_Threading_Layer(_SEQUENTIAL)
    library.MKL_CBWR_Set(_REPRODUCIBLE)  # else the bits depend on where an array begins in memory
    for name, real in (("cblas_sgemm", ctypes.c_float), ("cblas_dgemm", ctypes.c_double)):
        integer, pointer = ctypes.c_int, ctypes.c_void_p
        function = getattr(library, name)
        function.restype = None
        function.argtypes = [integer] * 6 + [real, pointer, integer, pointer, integer, real, pointer, integer]
    return library


@cache
def _is_intel() -> bool:
    described = Path("/proc/cpuinfo")
    text = described.read_text(encoding="utf-8") if described.exists() else platform.processor()
    return "GenuineIntel" in text


def _mkl_path() -> Path | None:
    try:
        files = metadata.files("mkl") or []
    except metadata.PackageNotFoundError:
        return None
    name = "mkl_rt" if sys.platform == "win32" else "libmkl_rt"
    found = [Path(str(file.locate())) for file in files if file.name.startswith(name) and ".lib" not in file.name]
    return found[0].resolve() if found else None


def _mkl_multiply(a: Any, b: Any, out: Any) -> Any:
    """``out = a @ b`` by MKL where all three are rows or columns of one dtype, else by NumPy."""
    rows, inner = a.shape
    columns = b.shape[1]
    size = out.itemsize
    order_a, lead_a = _order(a, size)
    order_b, lead_b = _order(b, size)
    small = rows == 1 or columns == 1 or inner == 0 or rows == 0 or columns == 0
    if small or not lead_a or not lead_b or out.dtype.char not in "fd" or not out.flags.c_contiguous:
        return np.matmul(a, b, out=out)
    library: Any = _mkl()
    function = library.cblas_sgemm if size == 4 else library.cblas_dgemm
    pa, pb, pc = (x.__array_interface__["data"][0] for x in (a, b, out))
    function(_ROW_MAJOR, order_a, order_b, rows, columns, inner, 1.0, pa, lead_a, pb, lead_b, 0.0, pc, columns)
    return out


def _order(x: Any, size: int) -> tuple[int, int]:
    """Return the CBLAS order of a matrix and its leading dimension, 0 where BLAS cannot read it."""
    down, across = x.strides
    if across == size and down >= size * x.shape[1] and down % size == 0:
        return _PLAIN, down // size
    if down == size and across >= size * x.shape[0] and across % size == 0:
        return _TRANSPOSED, across // size
    return _PLAIN, 0
