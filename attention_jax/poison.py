"""What is not finite: the loops compute without it, and its effect is put back, rarely, for the pairs that see it.

Without this a NaN under a mask would spread by ``0 * NaN``. A visible pair whose query or key is not finite makes its
row NaN; a visible value that is not finite enters its column as ``p @ value`` says.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from attention_core.arrays import matmul

from .flat import Work, flatten, unflatten_heads
from .loops import join, visible_tile, visit
from .traced_pairs import TracedPairs, TracedSpan

__all__ = ["all_finite", "finite", "put_back"]


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
    bad_q, bad_k = (~jnp.all(jnp.isfinite(x), axis=-1, keepdims=True) for x in (query, key))

    def one(item: tuple[jax.Array, ...]) -> jax.Array:
        index, bad_k, v = item
        nan = jnp.isnan(v)
        flags = (bad_k, jnp.ones_like(bad_k), nan | (v == jnp.inf), nan | (v == -jnp.inf))
        columns = jnp.concatenate(flags, axis=-1).astype(jnp.float32)
        return join(work, lax.map(lambda n: _met(work, index, n, columns), jnp.arange(work.queries.count)))

    seen = lax.map(one, (jnp.arange(query.shape[0]), bad_k, value))
    bad = unflatten_heads(work.spec, seen[..., :1] | (seen[..., 1:2] & bad_q))
    up, down = (unflatten_heads(work.spec, x) for x in jnp.split(seen[..., 2:], 2, axis=-1))
    inf, nan = jnp.asarray(jnp.inf, out.dtype), jnp.asarray(jnp.nan, out.dtype)
    out = out + (jnp.where(up, inf, 0) - jnp.where(down, inf, 0))
    return jnp.where(bad, nan, out), jnp.where(bad[..., 0], nan.astype(lse.dtype), lse)


def _met(work: Work, index: jax.Array, n: jax.Array, columns: jax.Array) -> jax.Array:
    """Say which flags ``(h, Lk, C)`` of visible keys the rows of a strip meet: ``(h, G, Tq, C)``."""
    queries = work.strip(n)

    def step(count: jax.Array, keys: TracedSpan, pairs: TracedPairs, hide: bool) -> jax.Array:
        tile = lax.dynamic_slice_in_dim(columns, keys.start, keys.size, 1)
        return count + matmul(jnp, visible_tile(work, pairs, hide).astype(tile.dtype), tile)

    start = jnp.zeros((work.heads, work.rows, columns.shape[-1]), columns.dtype)
    count: jax.Array = visit(work, index, n, queries, step, start, rare=True)
    return (count > 0).reshape(work.heads, work.spec.sizes.group, queries.size, -1)
