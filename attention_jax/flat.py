"""A problem laid out for the kernel's loops: an item of work is a block of a batch item's key/value heads."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention_core.problem import Problem
from attention_core.sizes import Sizes

from .schedule import KEYS, ROWS, Schedule, Tiling, make_schedule, tiling_of
from .traced_pairs import TracedPairs, TracedSpan

__all__ = ["Operands", "Spec", "Work", "flatten", "operands_of", "spec_of", "unflatten_heads", "work_of"]


_CUT = 4  # small tiles are a quarter as long
_STEP = 2**14  # what a step of the loops costs besides its scores, in scores
_MOST_ASKED = 2**12, 16  # regions that a mask is asked about, while tracing, for small tiles: in all, and more a strip
_MOST_TILES = 2**22  # small ones, in a table


class Operands(NamedTuple):
    """Everything of a problem that may be traced: a pytree. Integer positions that are static stand in the spec."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    mask: Any
    bias: Any
    sinks: Any
    dropout: Any
    query_positions: Any
    key_positions: Any


@dataclass(frozen=True)
class Spec:
    """Everything of a problem that is static: hashable."""

    sizes: Sizes
    scale: float
    softcap: float | None
    dtype: Any
    out_dtype: Any
    query_positions: int | None
    key_positions: int | None
    rows: int = ROWS
    columns: int = KEYS


def spec_of(problem: Problem, rows: int = ROWS, columns: int = KEYS) -> Spec:
    """Return the static half of a problem."""
    p = problem
    query_positions, key_positions = (n if isinstance(n, int) else None for n in (p.query_positions, p.key_positions))
    dtypes = (jnp.dtype(p.dtype), jnp.dtype(p.out_dtype))
    return Spec(p.sizes, p.scale, p.softcap, *dtypes, query_positions, key_positions, rows, columns)


def operands_of(problem: Problem) -> Operands:
    """Return the other half."""
    p = problem
    positions = (None if isinstance(n, int) else n for n in (p.query_positions, p.key_positions))
    return Operands(p.query, p.key, p.value, p.mask, p.bias, p.sinks, p.dropout, *positions)


@dataclass(frozen=True, eq=False)
class Work:
    """What the loops share: tilings, the schedule, the pairs of the whole call, and how many heads a tile spans.

    A tile of scores is ``(h, R, Tk)``: ``h`` key/value heads, for each the rows of its ``G`` query heads. ``h`` is 1
    where one head fills a tile; several short ones are worth one step of the loops.
    """

    spec: Spec
    operands: Operands
    queries: Tiling
    keys: Tiling
    schedule: Schedule
    pairs: TracedPairs
    heads: int

    @property
    def rows(self) -> int:
        """Rows ``R`` of a tile of scores: a strip of queries for each query head of the group."""
        return self.spec.sizes.group * self.queries.size

    @property
    def reads_once(self) -> bool:
        """Whether one strip meets many tiles of keys, as in decoding: much of a cache may then not be met at all."""
        return self.queries.count == 1 and self.keys.count > 1

    def strip(self, n: jax.Array) -> TracedSpan:
        """Queries of strip ``n``."""
        return _span(self.queries, n)

    def columns(self, n: jax.Array) -> TracedSpan:
        """Keys of tile ``n``."""
        return _span(self.keys, n)

    def tile(self, work_item: jax.Array, queries: TracedSpan, keys: TracedSpan) -> TracedPairs:
        """Pairs of one tile of one batch item and block of heads."""
        sizes = self.spec.sizes
        blocks, span = sizes.kv_heads // self.heads, self.heads * sizes.group
        batch, block = work_item // blocks, work_item % blocks
        heads = TracedSpan(block * span, span)
        return self.pairs.tile(queries, keys, heads, _unravel(batch, sizes.batch))


def _span(tiling: Tiling, n: jax.Array) -> TracedSpan:
    return TracedSpan(jnp.minimum(n * tiling.size, tiling.length - tiling.size), tiling.size)


def _unravel(index: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, ...]:
    digits = []
    for size in reversed(shape):
        digits.append(index % size)
        index = index // size
    return tuple(reversed(digits))


def work_of(spec: Spec, operands: Operands) -> Work:
    """Plan the loops of a call."""
    sizes = spec.sizes
    static = (spec.query_positions, spec.key_positions)
    traced = (operands.query_positions, operands.key_positions)
    query_positions, key_positions = (t if n is None else n for n, t in zip(static, traced, strict=True))
    spans = ((0, sizes.heads), (0, sizes.queries), (0, sizes.keys))
    pairs = TracedPairs(jnp, sizes.batch, *spans, query_positions, key_positions)
    mask = operands.mask
    settled = mask is None or (mask.is_static() and None not in static)
    queries, keys, schedule = _plan(spec, mask, replace(pairs, xp=np) if settled else None)
    return Work(spec, operands, queries, keys, schedule, pairs, _heads_of_a_tile(spec, queries.size, keys.size))


def _plan(spec: Spec, mask: Any, pairs: Any) -> tuple[Tiling, Tiling, Schedule]:
    """Return tilings and schedule; small tiles where a static mask is narrow, so that fewer hidden pairs are met."""
    sizes, group = spec.sizes, max(1, spec.sizes.group)

    def plan(cut: int) -> tuple[Tiling, Tiling, Schedule] | None:
        queries = tiling_of(sizes.queries, max(1, spec.rows // group // cut))
        keys = tiling_of(sizes.keys, max(1, spec.columns // cut))
        if cut > 1 and queries.count * keys.count > _MOST_TILES:
            return None
        most = _MOST_ASKED[0] + _MOST_ASKED[1] * queries.count if cut > 1 else None
        schedule = make_schedule(mask, pairs, sizes, queries, keys, most)
        return None if schedule is None else (queries, keys, schedule)

    def cost(queries: Tiling, keys: Tiling, schedule: Schedule) -> int:
        return int(schedule.visited.sum()) * (queries.size * group * keys.size + _STEP)

    plans = [plan(1)] if mask is None or pairs is None else [plan(1), plan(_CUT)]
    return min((each for each in plans if each is not None), key=lambda each: cost(*each))


def _heads_of_a_tile(spec: Spec, queries: int, keys: int) -> int:
    """Return the largest divisor of the number of key/value heads whose scores still fit a tile."""
    most = max(1, spec.rows * spec.columns // (spec.sizes.group * queries * keys))
    return max(n for n in range(1, min(most, spec.sizes.kv_heads) + 1) if spec.sizes.kv_heads % n == 0)


def flatten(work: Work) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return query ``(N, h, G, Lq, D)``, key ``(N, h, Lk, D)``, value ``(N, h, Lk, Dv)`` of ``N`` items of work."""
    sizes, operands, heads = work.spec.sizes, work.operands, work.heads
    count = math.prod(sizes.batch) * sizes.kv_heads // heads
    query, key, value = (jnp.broadcast_to(x, (*sizes.batch, *x.shape[-3:])) for x in operands[:3])
    return (
        query.reshape(count, heads, sizes.group, sizes.queries, sizes.depth),
        key.reshape(count, heads, sizes.keys, sizes.depth),
        value.reshape(count, heads, sizes.keys, sizes.value_depth),
    )


def unflatten_heads(spec: Spec, x: jax.Array) -> jax.Array:
    """Bring ``(N, h, G, Lq, ...)`` back to ``(..., Hq, Lq, ...)``."""
    sizes = spec.sizes
    return x.reshape(*sizes.batch, sizes.heads, sizes.queries, *x.shape[4:])
