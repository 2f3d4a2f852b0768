"""Which tiles a call visits, in which order: first those where every pair is visible, then the mixed ones.

A mask of Python values at integer positions is asked once, while tracing, and the loops visit only what it leaves. One
that holds arrays, or traced positions, is asked inside the loop, at the cost of a few numbers a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from attention_core.masks import Mask, Visibility
from attention_core.pairs import Pairs, Span
from attention_core.sizes import Sizes

__all__ = ["Schedule", "Tiling", "make_schedule", "tiling_of"]

ROWS, KEYS = 512, 512  # a tile of scores this large stays in a core's second-level cache, and is worth two cores' work


@dataclass(frozen=True)
class Tiling:
    """Equal tiles along one axis; the last is moved back to end with the axis, and so may overlap the one before."""

    length: int
    size: int

    @property
    def count(self) -> int:
        """Number of tiles."""
        return -(-self.length // self.size)

    @property
    def overlaps(self) -> bool:
        """Whether the last tile repeats indices of the one before."""
        return self.count * self.size != self.length

    def start(self, tile: int) -> int:
        """Index of a tile's first element."""
        return min(tile * self.size, self.length - self.size)

    def span(self, tiles: Span) -> Span:
        """Indices of some tiles in a row."""
        return self.start(tiles[0]), self.start(tiles[1] - 1) + self.size


def tiling_of(length: int, largest: int) -> Tiling:
    """Return the fewest tiles of at most ``largest``, as equal as can be."""
    count = -(-length // largest)
    return Tiling(length, -(-length // count))


class Schedule(NamedTuple):
    """For each strip of queries: key tiles in the order to visit, how many are full, and how many there are in all.

    ``codes`` of a schedule that is settled at run time is ``False``: then every tile is asked when its turn comes.
    """

    order: np.ndarray
    full: np.ndarray
    visited: np.ndarray
    static: bool

    @property
    def mixed(self) -> bool:
        """Whether some tile is visited that is not full."""
        return bool((self.visited > self.full).any())


def make_schedule(
    mask: Mask | None, pairs: Pairs | None, sizes: Sizes, queries: Tiling, keys: Tiling, most: int | None = None
) -> Schedule | None:
    """Return the schedule; ``pairs`` are those of the whole call on NumPy, or ``None`` where that is not known.

    ``None`` where the mask has to be asked more often than ``most`` says.
    """
    shape = (queries.count, keys.count)
    if mask is not None and pairs is None:
        order = np.broadcast_to(np.arange(keys.count, dtype=np.int32), shape)
        return Schedule(order, np.zeros(queries.count, np.int32), np.full(queries.count, keys.count, np.int32), False)
    codes = np.full(shape, int(Visibility.FULL), np.int8)
    if mask is not None and pairs is not None:
        for asked, (q, k, code) in enumerate(_ask(mask, pairs, queries, keys)):
            if most is not None and asked >= most:
                return None
            codes[slice(*q), slice(*k)] = code
    if keys.overlaps:  # the repeated keys must be hidden
        codes[:, -1] = np.minimum(codes[:, -1], int(Visibility.MIXED))
    full, visited = ((codes >= int(least)).sum(1).astype(np.int32) for least in (Visibility.FULL, Visibility.MIXED))
    order = np.argsort(-codes, axis=1, kind="stable")[:, : max(1, visited.max())].astype(np.int32)
    return Schedule(order, full, visited, True)


def _ask(mask: Mask, pairs: Pairs, queries: Tiling, keys: Tiling) -> Iterator[tuple[Span, Span, int]]:
    """Yield the visibility of tiles: of many at once, of whose quarters each is asked where they are mixed."""
    regions: list[tuple[Span, Span]] = [((0, queries.count), (0, keys.count))]
    while regions:
        q, k = regions.pop()
        code = mask.visibility(pairs.tile(queries.span(q), keys.span(k)))
        yield q, k, int(code)
        if code == Visibility.MIXED and (q[1] - q[0], k[1] - k[0]) != (1, 1):
            regions.extend(product(_halves(q), _halves(k)))


def _halves(span: Span) -> list[Span]:
    first, last = span
    middle = (first + last) // 2
    return [part for part in ((first, middle), (middle, last)) if part[0] < part[1]]
