"""Intel's MKL through ctypes, where the package `mkl` is installed: its matrix product and its exponential.

MKL runs in its reproducible mode, sequentially: threads are the pool's business.
"""

from __future__ import annotations

import ctypes
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from .once import once

__all__ = ["exp2", "load", "multiply"]

_SEQUENTIAL, _REPRODUCIBLE = 1, 2
_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112
_QUIETLY = 0x1 | 0x100  # within one unit of the last place, and no error handler for what underflows


@once
def load() -> Any:
    """Load MKL's single library, or return ``None`` where there is none, or where somebody computes with it already."""
    path = _path()
    if path is None or _is_numpys_own():
        return None
    try:
        found = ctypes.CDLL(str(path))
    except OSError:
        return None
    if found.MKL_CBWR_Set(_REPRODUCIBLE) != 0:  # else the bits depend on where an array begins in memory
        return None
    found.MKL_Set_Threading_Layer(_SEQUENTIAL)
    integer, pointer = ctypes.c_int, ctypes.c_void_p
    for name, real in (("cblas_sgemm", ctypes.c_float), ("cblas_dgemm", ctypes.c_double)):
        function = getattr(found, name)
        function.restype = None
        function.argtypes = [integer] * 6 + [real, pointer, integer, pointer, integer, real, pointer, integer]
    for name in ("vmsExp2", "vmdExp2"):
        function = getattr(found, name)
        function.restype = None
        function.argtypes = [integer, pointer, pointer, ctypes.c_int64]
    return found


def _path() -> Path | None:
    try:
        files = metadata.files("mkl") or []
    except metadata.PackageNotFoundError:
        return None
    name = "mkl_rt" if sys.platform == "win32" else "libmkl_rt"
    found = [Path(str(file.locate())) for file in files if file.name.startswith(name) and ".lib" not in file.name]
    return found[0].resolve() if found else None


def _is_numpys_own() -> bool:
    """Say whether NumPy's products are MKL's already, whose threads are then the user's business."""
    built: Any = np.show_config(mode="dicts")
    return "mkl" in str(built.get("Build Dependencies", {}).get("blas", {}).get("name", "")).lower()


def multiply(a: Any, b: Any, out: Any) -> Any:
    """``out = a @ b`` by MKL where all three are rows or columns of one dtype, else by NumPy."""
    rows, inner = a.shape
    columns = b.shape[1]
    size = out.itemsize
    order_a, lead_a = _order(a, size)
    order_b, lead_b = _order(b, size)
    small = rows == 1 or columns == 1 or inner == 0 or rows == 0 or columns == 0
    if small or not lead_a or not lead_b or out.dtype.char not in "fd" or not out.flags.c_contiguous:
        return np.matmul(a, b, out=out)
    function = load().cblas_sgemm if size == 4 else load().cblas_dgemm
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


def exp2(x: Any, out: Any = None) -> Any:
    """Return ``2^x`` of finite numbers, into ``out`` where it is given; both are contiguous, and may be the same."""
    x = np.asarray(x)
    out = np.empty_like(x) if out is None else out
    function = load().vmsExp2 if x.itemsize == 4 else load().vmdExp2
    function(x.size, x.__array_interface__["data"][0], out.__array_interface__["data"][0], _QUIETLY)
    return out
