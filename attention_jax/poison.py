"""What is not finite: the loops compute without it, and its effect is put back, rarely, for the pairs that see it.

Without this a NaN under a mask would spread by ``0 * NaN``. A visible pair whose query or key is not finite makes its
row NaN; a visible value that is not finite enters its column as ``p @ value`` says.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attention_core.arrays import matmul

from .flat import Work, flatten, unflatten_heads
from .loops import join, visible_tile, visit
from .traced_pairs import TracedPairs, TracedSpan

__all__ = ["all_finite", "finite", "put_back"]


class Seen(NamedTuple):
    """What rows see: a bad pair ``(h, R, 1)``, values of ``+inf`` and of ``-inf`` ``(h, R, Dv)``; NaN is both."""

    bad: jax.Array
    up: jax.Array
    down: jax.Array


def finite(x: jax.Array) -> jax.Array:
    """Take out what is not finite."""
    return jnp.where(jnp.isfinite(x), x, 0)


def all_finite(*arrays: jax.Array) -> jax.Array:
    """Say whether there is nothing to take out: by sums, which a CPU does faster than it looks at each number."""
    return jnp.all(jnp.stack([jnp.sum(x - x, dtype=jnp.float32) == 0 for x in arrays]))


def put_back(work: Work, out: jax.Array, lse: jax.Array, sound: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return out and lse with the effect of what :func:`finite` took out, where not all was ``sound``."""
    return lax.cond(sound, lambda: (out, lse), lambda: _poisoned(work, out, lse))


def _poisoned(work: Work, out: jax.Array, lse: jax.Array) -> tuple[jax.Array, jax.Array]:
    query, key, value = flatten(work)

    def one(item: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        index, q, k, v = item
        bad_q, bad_k = (~jnp.all(jnp.isfinite(x), axis=-1, keepdims=True) for x in (q, k))
        strips = lax.map(lambda n: _strip(work, index, n, bad_q, bad_k, v), jnp.arange(work.queries.count))
        return tuple(join(work, x) for x in strips)

    bad, up, down = lax.map(one, (jnp.arange(query.shape[0]), query, key, value))
    bad, up, down = (unflatten_heads(work.spec, x) for x in (bad, up, down))
    inf, nan = jnp.asarray(jnp.inf, out.dtype), jnp.asarray(jnp.nan, out.dtype)
    out = out + (jnp.where(up, inf, 0) - jnp.where(down, inf, 0))
    return jnp.where(bad, nan, out), jnp.where(bad[..., 0], nan.astype(lse.dtype), lse)


def _strip(work: Work, index: jax.Array, n: jax.Array, bad_q: jax.Array, bad_k: jax.Array, v: jax.Array) -> Seen:
    queries = work.strip(n)
    rows = lax.dynamic_slice_in_dim(bad_q, queries.start, queries.size, 2).reshape(work.heads, work.rows, 1)

    def step(seen: Seen, keys: TracedSpan, pairs: TracedPairs, hide: bool) -> Seen:
        k_tile, v_tile = (lax.dynamic_slice_in_dim(x, keys.start, keys.size, 1) for x in (bad_k, v))
        visible = visible_tile(work, pairs, hide)
        bad = jnp.any(visible & (rows | k_tile.mT), axis=-1, keepdims=True)
        nan = jnp.isnan(v_tile)
        up, down = (_any_product(visible, nan | (v_tile == x)) for x in (jnp.inf, -jnp.inf))
        return Seen(seen.bad | bad, seen.up | up, seen.down | down)

    nothing = jnp.zeros((work.heads, work.rows, v.shape[-1]), bool)
    seen = visit(work, index, n, queries, step, Seen(nothing[..., :1], nothing, nothing), rare=True)
    return Seen(*(x.reshape(work.heads, work.spec.sizes.group, queries.size, x.shape[-1]) for x in seen))


def _any_product(visible: jax.Array, flags: jax.Array) -> jax.Array:
    return matmul(jnp, visible.astype(jnp.float32), flags.astype(jnp.float32)) > 0
