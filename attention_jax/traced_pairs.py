"""Tiles whose place is only known at run time: the pairs that masks and biases are asked about inside a loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attention_core.pairs import Pairs, Range, Span

__all__ = ["TracedPairs", "TracedSpan"]


class TracedSpan(NamedTuple):
    """``size`` indices from a traced ``start``."""

    start: jax.Array
    size: int


class TracedPairs(Pairs):
    """:class:`Pairs` whose ranges may start at traced indices; each lies within its axis."""

    @property
    def shape(self) -> tuple[int, ...]:
        batch = self.batch_shape if self.item is None else ()
        return (*batch, *(_size(span) for span in (self.heads, self.queries, self.keys)))

    def tile(self, queries: Any, keys: Any, heads: Any = None, item: Any = None) -> TracedPairs:
        return replace(self, queries=queries, keys=keys, heads=heads or self.heads, item=item or self.item)

    def cut(self, x: jax.Array, axis: int, span: Span | TracedSpan) -> jax.Array:
        if isinstance(span, TracedSpan):
            return lax.dynamic_slice_in_dim(x, span.start, span.size, axis)
        return super().cut(x, axis, span)

    def ends(self, span: Span | TracedSpan) -> Range | None:
        return (span.start, span.start + span.size - 1) if isinstance(span, TracedSpan) else super().ends(span)

    def spread(self, x: jax.Array, axis: int, span: Span | TracedSpan, size: int) -> jax.Array:
        if not isinstance(span, TracedSpan):
            return super().spread(x, axis, span, size)
        shape = list(x.shape)
        shape[axis] = size
        return lax.dynamic_update_slice_in_dim(jnp.zeros(shape, x.dtype), x, span.start, axis)

    def indices(self, span: Span | TracedSpan, start: Any = 0) -> jax.Array:
        if isinstance(span, TracedSpan):
            return span.start + jnp.arange(span.size) + start
        return super().indices(span, start)


def _size(span: Span | TracedSpan) -> int:
    return span.size if isinstance(span, TracedSpan) else span[1] - span[0]
