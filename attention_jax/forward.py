"""The forward pass by tiles: online softmax (Milakov and Gimelshein 2018; Dao et al. 2022), memory linear in length.

One loop over batch items and key/value heads, one over strips of queries, one over a strip's key tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from attention_core.arrays import matmul

from .flat import Operands, Spec, Work, flatten, unflatten_heads, work_of
from .loops import drop_tile, join, score_tile, visible_tile, visit
from .poison import all_finite, finite, put_back
from .traced_pairs import TracedPairs, TracedSpan

__all__ = ["Rows", "forward", "meet"]

Tiles: TypeAlias = Callable[[TracedSpan], tuple[jax.Array, jax.Array]]


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

    def one(index: jax.Array) -> tuple[jax.Array, ...]:
        strips, sound = lax.map(lambda n: _strip(work, index, n, query, key, value), jnp.arange(work.queries.count))
        return *(join(work, x) for x in strips), jnp.all(sound)

    out, lse, sound = lax.map(one, jnp.arange(query.shape[0]))
    sound = jnp.all(sound) & all_finite(*(operands[:1] if work.reads_once else operands[:3]))
    out, lse = put_back(work, unflatten_heads(spec, out), unflatten_heads(spec, lse), sound)
    return out.astype(spec.out_dtype), lse


def _strip(
    work: Work, index: jax.Array, n: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    queries = work.strip(n)

    def tiles(keys: TracedSpan) -> tuple[jax.Array, jax.Array]:
        return _cut(work, key, index, keys), _cut(work, value, index, keys)

    shape = (work.heads, work.spec.sizes.group, queries.size)
    given = lax.dynamic_slice(query, (index, 0, 0, queries.start, 0), (1, *shape, query.shape[-1]))
    given = given.reshape(work.heads, work.rows, query.shape[-1])
    rows = Rows(n, queries, finite(given.astype(work.spec.dtype)) * work.spec.scale)
    state = meet(work, index, rows, tiles)
    total = jnp.where(state.total == 0, 1, state.total)
    lse = jnp.where(state.total == 0, -jnp.inf, state.largest + jnp.log(total))
    return ((state.values / total).reshape(*shape, value.shape[-1]), lse.reshape(shape)), state.sound


def _cut(work: Work, x: jax.Array, index: jax.Array, keys: TracedSpan) -> jax.Array:
    tile = lax.dynamic_slice(x, (index, 0, keys.start, 0), (1, work.heads, keys.size, x.shape[-1]))
    return tile[0].astype(work.spec.dtype)


def meet(work: Work, index: jax.Array, rows: Rows, tiles: Tiles, rare: bool = False) -> State:
    """Bring all keys that the rows of a strip see into a state."""

    def step(state: State, keys: TracedSpan, pairs: TracedPairs, hide: bool) -> State:
        given = tiles(keys)
        k, v = map(finite, given)
        s, _ = score_tile(work, rows.scaled, k, pairs)
        if hide:
            s = jnp.where(visible_tile(work, pairs, hide), s, -jnp.inf)
        state = _attend(work, state, s, v, pairs)
        return state._replace(sound=state.sound & all_finite(*given)) if work.reads_once else state

    start = _start(work, index, rows.queries)
    state: State = visit(work, index, rows.n, rows.queries, step, start, rare)
    return state


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


def _attend(work: Work, state: State, s: jax.Array, v: jax.Array, pairs: TracedPairs) -> State:
    """The online step: bring a tile of scores and values into the state."""
    largest = jnp.maximum(state.largest, s.max(axis=-1, keepdims=True))
    fade, p = jnp.exp(state.largest - largest), jnp.exp(s - largest)
    total = state.total * fade + p.sum(axis=-1, keepdims=True)
    values = state.values * fade + matmul(jnp, drop_tile(work, p, pairs), v)
    return State(largest, total, values, state.sound)
