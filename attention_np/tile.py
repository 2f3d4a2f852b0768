"""One tile of queries while it is computed: scaled queries, sums so far, and the steps that both ways share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .call import Call, Where
from .heads import Head
from .plan import Plan, Segment
from .scores import HUGE, Place, Seen, kept_tile
from .workspace import Workspace

__all__ = ["Tile", "cap", "drop", "hide"]

_FEW_USES = 1024  # rows that see a key, under which it is not worth while to make a column of it


@dataclass(eq=False, slots=True)
class Tile:
    """The rows of a tile are the heads of a group, one after the other: ``n = G * rows``.

    ``queries (n, D + 1)`` are scaled for the exponential and the score's cap, and their last column is minus the row's
    reference; ``values (n, Dv)`` and ``totals (n,)`` are the sums so far.
    """

    call: Call
    place: Place
    plan: Plan
    head: Head
    space: Workspace
    group: int
    rows: int
    queries: Any
    values: Any
    totals: Any
    reference: Any
    bound: float = math.inf  # of the absolute scores without their bias

    @classmethod
    def of(cls, call: Call, where: Where, place: Place, space: Workspace) -> Tile:
        """Scale the queries of a tile and make room for its sums."""
        item, head, tile = where
        group, rows = place.heads[1] - place.heads[0], tile.rows[1] - tile.rows[0]
        dtype, n = call.problem.dtype, group * rows
        return cls(
            call=call,
            place=place,
            plan=call.plans[item, head],
            head=call.heads.get(item, head),
            space=space,
            group=group,
            rows=rows,
            queries=scaled_queries(call, where, space),
            values=space.take("values", (n, call.problem.sizes.value_depth), dtype),
            totals=space.take("totals", (n,), dtype),
            reference=space.take("reference", (n,), dtype),
        )

    def reset(self) -> None:
        """Begin the sums anew, with references of 0."""
        self.values[...] = 0
        self.totals[...] = 0
        self.reference[...] = 0
        self.queries[:, -1] = 0

    def largest_query(self) -> float:
        """Return the largest norm of the scaled queries."""
        queries = self.queries[:, :-1]
        squares = np.square(queries, out=self.space.take("squares", queries.shape, queries.dtype))
        return math.sqrt(float(np.matmul(squares, self.space.ones(squares.shape[1], squares.dtype)).max(initial=0)))

    def flat(self, segment: Segment) -> slice:
        """Return the stacked rows of a segment; several heads have all their rows in every segment."""
        return slice(*segment.rows) if self.group == 1 else slice(0, self.group * self.rows)

    def factors(self, *, extended: bool) -> tuple[Any, Any]:
        """Return what :meth:`scores` multiplies; ``extended`` products have the reference subtracted.

        Keys that few rows see are read where they lie, the others as columns.
        """
        if extended:
            return self.queries, self.head.columns()
        if self.call.few or self.plan.cost * self.group < _FEW_USES * len(self.head.key):
            return self.queries[:, :-1], self.head.key.T
        return self.queries[:, :-1], self.head.columns()[:-1]

    def scores(self, factors: tuple[Any, Any], segment: Segment) -> Any:
        """Return the products of a segment, ``(n, keys)``."""
        queries, columns = factors
        first, last = segment.keys
        queries = queries[self.flat(segment)]
        out = self.space.take("scores", (len(queries), last - first), queries.dtype)
        return self.call.multiply(queries, columns[:, first:last], out)

    def add(self, weights: Any, segment: Segment) -> None:
        """Add the weights' sums over the keys and, without those that are dropped, the weighted values."""
        rows, (first, last) = self.flat(segment), segment.keys
        self.totals[rows] += np.matmul(weights, self.space.ones(last - first, weights.dtype))
        if self.call.problem.dropout is not None:
            drop(weights, self.group, kept_tile(self.place, segment))
        values = self.head.value[first:last]
        if len(weights) == 1:  # `dot` reads the values once, `matmul` does not
            self.values[rows] += np.dot(weights[0], values)
            return
        product = self.space.take("product", (len(weights), values.shape[1]), weights.dtype)
        self.values[rows] += self.call.multiply(weights, values, product)

    def is_finite(self) -> bool:
        """Say whether all sums are finite: what is not has to be computed by the definition."""
        far = self.call.exponential.unit != 1 and float(self.reference.min()) < -HUGE  # where a bias was cut off
        return not far and math.isfinite(float(self.totals.sum()) + float(self.values.sum()))

    def finish(self, out: Any, lse: Any) -> None:
        """Divide by the denominators, the sink's share among them, and write ``(G, rows, Dv)`` and ``(G, rows)``."""
        shape = (self.group, self.rows)
        p = self.call.problem
        if lse is None and p.sinks is None and p.dropout is None and float(self.totals.min()) > 0:
            np.divide(self.values, self.totals[:, None], out=self.values)
            out[...] = self.values.reshape(*shape, -1)
            return
        totals = self.totals.astype(np.float64).reshape(shape)
        some = totals > 0
        totals[~some] = 1
        logs = self.reference.astype(np.float64).reshape(shape) / self.call.exponential.unit + np.log(totals)
        logs[~some] = -np.inf
        factors = np.where(some, 1 / totals, 0)
        if p.sinks is not None:
            sinks = p.sinks[self.place.heads[0] : self.place.heads[1], None].astype(np.float64)
            whole = np.logaddexp(logs, sinks)
            factors *= np.exp(np.where(some, logs - whole, 0))
            logs = whole
        if p.dropout is not None:
            factors /= 1.0 - p.dropout.rate
        values = self.values.reshape(*shape, -1)
        np.multiply(values, factors[..., None].astype(values.dtype), out=values)
        out[...] = values
        if lse is not None:
            lse[...] = logs


def scaled_queries(call: Call, where: Where, space: Workspace) -> Any:
    """Return the queries of a tile times the scale, ``(n, D + 1)``, with a last column of 0."""
    p, (_, _, tile) = call.problem, where
    query = call.arrays(where)[0][:, slice(*tile.rows)]
    factor = p.scale / p.softcap if p.softcap is not None else p.scale * call.exponential.unit
    extended = space.take("queries", (*query.shape[:2], p.sizes.depth + 1), p.dtype)
    np.multiply(query.astype(p.dtype, copy=False), p.dtype.type(factor), out=extended[..., :-1])
    extended[..., -1] = 0
    return extended.reshape(-1, p.sizes.depth + 1)


def cap(scores: Any, softcap: float) -> None:
    """Turn ``s / softcap`` into ``softcap * tanh(s / softcap)``, in place."""
    np.tanh(scores, out=scores)
    scores *= scores.dtype.type(softcap)


def hide(weights: Any, group: int, segment: Segment, seen: Seen | None) -> None:
    """Set the weights of masked pairs to 0, in place; they are finite."""
    if seen is not None:
        first = segment.rows[0]
        part = weights.reshape(group, -1, weights.shape[1])[:, seen.rows[0] - first : seen.rows[1] - first]
        np.multiply(part, seen.values, out=part)


def drop(weights: Any, group: int, kept: Any) -> None:
    """Set dropped weights to 0, in place; the others are divided by ``1 - rate`` at the end."""
    if kept is not None:
        part = weights.reshape(group, -1, weights.shape[1])
        np.multiply(part, kept, out=part)
