"""Which keys each tile of queries looks at: segments seen in full, in part by a known pattern, or by asking the mask.

A plan comes from a mask's row intervals where it has them, else from asking the mask tile by tile. Plans of
intervals are kept, and so are those of masks that hold no arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from attention_core.masks import Mask, Visibility
from attention_core.masks.intervals import row_intervals
from attention_core.pairs import Pairs, Span
from attention_core.problem import Problem

__all__ = ["ASK", "Patterns", "Plan", "Segment", "TilePlan", "TileShape", "has_few_queries", "plans_of", "tile_shape"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class TileShape(NamedTuple):
    """Queries of a tile (of each head), keys of a segment that is seen in full, keys of one that is seen in part."""

    queries: int
    full: int
    part: int


class Segment(NamedTuple):
    """Keys that a tile looks at, the tile's rows that see any of them, and the rows among those that see only some.

    ``masked`` is empty where all rows see all of the keys. ``pattern`` is the number of what the masked rows see, or
    ``ASK`` where the mask itself must be asked.
    """

    keys: Span
    rows: Span
    masked: Span
    pattern: int


ASK = -1


@dataclass(frozen=True, eq=False, slots=True)
class TilePlan:
    """The segments of the queries ``rows``, in ascending order of keys; ``cost`` is the number of scores."""

    rows: Span
    segments: tuple[Segment, ...]
    cost: int

    @property
    def span(self) -> Span:
        """The range of keys that contains all segments."""
        return (self.segments[0].keys[0], self.segments[-1].keys[1]) if self.segments else (0, 0)


@dataclass(frozen=True, eq=False)
class Plan:
    """The tiles of one batch item and key/value head, and the patterns of their masked segments."""

    tiles: tuple[TilePlan, ...]
    patterns: Patterns

    @cached_property
    def cost(self) -> int:
        """Return the number of scores."""
        return sum(tile.cost for tile in self.tiles)

    def pattern(self, number: int, dtype: np.dtype[Any]) -> Array:
        """Return 1 for visible pairs and 0 for masked ones, ``(masked rows, keys)``."""
        return self.patterns.array(number, dtype)


class Patterns:
    """What rows see of a range of keys, by their intervals; equal ones, as in all tiles of a diagonal, are one."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._bounds: list[tuple[Array, Array, int]] = []
        self._arrays: dict[tuple[int, str], Array] = {}

    def number(self, start: Array, stop: Array, keys: Span) -> int:
        """Return the number of the pattern of rows that see ``[start, stop)``, cut to ``keys``."""
        width = keys[1] - keys[0]
        start, stop = (np.clip(x - keys[0], 0, width).astype(np.int32) for x in (start, stop))
        key = (width, start.tobytes(), stop.tobytes())
        if key not in self._numbers:
            self._numbers[key] = len(self._bounds)
            self._bounds.append((start, stop, width))
        return self._numbers[key]

    def array(self, number: int, dtype: np.dtype[Any]) -> Array:
        """Return a pattern as 1 and 0; the first few are kept."""
        known = self._arrays.get((number, dtype.char))
        if known is None:
            start, stop, width = self._bounds[number]
            columns = np.arange(width, dtype=np.int32)
            known = ((columns >= start[:, None]) & (columns < stop[:, None])).astype(dtype)
            if number < _KEPT_PATTERNS:
                self._arrays[number, dtype.char] = known
        return known


_KEPT_PATTERNS = 8  # of at most 512 x 128 numbers: 2 MiB in float32


