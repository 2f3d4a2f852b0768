"""Masks as intervals: for each query the half-open range of key indices that it sees, where a rule has one.

A kernel that knows them skips and unmasks whole ranges of keys by arithmetic on ``Lq`` numbers instead of asking tile
by tile. ``row_intervals`` returns ``None`` for a mask that has none, or whose values are traced.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any, TypeAlias

from ..arrays import Array, is_traced
from ..pairs import Pairs, as_index
from .algebra import And, Mask, Not, Or
from .given import KeyLengths, QueryLengths, Segments
from .rules import Chunked, GlobalTokens, Prefix, SlidingWindow

__all__ = ["Bounds", "row_bounds", "row_intervals"]

Bounds: TypeAlias = tuple[Array, Array]


def row_intervals(mask: Mask | None, pairs: Pairs) -> Bounds | None:
    """Return ``(start, stop)``, each ``(..., Lq)``: query ``i`` sees exactly the keys ``start_i <= j < stop_i``.

    ``j`` is the key's index, ``0 <= start <= stop <= Lk``; ``pairs`` are those of a whole call, or of one of its items.

    >>> import numpy as np
    >>> from attention_core.masks import sliding_window
    >>> from attention_core.pairs import Pairs
    >>> row_intervals(sliding_window(1, 0), Pairs(np, (), (0, 1), (0, 3), (0, 4)))
    (array([0, 0, 1]), array([1, 2, 3]))
    """
    xp = pairs.xp
    bounds = (_same(pairs, 0), _same(pairs, pairs.keys[1])) if mask is None else row_bounds(mask, pairs)
    if bounds is None:
        return None
    start, stop = (xp.clip(x, 0, pairs.keys[1]) for x in bounds)
    batch = pairs.batch_shape if pairs.item is None else ()
    shape = (*batch, 1, pairs.queries[1] - pairs.queries[0], 1)
    start, stop = (xp.broadcast_to(x, shape)[..., 0, :, 0] for x in (start, xp.maximum(start, stop)))
    return start, stop


@singledispatch
def row_bounds(mask: Mask, pairs: Pairs) -> Bounds | None:
    """Return the bounds of :func:`row_intervals` that broadcast to ``(..., 1, Lq, 1)`` and may leave ``[0, Lk]``.

    Register a function for a mask of your own.
    """
    return None


def _same(pairs: Pairs, value: Any) -> Array:
    return pairs.query_index * 0 + value


def first_position(pairs: Pairs) -> Any:
    """Position of key 0 where positions count up by 1 (an integer, or one per batch item), else ``None``."""
    positions = pairs.key_positions
    if isinstance(positions, int) or positions.ndim == 0:
        return as_index(pairs.xp, positions)
    if is_traced(positions) or 0 in positions.shape:
        return None
    given: Array = pairs.key_position
    counted = pairs.key_index + given[..., :1]
    return given[..., :1] if bool(pairs.xp.all(given == counted)) else None


@row_bounds.register
def _(mask: SlidingWindow, pairs: Pairs) -> Bounds | None:
    first = first_position(pairs)
    if first is None:
        return None
    own = pairs.query_position - first
    start = _same(pairs, 0) if mask.left is None else own - mask.left
    stop = _same(pairs, pairs.keys[1]) if mask.right is None else own + mask.right + 1
    return start, stop


@row_bounds.register
def _(mask: KeyLengths, pairs: Pairs) -> Bounds | None:
    return _same(pairs, 0), _same(pairs, as_index(pairs.xp, pairs.per_item(mask.lengths)))


@row_bounds.register
def _(mask: QueryLengths, pairs: Pairs) -> Bounds | None:
    seeing = pairs.query_index < as_index(pairs.xp, pairs.per_item(mask.lengths))
    return _same(pairs, 0), pairs.keys[1] * as_index(pairs.xp, seeing)


@row_bounds.register
def _(mask: Prefix, pairs: Pairs) -> Bounds | None:
    first = first_position(pairs)
    if first is None:
        return None
    return _same(pairs, 0), _same(pairs, as_index(pairs.xp, pairs.per_item(mask.length)) - first)


@row_bounds.register
def _(mask: GlobalTokens, pairs: Pairs) -> Bounds | None:
    first = first_position(pairs)
    if first is None:
        return None
    xp, rest = pairs.xp, _same(pairs, mask.count - first)
    return _same(pairs, 0), xp.where(pairs.query_position < mask.count, _same(pairs, pairs.keys[1]), rest)


@row_bounds.register
def _(mask: Chunked, pairs: Pairs) -> Bounds | None:
    first = first_position(pairs)
    if first is None:
        return None
    start = pairs.query_position // mask.size * mask.size - first
    return start, start + mask.size


@row_bounds.register
def _(mask: Segments, pairs: Pairs) -> Bounds | None:
    xp = pairs.xp
    queries: Any = as_index(xp, pairs.per_query(mask.query_ids))
    keys: Any = as_index(xp, pairs.per_key(mask.query_ids if mask.key_ids is None else mask.key_ids))
    if is_traced(queries) or is_traced(keys) or keys.shape[-1] != _size(keys) or queries.shape[-2] != _size(queries):
        return None
    ids = xp.reshape(queries, (-1,))
    sorted_keys = _sorted(xp, xp.reshape(keys, (-1,)), ids)
    if sorted_keys is None:
        return None
    start, stop = (xp.searchsorted(sorted_keys, ids, side=side) for side in ("left", "right"))
    start, stop = (xp.where(ids >= 0, x, xp.zeros_like(x))[:, None] for x in (start, stop))
    return start, stop


def _size(x: Array) -> int:
    count = 1
    for size in x.shape:
        count *= size
    return count


def _sorted(xp: Any, ids: Array, others: Array) -> Array | None:
    """Return ids if they ascend, padding at the end as an id that none of the others has; else ``None``."""
    if 0 in (ids.shape[0], others.shape[0]):
        return ids
    first_document = xp.argmax(as_index(xp, ids >= 0))
    behind = (ids < 0) & (xp.arange(ids.shape[0]) > first_document)
    ids = xp.where(behind, xp.maximum(xp.max(ids), xp.max(others)) + 1, ids)
    return ids if bool(xp.all(xp.where(ids[:-1] < 0, -1, ids[:-1]) <= ids[1:])) else None


@row_bounds.register
def _(mask: And, pairs: Pairs) -> Bounds | None:
    left, right = row_bounds(mask.left, pairs), row_bounds(mask.right, pairs)
    if left is None or right is None:
        return None
    (a, b), (c, d) = left, right
    return pairs.xp.maximum(a, c), pairs.xp.minimum(b, d)


@row_bounds.register
def _(mask: Or, pairs: Pairs) -> Bounds | None:
    xp, left, right = pairs.xp, _within(mask.left, pairs), _within(mask.right, pairs)
    if left is None or right is None:
        return None
    (a, b), (c, d) = left, right
    start = xp.where(a == b, c, xp.where(c == d, a, xp.minimum(a, c)))
    joined = (xp.maximum(a, c) <= xp.minimum(b, d)) | (a == b) | (c == d)
    if is_traced(joined) or not bool(xp.all(joined)):
        return None
    return start, xp.where(a == b, d, xp.where(c == d, b, xp.maximum(b, d)))


@row_bounds.register
def _(mask: Not, pairs: Pairs) -> Bounds | None:
    bounds = _within(mask.mask, pairs)
    if bounds is None:
        return None
    xp, end = pairs.xp, pairs.keys[1]
    start, stop = bounds
    before = (start > 0) & (start < stop)  # the keys before the interval are seen, and so none may be behind it
    possible = ~before | (stop == end)
    if is_traced(possible) or not bool(xp.all(possible)):
        return None
    return xp.where(before | (start == stop), _same(pairs, 0), stop), xp.where(before, start, _same(pairs, end))


def _within(mask: Mask, pairs: Pairs) -> Bounds | None:
    bounds = row_bounds(mask, pairs)
    if bounds is None:
        return None
    start, stop = (pairs.xp.clip(x, 0, pairs.keys[1]) for x in bounds)
    return start, pairs.xp.maximum(start, stop)
