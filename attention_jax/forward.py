"""The forward pass by tiles: online softmax (Milakov and Gimelshein 2018; Dao et al. 2022), memory linear in length.

One loop over batch items and key/value heads, one over strips of queries, one over a strip's key tiles.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attention_core.arrays import matmul

from .flat import Operands, Spec, Work, flatten, unflatten_heads, work_of
from .loops import drop_tile, join, score_tile, visible_tile, visit
from .poison import finite, put_back
from .traced_pairs import TracedPairs, TracedSpan

__all__ = ["forward", "meet"]


class State(NamedTuple):
    """A strip's running maximum and sum of exponentials, ``(R, 1)``, and weighted sum of values, ``(R, Dv)``."""

    largest: jax.Array
    total: jax.Array
    values: jax.Array


def forward(spec: Spec, operands: Operands) -> tuple[jax.Array, jax.Array]:
    """Return out ``(..., Hq, Lq, Dv)`` and lse ``(..., Hq, Lq)``."""
    work = work_of(spec, operands)

    def one(item: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        index, *arrays = item
        q, k, v = (finite(x.astype(spec.dtype)) for x in arrays)
        strips = lax.map(lambda n: _strip(work, index, n, q, k, v), jnp.arange(work.queries.count))
        return tuple(join(work, x) for x in strips)

    query, key, value = flatten(spec, operands)
    out, lse = lax.map(one, (jnp.arange(query.shape[0]), query, key, value))
    out, lse = put_back(work, unflatten_heads(spec, out), unflatten_heads(spec, lse))
    return out.astype(spec.out_dtype), lse


def _strip(
    work: Work, index: jax.Array, n: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array
) -> tuple[jax.Array, ...]:
    queries = work.strip(n)
    rows = lax.dynamic_slice_in_dim(q, queries.start, queries.size, 1).reshape(work.rows, -1) * work.spec.scale
    state = meet(work, index, n, queries, rows, k, v)
    total = jnp.where(state.total == 0, 1, state.total)
    lse = jnp.where(state.total == 0, -jnp.inf, state.largest + jnp.log(total))
    shape = (work.spec.sizes.group, queries.size)
    return (state.values / total).reshape(*shape, -1), lse.reshape(shape)


def meet(
    work: Work,
    index: jax.Array,
    n: jax.Array,
    queries: TracedSpan,
    rows: jax.Array,
    k: jax.Array,
    v: jax.Array,
    rare: bool = False,
) -> State:
    """Bring all keys that the scaled ``rows`` of strip ``n`` see into a state."""

    def step(state: State, keys: TracedSpan, pairs: TracedPairs, hide: bool) -> State:
        k_tile, v_tile = (lax.dynamic_slice_in_dim(x, keys.start, keys.size, 0) for x in (k, v))
        s, _ = score_tile(work, rows, k_tile, pairs)
        if hide:
            s = jnp.where(visible_tile(work, pairs, hide), s, -jnp.inf)
        return _attend(work, state, s, v_tile, pairs)

    state: State = visit(work, index, n, queries, step, _start(work, index, queries, v), rare)
    return state


def _start(work: Work, index: jax.Array, queries: TracedSpan, v: jax.Array) -> State:
    """The empty state, or with a sink the state that has seen one logit and no value."""
    dtype = work.spec.dtype
    lowest = float(jnp.finfo(dtype).min)  # not -inf: -inf - -inf would be NaN
    values = jnp.zeros((work.rows, v.shape[-1]), dtype)
    if work.operands.sinks is None:
        return State(jnp.full((work.rows, 1), lowest, dtype), jnp.zeros((work.rows, 1), dtype), values)
    pairs = work.tile(index, queries, work.columns(jnp.zeros((), jnp.int32)))
    sink = jnp.broadcast_to(pairs.per_head(work.operands.sinks.astype(dtype)), (*pairs.shape[:-1], 1))
    largest = jnp.maximum(sink.reshape(work.rows, 1), lowest)
    return State(largest, jnp.exp(sink.reshape(work.rows, 1) - largest), values)


def _attend(work: Work, state: State, s: jax.Array, v: jax.Array, pairs: TracedPairs) -> State:
    """The online step: bring a tile of scores and values into the state."""
    largest = jnp.maximum(state.largest, s.max(axis=-1, keepdims=True))
    fade, p = jnp.exp(state.largest - largest), jnp.exp(s - largest)
    total = state.total * fade + p.sum(axis=-1, keepdims=True)
    return State(largest, total, state.values * fade + matmul(jnp, drop_tile(work, p, pairs), v))