def tile_shape(problem: Problem, few: bool) -> TileShape:
    """Return the tile for a call; it depends on the sizes of one head only."""
    sizes = problem.sizes
    if few:
        width = max(512, _FEW_SCORES // (sizes.queries * sizes.group))
        return TileShape(sizes.queries, width, width)
    rows = 256 if sizes.queries <= 512 else 512
    return TileShape(max(1, rows // sizes.group), 512, 128)


def has_few_queries(problem: Problem) -> bool:
    """Say whether reading the keys costs more than computing with them, as when a model writes token by token."""
    return problem.sizes.queries * problem.sizes.group <= _FEW_ROWS


_FEW_ROWS = 16
_FEW_SCORES = 2**18


def plans_of(problem: Problem, shape: TileShape) -> dict[tuple[tuple[int, ...], int], Plan]:
    """Return the plan of each batch item and key/value head; those that cannot differ are one object."""
    p = problem
    by_item, by_head = _varies_by_item(p), p.mask is not None and p.mask.extent()[-3] != 1
    made: dict[tuple[tuple[int, ...], int], Plan] = {}
    plans = {}
    for item in np.ndindex(*p.sizes.batch):
        for head in range(p.sizes.kv_heads):
            key = (item if by_item else (0,) * len(item), head if by_head else 0)
            if key not in made:
                made[key] = _plan_of(p, *key, shape)
            plans[item, head] = made[key]
    return plans


def _varies_by_item(problem: Problem) -> bool:
    if problem.mask is None:
        return False
    positions = (x for x in (problem.query_positions, problem.key_positions) if not isinstance(x, int))
    axes = [*problem.mask.extent()[:-3], *(size for x in positions for size in x.shape[:-1])]
    return any(size != 1 for size in axes)


def _plan_of(problem: Problem, item: tuple[int, ...], head: int, shape: TileShape) -> Plan:
    p, positions = problem, (problem.query_positions, problem.key_positions)
    if (p.mask is None or p.mask.is_static()) and all(isinstance(x, int) for x in positions):
        return _static_plan(p.mask, p.sizes.queries, p.sizes.keys, p.sizes.group, positions, shape)
    heads = (head * p.sizes.group, (head + 1) * p.sizes.group)
    whole = p.pairs()
    return _make_plan(p.mask, whole.tile(whole.queries, whole.keys, heads, item or None), shape)


@lru_cache(maxsize=16)
def _static_plan(
    mask: Mask | None, queries: int, keys: int, group: int, positions: tuple[int, int], shape: TileShape
) -> Plan:
    return _make_plan(mask, Pairs(np, (), (0, group), (0, queries), (0, keys), *positions), shape)


def _make_plan(mask: Mask | None, pairs: Pairs, shape: TileShape) -> Plan:
    bounds = row_intervals(mask, pairs)
    queries = pairs.queries[1]
    if bounds is None:
        rows = [(r, min(r + shape.queries, queries)) for r in range(0, queries, shape.queries)]
        return Plan(tuple(_asked_tile(mask, pairs, each, shape) for each in rows), Patterns())
    trim = pairs.heads[1] - pairs.heads[0] == 1  # with several heads stacked, a range of rows is not contiguous
    start, stop = (x.astype(np.int32).tobytes() for x in bounds)
    plan = _known_plan if queries <= _KEPT_ROWS else _known_plan.__wrapped__
    return plan(start, stop, shape, trim)


_KEPT_ROWS = 2**16


@lru_cache(maxsize=16)
def _known_plan(start: bytes, stop: bytes, shape: TileShape, trim: bool) -> Plan:
    """Return the plan of rows that see ``[start, stop)``; kept, since the layers of a model share a mask."""
    starts, stops = (np.frombuffer(x, np.int32) for x in (start, stop))
    patterns = Patterns()
    rows = (slice(r, r + shape.queries) for r in range(0, len(starts), shape.queries))
    tiles = (_known_tile(starts[cut], stops[cut], cut.start, shape, trim, patterns) for cut in rows)
    return Plan(tuple(tiles), patterns)


def _tile(rows: Span, segments: list[Segment]) -> TilePlan:
    cost = sum((s.keys[1] - s.keys[0]) * (s.rows[1] - s.rows[0]) for s in segments)
    return TilePlan(rows, tuple(segments), cost)


def _known_tile(start: Array, stop: Array, row: int, shape: TileShape, trim: bool, patterns: Patterns) -> TilePlan:
    seeing, rows = start < stop, (row, row + len(start))
    if not seeing.any():
        return _tile(rows, [])
    count, first, last = len(start), int(start[seeing].min()), int(stop[seeing].max())
    full = _full_range(start, stop, seeing, shape.part)
    cuts = _cut(first, full[0], shape.part) + _cut(full[1], last, shape.part) if full else _cut(first, last, shape.part)
    segments = [each for span in cuts if (each := _part(start, stop, span, trim, patterns)) is not None]
    if full:
        segments += [Segment(span, (0, count), (0, 0), 0) for span in _cut(*full, shape.full)]
    return _tile(rows, sorted(segments))


def _full_range(start: Array, stop: Array, seeing: Array, grain: int) -> Span | None:
    """Return the keys that all rows see, cut to whole grains where the rows' own ends are not reached together."""
    if not seeing.all():
        return None
    low, high = int(start.max()), int(stop.min())
    low = low if low == start.min() else -(-low // grain) * grain
    high = high if high == stop.max() else high // grain * grain
    return (low, high) if low < high else None


def _cut(first: int, last: int, width: int) -> list[Span]:
    """Cut a range at the multiples of ``width``."""
    edges = [first, *range((first // width + 1) * width, last, width), last]
    return [(a, b) for a, b in pairwise(edges) if a < b]


def _part(start: Array, stop: Array, keys: Span, trim: bool, patterns: Patterns) -> Segment | None:
    """Return the segment of keys that some rows do not see, or see in part."""
    some = np.flatnonzero((start < keys[1]) & (stop > keys[0]))
    if not some.size:
        return None
    rows = (int(some[0]), int(some[-1]) + 1) if trim else (0, len(start))
    within = slice(*rows)
    partly = np.flatnonzero((start[within] > keys[0]) | (stop[within] < keys[1]))
    if not partly.size:
        return Segment(keys, rows, (0, 0), 0)
    masked = (rows[0] + int(partly[0]), rows[0] + int(partly[-1]) + 1)
    return Segment(keys, rows, masked, patterns.number(start[slice(*masked)], stop[slice(*masked)], keys))


def _asked_tile(mask: Mask | None, pairs: Pairs, rows: Span, shape: TileShape) -> TilePlan:
    assert mask is not None
    segments, every = [], (0, rows[1] - rows[0])
    for keys in _cut(0, pairs.keys[1], shape.full):
        seen = mask.visibility(pairs.tile(rows, keys))
        if seen is not Visibility.EMPTY:
            mixed = seen is Visibility.MIXED
            segments.append(Segment(keys, every, every, ASK) if mixed else Segment(keys, every, (0, 0), 0))
    return _tile(rows, segments)
