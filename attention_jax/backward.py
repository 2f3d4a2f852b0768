"""The backward pass by tiles, from query, key, value, out and lse: five products a tile, memory linear in length.

The formulas are those of ``attention_core.gradient``. Key and value gradients accumulate over strips, query gradients
within one; a bias adds up the gradients of its parameters, a dense one in an array of its own size. Key and value
gradients are kept with keys last: a product whose left side is a transposed tile takes a CPU three times as long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attention_core.arrays import matmul, sum_to_shape

from .bias_gradient import add_tile, like_bias, zeros_of
from .flat import Operands, Spec, Work, flatten, unflatten_heads, work_of
from .forward import Rows, meet, tiles_of
from .loops import drop_tile, join, score_tile, swapped, visible_tile, visit
from .poison import finite
from .traced_pairs import TracedPairs, TracedSpan
from .varying import like

__all__ = ["Cotangents", "backward"]

_ROUNDED = 2.0**-10  # the error of a weight, relative to it, that the rounding of its row's lse may cause


class Cotangents(NamedTuple):
    """Gradients of what is differentiable."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    bias: Any
    sinks: jax.Array | None


class Head(NamedTuple):
    """Arrays of one item of work: by query ``(h, G, Lq, ...)``, by key ``(h, Lk, ...)``, and these with keys last."""

    q: jax.Array
    dout: jax.Array
    lse: jax.Array
    row: jax.Array
    k: jax.Array
    v: jax.Array
    k_columns: jax.Array
    v_columns: jax.Array


class Sums(NamedTuple):
    """What accumulates: gradients of a strip's queries ``(h, R, D)``, of keys and values ``(h, D, Lk)``, the bias's."""

    dq: jax.Array
    dk: jax.Array
    dv: jax.Array
    dbias: Any


def backward(
    spec: Spec, operands: Operands, out: jax.Array, lse: jax.Array, dout: jax.Array, dlse: jax.Array
) -> Cotangents:
    """Return the gradients for cotangents of out and lse."""
    work = work_of(spec, operands)
    dout = dout.astype(spec.dtype)
    row = dlse - jnp.sum(dout * out.astype(spec.dtype), axis=-1)
    empty = lse == -jnp.inf
    row = jnp.where(empty, 0, row)
    # a cotangent that is not finite spoils what its row sees, and nothing else
    sound = jnp.all(jnp.isfinite(dout), axis=-1) & jnp.isfinite(row)
    live = jnp.where(empty | sound, lse, jnp.nan)
    per_query = [_rows(work, x) for x in (finite(dout), live[..., None], finite(row)[..., None])]
    query, key, value = flatten(work)
    dbias = like(query, zeros_of(operands.bias, spec.dtype))

    def one(dbias: Any, item: tuple[jax.Array, ...]) -> tuple[Any, tuple[jax.Array, ...]]:
        index, *arrays, dout, lse, row = item
        q, k, v = (finite(x.astype(spec.dtype)) for x in arrays)
        head = Head(q, dout, lse, row, k, v, *swapped(k, v))
        start = like(query, (*map(jnp.zeros_like, head[-2:]), dbias))
        strips = jnp.arange(work.queries.count)
        (dk, dv, dbias), dq = lax.scan(lambda sums, n: _strip(work, index, n, head, sums), start, strips)
        return dbias, (join(work, dq), dk.mT, dv.mT)

    dbias, (dq, dk, dv) = lax.scan(one, dbias, (jnp.arange(query.shape[0]), query, key, value, *per_query))
    sizes = spec.sizes
    return Cotangents(
        _like(operands.query, unflatten_heads(spec, dq)),
        _like(operands.key, dk.reshape(*sizes.batch, sizes.kv_heads, sizes.keys, sizes.depth)),
        _like(operands.value, dv.reshape(*sizes.batch, sizes.kv_heads, sizes.keys, sizes.value_depth)),
        like_bias(operands.bias, dbias),
        _sinks(operands, lse, row),
    )


def _rows(work: Work, x: jax.Array) -> jax.Array:
    sizes = work.spec.sizes
    return x.reshape(-1, work.heads, sizes.group, sizes.queries, x.shape[-1])


