"""Heads whose scores Cauchy-Schwarz bounds: softmax does not change when a row is shifted, so nothing is.

Without a running maximum a step has no pass for it and rescales nothing: it adds exponentials, and weighted values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from attention_core.pairs import Span
from attention_core.settled import values_of

from .flat import Work

__all__ = ["bounds", "keys_to_bound"]

_WIDEST = 60.0  # binary orders on either side of 1 that a weight may reach
_SPARE = 4.0  # binary orders that roundings may take
_MOST_ASKED = 64  # mixed tiles whose pairs are looked at while tracing

Tile: TypeAlias = tuple[Span, Span]


def keys_to_bound(work: Work) -> np.ndarray | None:
    """Return which keys some query sees ``(Lk,)``, or ``None`` where no bound is to be asked for.

    A bias or a sink has no bound, and a cache is not to be read whole for one. Keys that nobody sees must not change
    the result, not in its last bit: so a mask that is only known at run time, or differs between heads, has none.
    """
    operands = work.operands
    if operands.bias is not None or operands.sinks is not None or work.reads_once or not work.schedule.static:
        return None
    if operands.mask is None:
        return np.ones(work.keys.length, bool)
    if values_of(operands.mask) is None:  # a caller's own rule or class may ask JAX
        return None
    seen, whole, asked = np.zeros(work.keys.length, bool), _seen_whole(work), 0
    for n in np.flatnonzero(whole).tolist():
        seen[slice(*work.keys.span((n, n + 1)))] = True
    for tile in _mixed_tiles(work, whole):
        keys = slice(*tile[1])
        if seen[keys].all():
            continue
        visible, asked = _visible(work, tile), asked + 1
        if visible.shape[0] > 1 or asked > _MOST_ASKED:
            return None
        seen[keys] |= visible.any(axis=(0, 1))
    return seen


def _seen_whole(work: Work) -> np.ndarray:
    """Return which tiles of keys all queries of some strip see."""
    whole = np.zeros(work.keys.count, bool)
    for order, full in zip(work.schedule.order, work.schedule.full, strict=True):
        whole[order[:full]] = True
    return whole


def _mixed_tiles(work: Work, whole: np.ndarray) -> Iterator[Tile]:
    """Yield the mixed tiles of the schedule whose keys no strip sees whole."""
    schedule = work.schedule
    for n, (order, full, visited) in enumerate(zip(schedule.order, schedule.full, schedule.visited, strict=True)):
        mixed = order[full:visited]
        for key in mixed[~whole[mixed]].tolist():
            yield work.queries.span((n, n + 1)), work.keys.span((key, key + 1))


def _visible(work: Work, tile: Tile) -> np.ndarray:
    """Return the visible pairs of a tile, one array for all heads and items where they share it."""
    visible = np.asarray(work.operands.mask.visible(replace(work.pairs, xp=np).tile(*tile)))
    visible = visible.reshape(math.prod(visible.shape[:-2]), *visible.shape[-2:])
    return np.broadcast_to(visible, (len(visible), *(last - first for first, last in tile)))


def bounds(
    work: Work, seen: np.ndarray, query: jax.Array, key: jax.Array, value: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Say whether no weight ``e^s`` of these heads needs a shift, and whether all that is seen is known to be finite.

    A sum of weighted values must not overflow, and a row whose weights are all small must keep the digits of small
    values, which may be all that it sees.
    """
    if not seen.all():
        key, value = (jnp.where(seen[:, None], x, 0) for x in (key, value))
    query, key, value = (x.astype(work.spec.dtype) for x in (query, key, value))
    limits = jnp.finfo(work.spec.dtype)
    lost = work.spec.sizes.depth * float(limits.tiny)  # at most, where squares are too small for the dtype
    squares = [jnp.max(jnp.sum(x * x, axis=-1)) + lost for x in (query, key)]
    sizes = jnp.abs(value)
    largest = jnp.max(sizes)
    below = jnp.log2(jnp.min(jnp.where(sizes == 0, jnp.inf, sizes))) - (limits.minexp + limits.nmant)
    above = limits.maxexp - jnp.log2(largest * work.spec.sizes.keys)
    bound = abs(work.spec.scale) * jnp.sqrt(squares[0]) * jnp.sqrt(squares[1])
    sound = (bound < jnp.inf) & (largest < jnp.inf)
    if work.spec.softcap is not None:
        bound = jnp.minimum(bound, work.spec.softcap)
    room = jnp.minimum(jnp.minimum(below, above) - _SPARE, _WIDEST)
    return sound & (bound * math.log2(math.e) <= room), sound
