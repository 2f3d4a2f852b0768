"""Gradients by tiles, from query, key, value, out and lse alone (Dao et al. 2022): five products a segment.

``-lse`` and ``dlse - delta`` enter the first two products as one more column. The tiles of a head are split into parts
with sums of their own, added in a fixed order; the split depends on the sizes of one head only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attention_core.arrays import sum_to_shape
from attention_core.gradient import dense_vjp
from attention_core.problem import Gradients, Problem, Result

from .bias_gradient import BiasGradient, bias_gradient
from .call import Call
from .exact import exact_rows, part_of
from .plan import Segment, TilePlan, TileShape, tile_shape
from .scores import bias_tile, kept_tile, seen_tile
from .threads import run_jobs
from .tile import cap, drop, hide
from .tile_gradient import TileGradient
from .workspace import Workspace, workspace

__all__ = ["tiled_backward"]

_FLOOR = -60.0  # in float32 a weight below 2^-60 passes nothing on


class HeadSums:
    """The gradients of one head's keys and values, a sum for each part of its tiles."""

    def __init__(self, parts: int) -> None:
        self._sums: list[Any] = [None] * parts
        self._lock = threading.Lock()
        self._left = parts

    def give(self, part: int, sums: tuple[Any, Any]) -> tuple[Any, Any] | None:
        """Keep a part's sums; the last one gets them all, added in order."""
        with self._lock:
            self._sums[part] = sums
            self._left -= 1
            if self._left:
                return None
        keys, values = self._sums[0]
        for more_keys, more_values in self._sums[1:]:
            keys += more_keys
            values += more_values
        self._sums.clear()
        return keys, values