def _strip(work: Work, index: jax.Array, n: jax.Array, head: Head, sums: Any) -> tuple[Any, jax.Array]:
    queries = work.strip(n)
    q, dout, lse, row = (
        lax.dynamic_slice_in_dim(x, queries.start, queries.size, 2).reshape(work.heads, work.rows, -1) for x in head[:4]
    )
    if work.queries.overlaps:  # rows that the strip before has done already
        fresh = queries.start + jnp.arange(queries.size) >= n * queries.size
        fresh = jnp.broadcast_to(fresh, (work.spec.sizes.group, queries.size)).reshape(work.rows, 1)
        lse = jnp.where(fresh, lse, jnp.inf)  # exp(s - inf) = 0
    q = q * work.spec.scale
    empty = lse == -jnp.inf
    lse = jnp.where(empty, jnp.inf, lse)
    q_columns, dout_columns = swapped(q, dout)
    shift, log_total = _denominator(work, index, n, queries, q, lse, head)

    def step(sums: Sums, keys: TracedSpan, pairs: TracedPairs, hide: bool) -> Sums:
        k = lax.dynamic_slice_in_dim(head.k, keys.start, keys.size, 1)
        columns, values = (lax.dynamic_slice_in_dim(x, keys.start, keys.size, 2) for x in head[-2:])
        s, tanh = score_tile(work, matmul(jnp, q, columns), pairs)
        p = jnp.exp(s - shift - log_total)
        if hide:
            p = jnp.where(visible_tile(work, pairs, hide), p, 0)
        ds = p * (drop_tile(work, matmul(jnp, dout, values), pairs) + row)
        dbias = add_tile(work.operands.bias, sums.dbias, pairs, ds)
        du = ds if tanh is None else ds * (1 - tanh * tanh)
        return Sums(
            sums.dq + matmul(jnp, du, k),
            _add_at(sums.dk, keys, matmul(jnp, q_columns, du)),
            _add_at(sums.dv, keys, matmul(jnp, dout_columns, drop_tile(work, p, pairs))),
            dbias,
        )

    dk, dv, dbias = sums
    done = visit(work, index, n, queries, step, Sums(jnp.zeros_like(q), dk, dv, dbias))
    dq = (done.dq * work.spec.scale).reshape(work.heads, work.spec.sizes.group, queries.size, -1)
    return (done.dk, done.dv, done.dbias), dq


def _denominator(
    work: Work, index: jax.Array, n: jax.Array, queries: TracedSpan, q: jax.Array, lse: jax.Array, head: Head
) -> tuple[jax.Array, jax.Array]:
    """Return two parts of lse: itself and 0, or, where it is too large for its digits, what it was rounded from."""

    def again() -> tuple[jax.Array, jax.Array]:
        state = meet(work, index, Rows(n, queries, q), tiles_of(head.k_columns, head.v), rare=True)
        return state.largest, jnp.log(jnp.where(state.total == 0, 1, state.total))

    def stored() -> tuple[jax.Array, jax.Array]:
        parts: tuple[jax.Array, jax.Array] = like(work.operands.query, (lse, jnp.zeros_like(lse)))
        return parts

    used = jnp.isfinite(lse)
    rounded = jnp.any(used & (abs(lse) * float(jnp.finfo(lse.dtype).eps) >= _ROUNDED))
    shift, log_total = lax.cond(rounded, again, stored)
    return jnp.where(used, shift, lse), jnp.where(used, log_total, 0)


def _add_at(x: jax.Array, span: TracedSpan, tile: jax.Array) -> jax.Array:
    before = lax.dynamic_slice_in_dim(x, span.start, span.size, 2)
    return lax.dynamic_update_slice_in_dim(x, before + tile, span.start, 2)


def _like(argument: jax.Array, gradient: jax.Array) -> jax.Array:
    return sum_to_shape(jnp, gradient, argument.shape).astype(argument.dtype)


def _sinks(operands: Operands, lse: jax.Array, row: jax.Array) -> jax.Array | None:
    """``dsink_h = sum exp(sink_h - lse) (dlse - delta)``."""
    if operands.sinks is None:
        return None
    sinks = operands.sinks.astype(lse.dtype)[:, None]
    weight = jnp.where(lse == -jnp.inf, 0, jnp.exp(sinks - jnp.where(lse == -jnp.inf, 0, lse)))
    total = jnp.sum(weight * row, axis=tuple(a for a in range(lse.ndim) if a != lse.ndim - 2))
    return total.astype(operands.sinks.dtype)
