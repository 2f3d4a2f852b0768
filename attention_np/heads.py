"""Keys and values of one key/value head as BLAS wants them, shared by the tiles of its queries."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from attention_core.pairs import Span

__all__ = ["Head", "Heads", "blas_ready"]

_GRAIN = 128  # keys that share one largest norm


def blas_ready(x: Any, dtype: Any) -> Any:
    """Return a matrix of ``dtype`` whose rows BLAS can read; a copy only where it must be one."""
    x = x.astype(dtype, copy=False)
    size = x.itemsize
    good = x.strides[1] == size and x.strides[0] >= size * x.shape[1] and x.strides[0] % size == 0
    return x if good and x.flags.aligned else np.ascontiguousarray(x)


class Head:
    """One head's keys ``(Lk, D)`` and values ``(Lk, Dv)`` in the compute dtype, and what is derived from them once."""

    def __init__(self, key: Any, value: Any, dtype: Any) -> None:
        self.key = blas_ready(key, dtype)
        self.value = blas_ready(value, dtype)
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}

    def columns(self) -> Any:
        """Keys as columns over a row of ones, ``(D + 1, Lk)``: the ones take a number per query into the product."""
        return self._once("columns", lambda: _over_ones(self.key))

    def value_columns(self) -> Any:
        """Values as columns over a row of ones, ``(Dv + 1, Lk)``."""
        return self._once("value_columns", lambda: _over_ones(self.value))

    def largest_key(self, keys: Span) -> float:
        """Return a bound on the norms of these keys; NaN or infinity where one of them is not finite."""
        norms = self._once("norms", lambda: _largest_norms(self.key))
        return float(norms[keys[0] // _GRAIN : -(-keys[1] // _GRAIN)].max(initial=0))

    def largest_value(self, keys: Span) -> float:
        """Return a bound on the norms of these values; NaN or infinity where one of them is not finite."""
        norms = self._once("value_norms", lambda: _largest_norms(self.value))
        return float(norms[keys[0] // _GRAIN : -(-keys[1] // _GRAIN)].max(initial=0))

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        with self._lock:
            if name not in self._made:
                self._made[name] = make()
            return self._made[name]


def _over_ones(x: Any) -> Any:
    columns = np.empty((x.shape[1] + 1, x.shape[0]), x.dtype)
    columns[:-1] = x.T
    columns[-1] = 1
    return columns


def _largest_norms(x: Any) -> Any:
    """Return the largest norm of each run of rows, rounded up."""
    blocks = -(-x.shape[0] // _GRAIN)
    norms = np.zeros(blocks * _GRAIN, x.dtype)
    ones = np.ones(x.shape[1], x.dtype)
    for row in range(0, x.shape[0], 1024):
        rows = x[row : row + 1024]
        np.matmul(rows * rows, ones, out=norms[row : row + len(rows)])
    return np.sqrt(norms.reshape(blocks, _GRAIN).max(axis=1)) * (1 + 1e-3)


class Heads:
    """The heads in use; one is dropped after the last of its jobs."""

    def __init__(self, key: Any, value: Any, dtype: Any, jobs: dict[Any, int]) -> None:
        self._key, self._value, self._dtype = key, value, dtype
        self._remaining = dict(jobs)
        self._lock = threading.Lock()
        self._held: dict[Any, Head] = {}

    def get(self, item: tuple[int, ...], head: int) -> Head:
        """Return a head, made by the first that asks."""
        where = (*item, head)
        with self._lock:
            if where not in self._held:
                self._held[where] = Head(self._key[where], self._value[where], self._dtype)
            return self._held[where]

    def done(self, item: tuple[int, ...], head: int) -> None:
        """Say that one of the head's jobs has ended."""
        where = (*item, head)
        with self._lock:
            self._remaining[where] -= 1
            if not self._remaining[where]:
                self._held.pop(where, None)
