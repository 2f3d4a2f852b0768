"""Masks as pictures: for a terminal and for notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from types import ModuleType
from typing import Any

from ..arrays import Array, array_namespace, broadcast_shapes, describe
from ..pairs import Pairs
from ..sizes import Sizes
from ..values import static_int
from .algebra import Mask
from .tiles import Visibility

__all__ = ["Drawing", "dense_array", "mask_pairs", "sizes_of"]


def sizes_of(queries: int, keys: int, heads: int, batch: tuple[int, ...]) -> Sizes:
    """Return the sizes of a call, for asking a mask outside of any, or raise for what is no size."""
    if not isinstance(batch, tuple):
        raise TypeError(f"`batch` must be a tuple of sizes; got {describe(batch)}")
    batch = tuple(static_int("batch", size, least=0) for size in batch)
    named = (("heads", heads), ("queries", queries), ("keys", keys))
    heads, queries, keys = (static_int(name, size, least=0) for name, size in named)
    return Sizes(batch, heads, heads, queries, keys, 1, 1)


def mask_pairs(
    mask: Mask, sizes: Sizes, query_positions: Any, key_positions: Any, xp: ModuleType | None = None
) -> Pairs:
    """Return the pairs of a call of these sizes, for asking a mask outside of any call."""
    from ..kernels import default_namespace
    from ..problem import settle_positions

    mask.check(sizes)
    positions = settle_positions(mask, query_positions, key_positions, sizes)
    arrays = [*mask.arrays(), *(p for p in positions if not isinstance(p, int))]
    if xp is None:
        xp = array_namespace(*(("mask", x) for x in arrays)) if arrays else default_namespace()
    spans = ((0, sizes.heads), (0, sizes.queries), (0, sizes.keys))
    return Pairs(xp, sizes.batch, *spans, *positions)


def dense_array(mask: Mask, sizes: Sizes, query_positions: Any, key_positions: Any, xp: ModuleType | None) -> Array:
    """Return a mask as booleans ``(..., heads, queries, keys)``."""
    pairs = mask_pairs(mask, sizes, query_positions, key_positions, xp)
    return pairs.xp.broadcast_to(mask.visible(pairs), pairs.shape)


@dataclass(frozen=True)
class Drawing:
    """A mask's first head and batch item, pair by pair and tile by tile."""

    title: str
    rows: tuple[tuple[bool, ...], ...]
    tile: int
    tiles: tuple[tuple[Visibility, ...], ...]

    @classmethod
    def of(
        cls,
        mask: Mask,
        queries: int,
        keys: int,
        tile: int,
        query_positions: Any = 0,
        key_positions: Any = 0,
        xp: ModuleType | None = None,
    ) -> Drawing:
        """Draw a mask over ``queries x keys``, its tiles of ``tile x tile``."""
        *batch, heads = mask.extent()[:-2]
        batches = [tuple(p.shape[:-1]) for p in (query_positions, key_positions) if hasattr(p, "shape")]
        sizes = sizes_of(queries, keys, heads, broadcast_shapes(tuple(batch), *batches))
        tile = static_int("tile", tile, least=1)
        pairs = mask_pairs(mask, sizes, query_positions, key_positions, xp)
        title = f"{mask!r}: {queries} queries (down) x {keys} keys"
        if 0 in pairs.shape:
            return cls(title, (), tile, ())
        seen = pairs.xp.broadcast_to(mask.visible(pairs), pairs.shape)
        first = seen[(*(0,) * (len(pairs.shape) - 2), ...)]
        rows = tuple(tuple(bool(first[i, j]) for j in range(keys)) for i in range(queries))
        one = pairs.tile(pairs.queries, pairs.keys, heads=(0, 1), item=(0,) * len(sizes.batch) or None)
        tiles = tuple(
            tuple(
                mask.visibility(one.tile((i, min(i + tile, queries)), (j, min(j + tile, keys))))
                for j in range(0, keys, tile)
            )
            for i in range(0, queries, tile)
        )
        return cls(title, rows, tile, tiles)

    def __str__(self) -> str:
        pairs = [" ".join("■" if seen else "·" for seen in row) for row in self.rows]
        signs = {Visibility.EMPTY: "·", Visibility.MIXED: "▒", Visibility.FULL: "█"}
        tiles = [" ".join(signs[tile] for tile in row) for row in self.tiles]
        return "\n".join([self.title, *pairs, self._legend(), *tiles])

    def _legend(self) -> str:
        flat = [tile for row in self.tiles for tile in row]
        full, mixed, empty = (flat.count(kind) for kind in (Visibility.FULL, Visibility.MIXED, Visibility.EMPTY))
        return f"tiles of {self.tile} x {self.tile}: {full} full (█), {mixed} mixed (▒), {empty} empty (·)"

    def _repr_html_(self) -> str:
        """Draw as SVG: visible pairs dark, tiles framed by kind."""
        colours = {Visibility.EMPTY: "#bbbbbb", Visibility.MIXED: "#e8a33d", Visibility.FULL: "#2f7d4f"}
        unit, keys = 10, len(self.rows[0]) if self.rows else 0
        squares = [
            f'<rect x="{j * unit}" y="{i * unit}" width="{unit - 1}" height="{unit - 1}" '
            f'fill="{"#33567d" if seen else "#eeeeee"}"/>'
            for i, row in enumerate(self.rows)
            for j, seen in enumerate(row)
        ]
        side = self.tile * unit
        frames = [
            f'<rect x="{j * side}" y="{i * side}" width="{side - 1}" height="{side - 1}" fill="none" '
            f'stroke="{colours[kind]}"/>'
            for i, row in enumerate(self.tiles)
            for j, kind in enumerate(row)
        ]
        size = f'width="{keys * unit}" height="{len(self.rows) * unit}"'
        return f"<p>{escape(self.title)}; {escape(self._legend())}</p><svg {size}>{''.join(squares + frames)}</svg>"

    def __repr__(self) -> str:
        return str(self)
