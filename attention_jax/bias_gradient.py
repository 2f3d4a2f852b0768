"""Adding up the gradient of a bias over tiles, in the compute dtype."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attention_core.biases import Bias
from attention_core.biases.algebra import Sum
from attention_core.biases.given import Dense

from .traced_pairs import TracedPairs, TracedSpan

__all__ = ["add_tile", "like_bias", "zeros_of"]


def zeros_of(bias: Bias | None, dtype: Any) -> Any:
    """Return a bias of zeros like ``bias``, in the compute dtype."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, dtype) if _real(x) else x, bias)


def like_bias(bias: Bias | None, gradient: Any) -> Any:
    """Return an accumulated gradient in the dtypes of ``bias``."""
    return jax.tree.map(lambda x, g: g.astype(x.dtype) if _real(x) else None, bias, gradient)


def _real(x: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(x), jnp.floating))


def add_tile(bias: Bias | None, total: Any, pairs: TracedPairs, ds: jax.Array) -> Any:
    """Add a tile's gradient, of scores ``(R, Tk)``, to the total."""
    if bias is None:
        return None
    return _add(bias, total, pairs, ds.reshape(pairs.shape))


def _add(bias: Bias, total: Any, pairs: TracedPairs, ds: jax.Array) -> Any:
    if isinstance(bias, Sum):
        return Sum(_add(bias.left, total.left, pairs, ds), _add(bias.right, total.right, pairs, ds))
    if isinstance(bias, Dense):
        return replace(total, array=_add_dense(total.array, pairs, ds))
    gradient = bias.vjp(pairs, ds)
    return jax.tree.map(lambda t, g: t + g.astype(t.dtype) if _real(t) else t, total, gradient)


def _add_dense(total: jax.Array, pairs: TracedPairs, ds: jax.Array) -> jax.Array:
    """Add to the tile's place; an axis of size 1 sums."""
    spans = (pairs.heads, pairs.queries, pairs.keys)[-total.ndim :]
    trailing = total.shape[-3:]
    batch = total.shape[: max(0, total.ndim - 3)]
    item = (pairs.item or ())[len(pairs.item or ()) - len(batch) :]
    starts = [0 if size == 1 else i for i, size in zip(item, batch, strict=True)]
    sums = tuple(range(3 - len(trailing)))  # axes that the array does not have at all
    tile = jnp.sum(ds, axis=sums) if sums else ds
    ones = tuple(axis for axis, size in enumerate(trailing) if size == 1)
    tile = jnp.sum(tile, axis=ones, keepdims=True) if ones else tile
    starts += [0 if size == 1 else _start(span) for span, size in zip(spans, trailing, strict=True)]
    tile = tile.reshape((1,) * len(batch) + tile.shape)
    before = lax.dynamic_slice(total, starts, tile.shape)
    return lax.dynamic_update_slice(total, before + tile, starts)


def _start(span: Any) -> Any:
    return span.start if isinstance(span, TracedSpan) else span[0]