class Backward:
    """One call's gradients while they are computed."""

    def __init__(self, call: Call, result: Result, dout: Any, dlse: Any) -> None:
        p, sizes = call.problem, call.problem.sizes
        self.call, self.dout, self.dlse = call, dout, dlse
        self.out: Any = result.out
        self.lse: Any = result.lse
        self.query = np.empty((*sizes.batch, *p.query.shape[-3:]), p.dtype)
        self.key = np.empty((*sizes.batch, *p.key.shape[-3:]), p.dtype)
        self.value = np.empty((*sizes.batch, *p.value.shape[-3:]), p.dtype)
        self.rows = np.zeros(sizes.out[:-1], p.dtype)  # dlse - delta
        self.bias: BiasGradient | None = bias_gradient(call)

    def jobs(self) -> Iterator[Callable[[], None]]:
        for (item, head), plan in self.call.plans.items():
            parts = max(1, min(4, len(plan.tiles) // 4))
            sums = HeadSums(parts)
            for part in range(parts):
                yield self._job(item, head, plan.tiles, part, parts, sums)

    def _job(
        self, item: tuple[int, ...], head: int, tiles: tuple[TilePlan, ...], part: int, parts: int, sums: HeadSums
    ) -> Callable[[], None]:
        def job() -> None:
            p = self.call.problem
            shapes = ((p.sizes.keys, depth) for depth in (p.sizes.depth, p.sizes.value_depth))
            mine = tuple(np.zeros(shape, p.dtype) for shape in shapes)
            for tile in tiles[part::parts]:
                with workspace() as space:
                    self._tile(item, head, tile, part, (mine[0], mine[1]), space)
                self.call.heads.done(item, head)
            whole = sums.give(part, (mine[0], mine[1]))
            if whole is not None:
                self.key[item][head], self.value[item][head] = whole

        return job

    def _tile(
        self, item: tuple[int, ...], head: int, tile: TilePlan, part: int, sums: tuple[Any, Any], space: Workspace
    ) -> None:
        state = TileGradient.of(self, (item, head, tile), part, sums, space)
        if not state.is_finite():
            self._exact(state)
            return
        for segment in tile.segments:
            if not state.is_negligible(segment):
                _segment(self, state, segment)
        state.finish()

    def _exact(self, state: TileGradient) -> None:
        """Do a tile by the definition."""
        place, first = state.place, state.place.tile.rows[0]
        heads = slice(*place.heads)
        for rows, keys in exact_rows(place):
            part = part_of(place, self.call.arrays(state.where), rows, keys)
            cut = slice(first + rows[0], first + rows[1])
            dlse = None if self.dlse is None else self.dlse[place.item][heads, cut]
            found = dense_vjp(part, self.dout[place.item][heads, cut], dlse)
            state.add_exact(found, rows, keys)


def tiled_backward(
    problem: Problem,
    result: Result,
    dout: Any,
    dlse: Any,
    *,
    shape: TileShape | None = None,
    threads: int | None = None,
) -> Gradients:
    """Return the gradients of a problem without empty axes; the rest is for tests."""
    p = problem
    call = Call.of(p, shape or tile_shape(p, few=False), few=False)
    work = Backward(call, result, dout, dlse)
    number = 1 if work.bias is not None and work.bias.is_shared() else call.threads(threads)
    run_jobs(work.jobs(), number)
    with np.errstate(all="ignore"):
        return Gradients(
            query=_summed(p.query, work.query),
            key=_summed(p.key, work.key),
            value=_summed(p.value, work.value),
            bias=p.bias if work.bias is None else work.bias.result(),
            sinks=None if p.sinks is None else _sinks(p, result.lse, work.rows),
        )


def _summed(argument: Any, gradient: Any) -> Any:
    return sum_to_shape(np, gradient, argument.shape).astype(argument.dtype, copy=False)


def _sinks(problem: Problem, lse: Any, rows: Any) -> Any:
    """Return ``sum_i exp(sink_h - lse_i) (dlse_i - delta_i)``."""
    p = problem
    assert p.sinks is not None
    empty = lse == -np.inf
    weights = np.where(empty, 0, np.exp(p.sinks.astype(p.dtype)[:, None] - np.where(empty, 0, lse)))
    terms = np.where(weights == 0, 0, weights * rows)
    return sum_to_shape(np, terms, (p.sizes.heads, 1))[:, 0].astype(p.sinks.dtype)


def _segment(work: Backward, state: TileGradient, segment: Segment) -> None:
    """Add one segment's share to all gradients; its scores are finite."""
    exp, p = work.call.exponential, work.call.problem
    weights = state.scores(segment)
    slope = None
    if p.softcap is not None:
        slope = _cap(weights, state, p.softcap * exp.unit)
        weights -= state.logs[state.flat(segment), None]
    by_head = weights.reshape(state.group, -1, weights.shape[1])
    hidden = None
    if p.bias is not None:
        bias, hidden = bias_tile(state.place, segment, work.call.distances, exp.unit, proven=True)
        np.add(by_head, bias, out=by_head)
    seen = seen_tile(state.place, state.plan, segment, hidden)
    lowest, highest = float(weights.min()), float(weights.max())
    floor = exp.floor if p.dtype == np.float64 else exp.floor * _FLOOR / -100.0
    if highest > exp.ceiling:  # only of masked pairs
        np.minimum(weights, weights.dtype.type(exp.ceiling), out=weights)
    if lowest < floor:
        np.maximum(weights, weights.dtype.type(floor), out=weights)
    exp.function(weights, out=weights)
    if lowest < floor:  # to exactly 0: its product with a small gradient would be a denormal
        weights -= exp.function(weights.dtype.type(floor))
    hide(weights, state.group, segment, seen)
    _add_gradients(work, state, segment, weights, slope)


def _cap(scores: Any, state: TileGradient, softcap: float) -> Any:
    """Cap scores in place and return the derivative ``1 - tanh^2``."""
    cap(scores, 1.0)
    slope = np.square(scores, out=state.space.take("slope", scores.shape, scores.dtype))
    np.subtract(1, slope, out=slope)
    scores *= scores.dtype.type(softcap)
    return slope


def _add_gradients(work: Backward, state: TileGradient, segment: Segment, weights: Any, slope: Any) -> None:
    """``dv += p^T dout``, ``ds = p (dp + dlse - delta)``, ``dq += du k``, ``dk += du^T q``."""
    kept = kept_tile(state.place, segment)
    ds = state.weight_cotangents(segment, dropped=kept is not None)
    if kept is None:
        state.add_value(segment, weights)
    else:
        rate = work.call.problem.dropout.rate if work.call.problem.dropout else 0.0
        drop(ds, state.group, kept)
        ds *= ds.dtype.type(1 / (1 - rate))
        ds += state.rows_left[state.flat(segment), None]
        passed = np.multiply(weights, weights.dtype.type(1 / (1 - rate)))
        drop(passed, state.group, kept)
        state.add_value(segment, passed)
    np.multiply(ds, weights, out=ds)
    if work.bias is not None:
        work.bias.add(state, segment.rows, segment.keys, ds.reshape(state.group, -1, ds.shape[1]))
    if slope is not None:
        np.multiply(ds, slope, out=ds)
    state.add_query_and_key(segment, ds)
