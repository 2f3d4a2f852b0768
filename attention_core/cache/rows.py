"""Rows of a batch, taken in a new order, some of them several times: what a beam search goes on with."""

from __future__ import annotations

from math import prod
from types import ModuleType
from typing import Any

from ..arrays import Array, array_namespace, as_array, describe, device_of, dtype_name, is_traced
from ..checks import fits
from ..pairs import as_index

__all__ = ["row_index", "take_rows"]


def row_index(xp: ModuleType, rows: Any, batch: tuple[int, ...], like: Array) -> Array:
    """Return the indices ``(*batch[:-1], n)`` into the flattened batch of ``rows (..., n)`` of its last axis.

    A row that there is none of is a ``ValueError`` where that is known; in a trace it is the nearest.
    """
    array_namespace(("rows", rows), ("lengths", like))
    if not hasattr(rows, "dtype") or "int" not in dtype_name(rows.dtype):
        raise TypeError(f"`rows` must be integers; got {describe(rows)}")
    if not batch or rows.ndim < 1 or not fits(tuple(rows.shape[:-1]), batch[:-1]):
        raise ValueError(
            f"`rows` must be (..., n), of the last of the batch axes {batch}; got shape {tuple(rows.shape)}"
        )
    rows, last = as_index(xp, as_array(xp, rows)), batch[-1]
    if not is_traced(rows) and bool(xp.any((rows < 0) | (rows >= last))):
        raise ValueError(f"`rows` must be at least 0 and below {last}, the size of the last batch axis")
    first = xp.arange(prod(batch[:-1]), device=device_of(xp, like)) * last
    return xp.reshape(first, (*batch[:-1], 1)) + xp.clip(rows, 0, last - 1)


def take_rows(xp: ModuleType, x: Array, batch: tuple[int, ...], index: Array) -> Array:
    """Return ``x (*batch, *rest)`` at indices into the flattened batch, ``(*index.shape, *rest)``."""
    rest = x.shape[len(batch) :]
    taken = xp.take(xp.reshape(x, (prod(batch), *rest)), xp.reshape(index, (-1,)), axis=0)
    return xp.reshape(taken, (*index.shape, *rest))
