"""The query-key pairs that a mask or a bias is asked about: all of a call, or one tile of it.

Masks and biases see nothing else of a call, so that a tile of them costs only a tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from .arrays import Array, as_array, default_int, dtype_name, is_traced, scalar_like

__all__ = ["Pairs", "Range", "Span"]

Span = tuple[int, int]
"""A half-open range of indices ``(start, stop)``."""

Range = tuple[Any, Any]
"""Smallest and largest of some values: Python integers, or traced ones."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs ``(batch, head, query, key)`` as index arrays that broadcast to ``(..., Hq, Lq, Lk)``.

    ``heads``, ``queries`` and ``keys`` are the tile's half-open index ranges; ``item`` picks one batch item, ``None``
    means all of ``batch_shape``. Positions are those of the whole call: an integer ``n`` stands for ``n, n + 1, ...``,
    an integer array ``(..., L)`` for itself.
    """

    xp: ModuleType
    batch_shape: tuple[int, ...]
    heads: Span
    queries: Span
    keys: Span
    query_positions: int | Array = 0
    key_positions: int | Array = 0
    item: tuple[int, ...] | None = None
    device: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that everything here broadcasts to."""
        spans = (self.heads, self.queries, self.keys)
        batch = self.batch_shape if self.item is None else ()
        return (*batch, *(stop - start for start, stop in spans))

    def tile(self, queries: Span, keys: Span, heads: Span | None = None, item: tuple[int, ...] | None = None) -> Pairs:
        """Return the pairs of a smaller tile, its ranges counted in the whole call."""
        return replace(self, queries=queries, keys=keys, heads=heads or self.heads, item=item or self.item)

    # The four index arrays of the formula

    @property
    def batch(self) -> Array:
        """The row-major number of each batch item, ``(..., 1, 1, 1)``."""
        count = 1
        for size in self.batch_shape:
            count *= size
        numbers = self.xp.reshape(self.indices((0, count)), self.batch_shape)
        return self.per_item(numbers)

    @property
    def head(self) -> Array:
        """The query head, ``(Hq, 1, 1)``."""
        return self.indices(self.heads)[:, None, None]

    @property
    def query_index(self) -> Array:
        """The row of the query in the call, ``(Lq, 1)``."""
        return self.indices(self.queries)[:, None]

    @property
    def key_index(self) -> Array:
        """The row of the key in the call, ``(1, Lk)``."""
        return self.indices(self.keys)[None, :]

    @property
    def query_position(self) -> Array:
        """The position of each query, ``(..., 1, Lq, 1)`` or ``(Lq, 1)``."""
        if _is_start(self.query_positions):
            return self.indices(self.queries, self.query_positions)[:, None]
        return as_index(self.xp, self.per_query(self.query_positions))

    @property
    def key_position(self) -> Array:
        """The position of each key, ``(..., 1, 1, Lk)`` or ``(1, Lk)``."""
        if _is_start(self.key_positions):
            return self.indices(self.keys, self.key_positions)[None, :]
        return as_index(self.xp, self.per_key(self.key_positions))

    # Tiles of a caller's arrays

    def per_item(self, x: Array | int) -> Array | int:
        """Shape a value per batch item, ``(...)``, to ``(..., 1, 1, 1)``."""
        if isinstance(x, int):
            return x
        return self._pick_item(as_array(self.xp, x), trailing=0)[..., None, None, None]

    def per_query(self, x: Array) -> Array:
        """Shape a value per query, ``(..., Lq)``, to ``(..., 1, Lq, 1)``."""
        x = self._pick_item(as_array(self.xp, x), trailing=1)
        return self.cut(x, -1, self.queries)[..., None, :, None]

    def per_key(self, x: Array) -> Array:
        """Shape a value per key, ``(..., Lk)``, to ``(..., 1, 1, Lk)``."""
        x = self._pick_item(as_array(self.xp, x), trailing=1)
        return self.cut(x, -1, self.keys)[..., None, None, :]

    def per_head(self, x: Array) -> Array:
        """Shape a value per query head, ``(..., Hq)``, to ``(..., Hq, 1, 1)``."""
        return self.cut(as_array(self.xp, x), -1, self.heads)[..., None, None]

    def per_pair(self, x: Array) -> Array:
        """Cut this tile from an array that broadcasts to ``(..., Hq, Lq, Lk)``; axes of size 1 stay."""
        x = self._pick_item(as_array(self.xp, x), trailing=3)
        for axis, span in zip((-1, -2, -3), (self.keys, self.queries, self.heads), strict=True):
            if x.ndim >= -axis and x.shape[axis] != 1:
                x = self.cut(x, axis, span)
        return x

    # How a tile is cut, which a backend's loop may do in its own way

    def cut(self, x: Array, axis: int, span: Span) -> Array:
        """Return ``x`` at the indices of ``span`` along a negative ``axis``."""
        if span == (0, x.shape[axis]):
            return x
        return x[(..., slice(*span), *(slice(None),) * (-axis - 1))]

    def spread(self, x: Array, axis: int, span: Span, size: int) -> Array:
        """Undo :meth:`cut`: put ``x`` among zeros, the axis being ``size`` long."""
        if span == (0, size):
            return x
        shapes = [(*x.shape[:axis], count, *x.shape[x.ndim + axis + 1 :]) for count in (span[0], size - span[1])]
        before, after = (self.xp.zeros(shape, dtype=x.dtype, device=self.device) for shape in shapes)
        return self.xp.concat([before, x, after], axis=axis)

    def indices(self, span: Span, start: int | Array = 0) -> Array:
        """Return the integers of ``span``, shifted by ``start``."""
        indices = self.xp.arange(*span, device=self.device)
        return indices if isinstance(start, int) and start == 0 else indices + as_index(self.xp, start)

    # Bounds of a tile: Python integers where they are known, traced 0-d arrays where not

    def query_range(self) -> Range | None:
        """Smallest and largest query position, ``None`` for an empty tile."""
        return self._range(self.query_positions, self.queries, self.per_query)

    def key_range(self) -> Range | None:
        """Smallest and largest key position, ``None`` for an empty tile."""
        return self._range(self.key_positions, self.keys, self.per_key)

    def ends(self, span: Span) -> Range | None:
        """First and last index of a span, ``None`` for an empty one."""
        return (span[0], span[1] - 1) if span[0] < span[1] else None

    def _range(self, positions: Any, span: Span, cut: Any) -> Range | None:
        ends = self.ends(span)
        if ends is None:
            return None
        if not _is_start(positions):
            return value_range(self.xp, as_index(self.xp, cut(positions)))
        start = positions if is_traced(positions) else int(positions)
        return start + ends[0], start + ends[1]

    def _pick_item(self, x: Array, trailing: int) -> Array:
        if self.item is None or x.ndim <= trailing:
            return x
        batch_axes = x.ndim - trailing
        index = self.item[len(self.item) - batch_axes :]
        return x[tuple(0 if size == 1 else i for i, size in zip(index, x.shape[:batch_axes], strict=True))]


def _is_start(positions: int | Array) -> bool:
    return isinstance(positions, int) or positions.ndim == 0


def as_index(xp: ModuleType, x: Array | int) -> Array | int:
    """Return integers in the default signed dtype, in which differences do not wrap as they would in uint32 or int8.

    What is too large for it becomes its largest number.
    """
    if isinstance(x, int):
        return x
    x, dtype = as_array(xp, x), default_int(xp)
    if x.dtype == dtype:
        return x
    index = xp.astype(x, dtype)
    if not dtype_name(x.dtype).startswith("uint"):
        return index
    return xp.where(index < 0, scalar_like(xp, xp.iinfo(dtype).max, index), index)


def value_range(xp: ModuleType, x: Array) -> Range | None:
    """Smallest and largest value of an integer array, ``None`` for an empty one."""
    if 0 in x.shape:
        return None
    low, high = xp.min(x), xp.max(x)
    return (low, high) if is_traced(low) else (int(low), int(high))
