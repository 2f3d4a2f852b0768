"""The forward pass by tiles: online softmax (Milakov and Gimelshein 2018; Dao et al. 2022), memory linear in length.

One loop over batch items and key/value heads, one over strips of queries, one over a strip's key tiles. Heads whose
scores are bounded need no running maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from attention_core.arrays import matmul

from .bounded import bounds, keys_to_bound
from .flat import Operands, Spec, Work, flatten, unflatten_heads, work_of
from .loops import drop_tile, join, score_tile, swapped, visible_tile, visit
from .poison import all_finite, finite, put_back
from .traced_pairs import TracedPairs, TracedSpan

__all__ = ["Rows", "forward", "meet", "tiles_of"]


Tiles: TypeAlias = Callable[[TracedSpan], tuple[jax.Array, jax.Array]]  # keys (h, D, Tk) and values (h, Tk, Dv)


class State(NamedTuple):
    """A strip's running maximum and sum of exponentials, ``(h, R, 1)``, and weighted sum of values, ``(h, R, Dv)``.

    ``sound`` says whether the keys and values met so far are finite, where they are met once only.
    """

    largest: jax.Array
    total: jax.Array
    values: jax.Array
    sound: jax.Array


class Rows(NamedTuple):
    """A strip: its number, queries, and their arrays ``(h, R, D)``, scaled."""

    n: jax.Array
    queries: TracedSpan
    scaled: jax.Array


def forward(spec: Spec, operands: Operands) -> tuple[jax.Array, jax.Array]:
    """Return out ``(..., Hq, Lq, Dv)`` and lse ``(..., Hq, Lq)``.

    The loops read tiles from the whole arrays: of a long cache, a call touches no more than the mask leaves.
    """
    work = work_of(spec, operands)
    query, key, value = flatten(work)
    seen = keys_to_bound(work)

    def one(index: jax.Array) -> tuple[jax.Array, ...]:
        tiles = _met_once(work, index, key, value) if work.reads_once else _met_often(work, index, key, value)

        def strips(bounded: bool) -> Any:
            return lax.map(lambda n: _strip(work, index, n, query, tiles, bounded), jnp.arange(work.queries.count))

        if seen is not None:
            heads = (lax.dynamic_index_in_dim(x, index, 0, False) for x in (query, key, value))
            bounded, sound = bounds(work, seen, *heads)
            done, _ = lax.cond(bounded, lambda: strips(True), lambda: strips(False))
        else:
            done, sound = strips(False)
        return *(join(work, x) for x in done), jnp.all(sound)

    out, lse, sound = lax.map(one, jnp.arange(query.shape[0]))
    sound = jnp.all(sound)
    if seen is None:
        sound = sound & all_finite(*(operands[:1] if work.reads_once else operands[:3]))
    out, lse = put_back(work, unflatten_heads(spec, out), unflatten_heads(spec, lse), sound)
    return out.astype(spec.out_dtype), lse


def _met_once(work: Work, index: jax.Array, key: jax.Array, value: jax.Array) -> Tiles:
    """Cut tiles out of the whole arrays, as they are."""

    def tiles(keys: TracedSpan) -> tuple[jax.Array, jax.Array]:
        k, v = (_cut(work, x, index, keys.start, keys.size) for x in (key, value))
        return k.mT, v

    return tiles


def _met_often(work: Work, index: jax.Array, key: jax.Array, value: jax.Array) -> Tiles:
    """Lay a head's arrays out for its products once, not at each tile."""
    k, v = (_cut(work, x, index, 0, work.spec.sizes.keys) for x in (key, value))
    (columns,) = swapped(k)
    return tiles_of(*lax.optimization_barrier((finite(columns), finite(v))))


def tiles_of(columns: jax.Array, v: jax.Array) -> Tiles:
    """Cut tiles out of finite keys ``(h, D, Lk)`` and values ``(h, Lk, Dv)``."""

    def tiles(keys: TracedSpan) -> tuple[jax.Array, jax.Array]:
        k = lax.dynamic_slice_in_dim(columns, keys.start, keys.size, 2)
        return k, lax.dynamic_slice_in_dim(v, keys.start, keys.size, 1)

    return tiles


def _cut(work: Work, x: jax.Array, index: jax.Array, start: Any, size: int) -> jax.Array:
    tile = lax.dynamic_slice(x, (index, 0, start, 0), (1, work.heads, size, x.shape[-1]))
    return tile[0].astype(work.spec.dtype)


