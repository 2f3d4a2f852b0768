"""The loop over a strip's key tiles, and what a tile is made of: scores, visible pairs, dropped weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attention_core.masks import Visibility

from .flat import Work
from .traced_pairs import TracedPairs, TracedSpan
from .varying import like

__all__ = ["drop_tile", "join", "score_tile", "swapped", "tile_values", "visible_tile", "visit"]


def visit(
    work: Work, index: jax.Array, n: jax.Array, queries: TracedSpan, step: Any, state: Any, rare: bool = False
) -> Any:
    """Run ``step(state, keys, pairs, hide)`` over the key tiles of strip ``n`` that hold a visible pair.

    ``rare`` is for what seldom runs: every tile goes through the step that hides, so that only one is compiled.
    """

    def at(tile: jax.Array, state: Any, hide: bool) -> Any:
        keys = work.columns(tile)
        return step(state, keys, work.tile(index, queries, keys), hide)

    state = like(work.operands.query, state)
    if work.schedule.static:
        order, full, visited = (jnp.asarray(x, n.dtype)[n] for x in work.schedule[:3])
        some_full, some_mixed = work.schedule.full.any() and not rare, work.schedule.mixed or rare
        first = full if some_full else 0
        if some_full:
            state = lax.fori_loop(0, full, lambda t, s: at(order[t], s, False), state)
        return lax.fori_loop(first, visited, lambda t, s: at(order[t], s, True), state) if some_mixed else state
    branches = (lambda _, s: s, lambda t, s: at(t, s, True), lambda t, s: at(t, s, rare))
    return lax.fori_loop(
        0, work.keys.count, lambda t, s: lax.switch(_visibility(work, index, queries, t), branches, t, s), state
    )


def _visibility(work: Work, index: jax.Array, queries: TracedSpan, tile: jax.Array) -> jax.Array:
    """Ask the mask about a tile at run time."""
    code = jnp.asarray(work.operands.mask.code(work.tile(index, queries, work.columns(tile))), jnp.int32)
    if not work.keys.overlaps:
        return code
    return jnp.where(tile == work.keys.count - 1, jnp.minimum(code, int(Visibility.MIXED)), code)


def score_tile(work: Work, products: jax.Array, pairs: TracedPairs) -> tuple[jax.Array, jax.Array | None]:
    """Return scores ``(h, R, Tk)`` before the mask from scaled ``query @ key``, and the tanh of the soft cap."""
    s, tanh = products, None
    if work.spec.softcap is not None:
        tanh = jnp.tanh(s / work.spec.softcap)
        s = work.spec.softcap * tanh
    if work.operands.bias is not None:
        s = s + tile_values(work, work.operands.bias.values(pairs, work.spec.dtype), pairs)
    return s, tanh


def visible_tile(work: Work, pairs: TracedPairs, hide: bool) -> jax.Array:
    """Return which pairs ``(h, R, Tk)`` are visible: all where ``hide`` is false; a repeated key only once."""
    seen = jnp.ones((1, 1), bool)
    if hide and work.operands.mask is not None:
        seen = work.operands.mask.visible(pairs)
    if hide and work.keys.overlaps and isinstance(pairs.keys, TracedSpan):
        first = -(-pairs.keys.start // work.keys.size) * work.keys.size
        seen = seen & (pairs.key_index >= first)
    if work.operands.bias is not None and work.operands.bias.may_mask():
        seen = seen & (work.operands.bias.values(pairs, work.spec.dtype) != -jnp.inf)
    return tile_values(work, seen, pairs)


def drop_tile(work: Work, p: jax.Array, pairs: TracedPairs) -> jax.Array:
    """Apply the core's dropout to a tile of weights, or to their cotangents."""
    dropout = work.operands.dropout
    if dropout is None or dropout.rate == 0:
        return p
    return jnp.where(tile_values(work, dropout.kept(pairs), pairs), p / (1 - dropout.rate), 0)


def tile_values(work: Work, x: jax.Array, pairs: TracedPairs) -> jax.Array:
    """Bring what broadcasts to ``(h G, Tq, Tk)`` to the rows of a tile, ``(h, R, Tk)``."""
    return jnp.broadcast_to(x, pairs.shape).reshape(work.heads, -1, pairs.shape[-1])


def swapped(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Return the last two axes swapped, laid out so in memory here and now.

    XLA would rather do it at each product, and in one loop with whatever comes before, at four times the cost.
    """
    whole = lax.optimization_barrier(arrays)
    return lax.optimization_barrier(tuple(x.mT for x in whole))


def join(work: Work, strips: jax.Array) -> jax.Array:
    """Put strips ``(n, h, G, Tq, ...)`` together to ``(h, G, Lq, ...)``; the last repeats rows of the one before."""
    strips = jnp.moveaxis(strips, 0, 2)
    body = strips[:, :, :-1].reshape(*strips.shape[:2], -1, *strips.shape[4:])
    rest = work.queries.length - body.shape[2]
    return jnp.concatenate([body, strips[:, :, -1, work.queries.size - rest :]], axis=2)
