"""Buffers that a thread keeps from tile to tile, so that a tile allocates nothing of its size."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["Workspace", "workspace"]

_KEPT_BYTES = 16 * 2**20
_KEPT_VIEWS = 64
_LINE = 64
_NO_VIEWS: dict[Any, Any] = {}


class Workspace:
    """Named buffers, grown as needed, of which :meth:`take` gives the beginning in any shape.

    They begin at whole lines of the cache: vector instructions read them faster, and their results can depend on that.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Any] = {}
        self._views: dict[str, dict[Any, Any]] = {}
        self._ones: dict[str, Any] = {}
        self.nbytes = 0

    def take(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an array of arbitrary contents; it is that of the last call with this name."""
        known = self._views.get(name, _NO_VIEWS).get((shape, dtype.char))
        return self._view(name, shape, dtype) if known is None else known

    def _view(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        size = math.prod(shape) * dtype.itemsize
        views = self._views.setdefault(name, {})
        if name not in self._buffers or self._buffers[name].size < size:
            self.nbytes += size - (self._buffers[name].size if name in self._buffers else 0)
            self._buffers[name] = _aligned(size)
            views.clear()
        if len(views) >= _KEPT_VIEWS:
            views.clear()
        views[shape, dtype.char] = view = self._buffers[name][:size].view(dtype).reshape(shape)
        return view

    def ones(self, size: int, dtype: np.dtype[Any]) -> Any:
        """Return a vector of ones."""
        ones = self._ones.get(dtype.char)
        if ones is None or ones.size < size:
            ones = self._ones[dtype.char] = np.ones(max(size, 512), dtype)
        return ones[:size]


def _aligned(size: int) -> Any:
    """Return bytes of arbitrary contents that begin at a line of the cache."""
    buffer = np.empty(size + _LINE, np.uint8)
    first = -buffer.ctypes.data % _LINE
    return buffer[first : first + size]


_LOCAL = threading.local()


@contextmanager
def workspace() -> Iterator[Workspace]:
    """Lend this thread's workspace; a call from inside a caller's rule gets another one."""
    mine = _LOCAL.__dict__.pop("kept", None) or Workspace()
    yield mine
    if mine.nbytes <= _KEPT_BYTES:
        _LOCAL.kept = mine