def _strip(
    work: Work, index: jax.Array, n: jax.Array, query: jax.Array, tiles: Tiles, bounded: bool
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    queries = work.strip(n)
    shape = (work.heads, work.spec.sizes.group, queries.size)
    given = lax.dynamic_slice(query, (index, 0, 0, queries.start, 0), (1, *shape, query.shape[-1]))
    given = given.reshape(work.heads, work.rows, query.shape[-1])
    rows = Rows(n, queries, finite(given.astype(work.spec.dtype)) * work.spec.scale)
    state = (_meet_bounded if bounded else meet)(work, index, rows, tiles)
    total = jnp.where(state.total == 0, 1, state.total)
    lse = jnp.where(state.total == 0, -jnp.inf, state.largest + jnp.log(total))
    return ((state.values / total).reshape(*shape, work.spec.sizes.value_depth), lse.reshape(shape)), state.sound


def meet(work: Work, index: jax.Array, rows: Rows, tiles: Tiles, rare: bool = False) -> State:
    """Bring all keys that the rows of a strip see into a state."""

    def step(state: State, keys: TracedSpan, pairs: TracedPairs, hide: bool) -> State:
        k, v = tiles(keys)
        products, sound_keys = multiply(rows.scaled, k)
        s, _ = score_tile(work, products, pairs)
        if hide:
            s = jnp.where(visible_tile(work, pairs, hide), s, -jnp.inf)
        largest = jnp.maximum(state.largest, s.max(axis=-1, keepdims=True))
        fade, p = jnp.exp(state.largest - largest), jnp.exp(s - largest)
        total = state.total * fade + p.sum(axis=-1, keepdims=True)
        weighted, sound_values = multiply(drop_tile(work, p, pairs), v)
        return State(largest, total, state.values * fade + weighted, state.sound & sound_keys & sound_values)

    multiply = _multiply_finite if work.reads_once and not rare else _multiply
    start = _start(work, index, rows.queries)
    state: State = visit(work, index, rows.n, rows.queries, step, start, rare)
    return state


def _meet_bounded(work: Work, index: jax.Array, rows: Rows, tiles: Tiles) -> State:
    """The same where no score needs a shift: the maximum stays 0."""

    def step(state: State, keys: TracedSpan, pairs: TracedPairs, hide: bool) -> State:
        k, v = tiles(keys)
        s, _ = score_tile(work, matmul(jnp, rows.scaled, k), pairs)
        p = jnp.exp(s)
        if hide:
            p = jnp.where(visible_tile(work, pairs, hide), p, 0)
        total = state.total + p.sum(axis=-1, keepdims=True)
        return state._replace(total=total, values=state.values + matmul(jnp, drop_tile(work, p, pairs), v))

    start = _start(work, index, rows.queries)
    done: State = visit(work, index, rows.n, rows.queries, step, start._replace(largest=jnp.zeros_like(start.largest)))
    return done


def _start(work: Work, index: jax.Array, queries: TracedSpan) -> State:
    """The empty state, or with a sink the state that has seen one logit and no value."""
    dtype = work.spec.dtype
    lowest = float(jnp.finfo(dtype).min)  # not -inf: -inf - -inf would be NaN
    column = (work.heads, work.rows, 1)
    values, sound = jnp.zeros((*column[:-1], work.spec.sizes.value_depth), dtype), jnp.ones((), bool)
    if work.operands.sinks is None:
        return State(jnp.full(column, lowest, dtype), jnp.zeros(column, dtype), values, sound)
    pairs = work.tile(index, queries, work.columns(jnp.zeros((), jnp.int32)))
    sink = jnp.broadcast_to(pairs.per_head(work.operands.sinks.astype(dtype)), (*pairs.shape[:-1], 1))
    sink = sink.reshape(column)
    largest = jnp.maximum(sink, lowest)
    return State(largest, jnp.exp(sink - largest), values, sound)


def _multiply(a: jax.Array, b: jax.Array) -> tuple[jax.Array, bool]:
    return matmul(jnp, a, b), True


def _multiply_finite(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Multiply by what is finite of ``b``, and say whether all is: what is not would show in every row, by 0 too."""
    product = matmul(jnp, a, b)
    sound = jnp.all(jnp.isfinite(product))
    return lax.cond(sound, lambda: product, lambda: matmul(jnp, a, finite(b))), sound
