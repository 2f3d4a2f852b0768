"""What a tile adds to its products and hides of them: biases by tile, masks as 0 and 1, dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from attention_core.biases import Bias
from attention_core.biases.algebra import Sum
from attention_core.biases.distance import Alibi, Relative
from attention_core.pairs import Pairs, Span
from attention_core.problem import Problem

from .plan import ASK, Plan, Segment, TilePlan

__all__ = ["HUGE", "Distances", "Place", "Seen", "UnboundedBias", "bias_tile", "kept_tile", "seen_tile"]

HUGE = 1e37  # a bias beyond this overflows float32 when it meets a score


class UnboundedBias(Exception):
    """A bias of NaN or of an infinity that is not a mask: the definition has to compute this tile."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tile stands in a call: its batch item, query heads and rows, and the call's pairs."""

    problem: Problem
    whole: Pairs
    item: tuple[int, ...]
    heads: Span
    tile: TilePlan

    def pairs(self, rows: Span, keys: Span) -> Pairs:
        """Return the pairs of some of the tile's rows, counted within the tile."""
        first = self.tile.rows[0]
        return self.whole.tile((first + rows[0], first + rows[1]), keys, self.heads, self.item or None)


@dataclass(frozen=True, slots=True)
class Seen:
    """1 for visible pairs and 0 for masked ones, for the rows ``rows`` of a tile; the others see every key."""

    rows: Span
    values: Any  # broadcasts to (G, rows, keys)


@dataclass(frozen=True, eq=False)
class Distances:
    """A bias that depends on ``key_position - query_position`` only: a vector a head, of which each tile is a view."""

    vector: Any  # (Hq, Lq + Lk - 1), times the exponential's unit
    queries: int

    @classmethod
    def of(cls, problem: Problem, unit: float) -> Distances | None:
        """Return the vectors of a call's bias, or ``None`` where it is not of this kind, or not finite."""
        p = problem
        if p.bias is None or not _by_distance(p.bias):
            return None
        if not (isinstance(p.query_positions, int) and isinstance(p.key_positions, int)):
            return None
        pairs = distance_pairs(p)
        values = np.broadcast_to(p.bias.values(pairs, p.dtype), pairs.shape)[:, 0, :]
        values = np.multiply(values, p.dtype.type(unit), order="C")
        return cls(values, p.sizes.queries) if np.abs(values).max(initial=0) < HUGE else None

    def tile(self, heads: Span, rows: Span, keys: Span) -> Any:
        """Return the bias of a tile, ``(G, rows, keys)``, a view."""
        vectors = self.vector[heads[0] : heads[1], keys[0] - rows[0] + self.queries - 1 :]
        step = self.vector.itemsize
        shape = (heads[1] - heads[0], rows[1] - rows[0], keys[1] - keys[0])
        return as_strided(vectors, shape, (self.vector.strides[0], -step, step), writeable=False)

    def largest_in(self, place: Place, segment: Segment) -> float:
        """Return the largest bias of a segment."""
        (a, b), keys, start = segment.rows, segment.keys, place.tile.rows[0]
        first = keys[0] - (start + b) + self.queries
        last = keys[1] - (start + a) + self.queries - 1
        return float(self.vector[slice(*place.heads), first:last].max())


def distance_pairs(problem: Problem) -> Pairs:
    """Return one query's pairs with a key at each distance of the call, ``(Hq, 1, Lq + Lk - 1)``."""
    p, sizes = problem, problem.sizes
    first = p.key_positions - p.query_positions - sizes.queries + 1
    return Pairs(np, (), (0, sizes.heads), (0, 1), (0, sizes.queries + sizes.keys - 1), 0, first)


def _by_distance(bias: Bias) -> bool:
    if isinstance(bias, Sum):
        return _by_distance(bias.left) and _by_distance(bias.right)
    return isinstance(bias, (Alibi, Relative))


def bias_tile(
    place: Place, segment: Segment, distances: Distances | None, unit: float, *, proven: bool = False
) -> tuple[Any, Any]:
    """Return a segment's bias times ``unit``, and where it is ``-inf`` (``None`` where it nowhere is).

    ``proven`` says that every visible bias is finite, as after a forward pass whose lse is.
    """
    p, rows = place.problem, segment.rows
    if distances is not None:
        first = place.tile.rows[0]
        return distances.tile(place.heads, (first + rows[0], first + rows[1]), segment.keys), None
    assert p.bias is not None
    values = p.bias.values(place.pairs(rows, segment.keys), p.dtype)
    lowest, highest = values.min(), values.max()
    if not highest < HUGE:
        if not proven:
            raise UnboundedBias
        values = np.where(values < HUGE, values, 0)
        lowest = values.min()
    if lowest > -HUGE:
        return values if unit == 1 else values * p.dtype.type(unit), None
    hidden = values == -np.inf
    finite = np.where(hidden, 0, values)
    return finite if unit == 1 else np.maximum(finite, -HUGE) * p.dtype.type(unit), hidden


def seen_tile(place: Place, plan: Plan, segment: Segment, hidden: Any) -> Seen | None:
    """Return which pairs of a segment are visible, ``None`` where all are."""
    p, (a, b) = place.problem, segment.rows
    seen = None
    if segment.pattern == ASK:
        assert p.mask is not None
        values = p.mask.visible(place.pairs(segment.masked, segment.keys))
        seen = Seen(segment.masked, values.astype(p.dtype))
    elif segment.masked[0] < segment.masked[1]:
        seen = Seen(segment.masked, plan.pattern(segment.pattern, p.dtype))
    if hidden is None:
        return seen
    shape = (*hidden.shape[:-2], b - a, segment.keys[1] - segment.keys[0])
    values = np.array(np.broadcast_to(~hidden, shape), p.dtype)
    if seen is not None:
        first, last = seen.rows[0] - a, seen.rows[1] - a
        values = values * np.ones_like(seen.values[..., :1, :1])  # the mask may differ by head where the bias does not
        values[..., first:last, :] *= seen.values
    return Seen((a, b), values)


def kept_tile(place: Place, segment: Segment) -> Any:
    """Return the booleans of dropout for a segment, ``None`` without dropout."""
    dropout = place.problem.dropout
    if dropout is None or dropout.rate == 0:
        return None
    return dropout.kept(place.pairs(segment.rows, segment.keys))
