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


class Workspace:
    """Named flat buffers, grown as needed, of which :meth:`take` gives the beginning in any shape."""

    def __init__(self) -> None:
        self._buffers: dict[str, Any] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array of arbitrary contents; it is that of the last call with this name."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size or buffer.dtype != dtype:
            buffer = self._buffers[name] = np.empty(size, dtype)
        return buffer[:size].reshape(shape)

    def ones(self, size: int, dtype: Any) -> Any:
        """Return a vector of ones."""
        buffer = self._buffers.get("ones")
        if buffer is None or buffer.size < size or buffer.dtype != dtype:
            buffer = self._buffers["ones"] = np.ones(max(size, 512), dtype)
        return buffer[:size]

    def nbytes(self) -> int:
        """Return what all buffers hold."""
        return sum(buffer.nbytes for buffer in self._buffers.values())


_LOCAL = threading.local()


@contextmanager
def workspace() -> Iterator[Workspace]:
    """Lend this thread's workspace; a call from inside a caller's rule gets another one."""
    mine = _LOCAL.__dict__.pop("kept", None) or Workspace()
    yield mine
    if mine.nbytes() <= _KEPT_BYTES:
        _LOCAL.kept = mine
