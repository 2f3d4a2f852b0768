"""One tile of queries while its gradients are computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_core.pairs import Span
from attention_core.problem import Gradients

from .call import Where
from .heads import Head
from .plan import Plan, Segment
from .scores import HUGE, Place
from .tile import scaled_queries
from .workspace import Workspace

if TYPE_CHECKING:
    from .backward import Backward

__all__ = ["TileGradient"]

_ROUNDED = 2.0**-10  # the error of a weight, relative to it, that the rounding of its row's lse may cause


@dataclass(eq=False, slots=True)
class TileGradient:
    """The rows of a tile, ``n = G * rows``, with one more column for what is subtracted or added to each row.

    ``queries (n, D + 1)`` are scaled as in the forward pass and end in ``-lse``; ``douts (n, Dv + 1)`` end in
    ``rows_left = dlse - delta``. ``sums`` are the gradients of key and value of this part of the head.
    """

    work: Backward
    where: Where
    part: int
    place: Place
    plan: Plan
    head: Head
    space: Workspace
    group: int
    rows: int
    queries: Any
    douts: Any
    rows_left: Any
    logs: Any
    sums: tuple[Any, Any]
    dquery: Any
    bound: float = math.inf  # of the absolute scores without their bias

    @classmethod
    def of(cls, work: Backward, where: Where, part: int, sums: tuple[Any, Any], space: Workspace) -> TileGradient:
        """Gather a tile's rows."""
        call, (item, head, tile) = work.call, where
        place, p = call.place(where), call.problem
        heads, cut = slice(*place.heads), slice(*tile.rows)
        queries = scaled_queries(call, where, space)
        lse = work.lse[item][heads, cut].reshape(-1)
        lse = np.where(lse == -np.inf, 0, lse)  # such rows see nothing; others may become -inf in the next line
        logs = lse * p.dtype.type(call.exponential.unit)
        queries[:, -1] = 0 if p.softcap is not None else -logs
        douts = space.take("douts", (len(logs), p.sizes.value_depth + 1), p.dtype)
        douts[:, :-1] = work.dout[item][heads, cut].reshape(len(logs), -1)
        outs = work.out[item][heads, cut].reshape(len(logs), -1).astype(p.dtype, copy=False)
        left = -(douts[:, :-1] * outs).sum(axis=-1)
        if work.dlse is not None:
            left = left + work.dlse[item][heads, cut].reshape(-1)
        douts[:, -1] = left
        work.rows[item][heads, cut] = left.reshape(-1, tile.rows[1] - tile.rows[0])
        dquery = space.take("dquery", (len(logs), p.sizes.depth), p.dtype)
        dquery[...] = 0
        return cls(
            work=work,
            where=where,
            part=part,
            place=place,
            plan=call.plans[item, head],
            head=call.heads.get(item, head),
            space=space,
            group=place.heads[1] - place.heads[0],
            rows=tile.rows[1] - tile.rows[0],
            queries=queries,
            douts=douts,
            rows_left=left,
            logs=logs,
            sums=sums,
            dquery=dquery,
        )

    def is_finite(self) -> bool:
        """Say whether this tile's rows, their keys and values are all finite, and lse fine enough to give weights."""
        span = self.place.tile.span
        norms = self.head.largest_key(span) + self.head.largest_value(span)
        sums = (float(self.queries.sum()), float(self.douts.sum()), norms)
        largest = float(np.abs(self.logs).max(initial=0))
        sound = all(map(math.isfinite, sums)) and not self.work.call.odd_sinks
        self.bound = self._bound() if sound else math.inf
        return sound and largest * np.finfo(self.logs.dtype).eps < _ROUNDED and self.bound < HUGE

    def is_negligible(self, segment: Segment) -> bool:
        """Say whether a bias by distance leaves no weight here that passes anything on."""
        call = self.work.call
        if call.distances is None:
            return False
        largest = call.distances.largest_in(self.place, segment)
        return self.bound + largest - float(self.logs[self.flat(segment)].min()) < call.exponential.floor

    def _bound(self) -> float:
        """Return a bound on the absolute scores, in the exponential's unit."""
        norms = np.square(self.queries[:, :-1]).sum(axis=-1)
        bound = math.sqrt(float(norms.max(initial=0))) * self.head.largest_key(self.place.tile.span)
        cap = self.work.call.problem.softcap
        return bound if cap is None or not bound < HUGE else cap * self.work.call.exponential.unit

    def flat(self, segment: Segment) -> slice:
        """Return the stacked rows of a segment; several heads have all their rows in every segment."""
        return slice(*segment.rows) if self.group == 1 else slice(0, self.group * self.rows)

    def scores(self, segment: Segment) -> Any:
        """Return the products of a segment minus ``lse`` (capped ones have it subtracted later)."""
        return self._products("scores", self.queries[self.flat(segment)], self.head.columns(), segment)

    def weight_cotangents(self, segment: Segment, *, dropped: bool) -> Any:
        """Return ``dout_i . v_j + dlse_i - delta_i``; under dropout the last two are added later."""
        depth = self.douts.shape[1] - dropped
        douts, columns = self.douts[self.flat(segment), :depth], self.head.value_columns()[:depth]
        return self._products("cotangents", douts, columns, segment)

    def _products(self, name: str, left: Any, columns: Any, segment: Segment) -> Any:
        right = columns[:, slice(*segment.keys)]
        out = self.space.take(name, (left.shape[0], right.shape[1]), left.dtype)
        return self.work.call.multiply(left, right, out)

    def add_value(self, segment: Segment, weights: Any) -> None:
        """``dv += p^T dout``."""
        douts = self.douts[self.flat(segment), :-1]
        out = self.space.take("key_product", (weights.shape[1], douts.shape[1]), douts.dtype)
        self._sum(1, segment)[...] += self.work.call.multiply(weights.T, douts, out)

    def add_query_and_key(self, segment: Segment, du: Any) -> None:
        """``dq += du k`` and ``dk += du^T q``, without their scales."""
        rows, multiply = self.flat(segment), self.work.call.multiply
        keys = self.head.key[slice(*segment.keys)]
        out = self.space.take("product", (du.shape[0], keys.shape[1]), du.dtype)
        self.dquery[rows] += multiply(du, keys, out)
        queries = self.queries[rows, :-1]
        out = self.space.take("key_product", (du.shape[1], queries.shape[1]), du.dtype)
        out = multiply(du.T, queries, out)
        out *= out.dtype.type(self._key_scale())
        self._sum(0, segment)[...] += out

    def _key_scale(self) -> float:
        """Return what makes the true scale of that of the queries."""
        cap = self.work.call.problem.softcap
        return cap if cap is not None else 1 / self.work.call.exponential.unit

    def _sum(self, which: int, segment: Segment) -> Any:
        return self.sums[which][slice(*segment.keys)]

    def finish(self) -> None:
        """Write the gradient of the tile's queries."""
        shape = (self.group, self.rows, -1)
        self._target()[...] = (self.dquery * self.dquery.dtype.type(self.work.call.problem.scale)).reshape(
            *shape[:2], self.dquery.shape[1]
        )

    def _target(self) -> Any:
        heads, rows = slice(*self.place.heads), slice(*self.place.tile.rows)
        return self.work.query[self.place.item][heads, rows]

    def add_exact(self, found: Gradients, rows: Span, keys: Span) -> None:
        """Add what the definition found for some rows and keys of this tile."""
        self._target()[:, slice(*rows)] = found.query
        for total, gradient in zip(self.sums, (found.key, found.value), strict=True):
            total[slice(*keys)] += gradient[0]
        if self.work.bias is not None:
            self.work.bias.add(self, rows, keys, found.bias.array)
