"""The biases by distance: ALiBi's slopes and T5's buckets, both per head."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from numbers import Integral
from typing import Any

from ..arrays import Array, as_array, describe, dtype_name, scalar_like
from ..pairs import Pairs
from ..sizes import Sizes
from ..values import static_int
from .algebra import Bias

__all__ = ["alibi", "relative"]

_MOST_HEADS = 2**16
_FARTHEST = 2**20  # a table of a bucket a distance is made


@dataclass(frozen=True, eq=False, repr=False)
class Alibi(Bias):
    """``-slope_h * abs(query_position - key_position)``."""

    slopes: tuple[float, ...] | Array

    def values(self, pairs: Pairs, dtype: Any) -> Array:
        distance = pairs.query_position - pairs.key_position
        return -self._slopes(pairs, dtype) * pairs.xp.astype(abs(distance), dtype)

    def vjp(self, pairs: Pairs, cotangent: Array) -> Bias:
        if isinstance(self.slopes, tuple):
            return self  # slopes given as numbers are constants
        xp = pairs.xp
        distance = xp.astype(abs(pairs.query_position - pairs.key_position), cotangent.dtype)
        slopes = pairs.spread(_sum_by_head(xp, -cotangent * distance), -1, pairs.heads, self.slopes.shape[0])
        return Alibi(xp.astype(slopes, self.slopes.dtype))

    def jvp(self, pairs: Pairs, tangent: Bias, dtype: Any) -> Array:
        if isinstance(self.slopes, tuple):
            return pairs.xp.zeros((1, 1, 1), dtype=dtype, device=pairs.device)
        return tangent.values(pairs, dtype)

    def check(self, xp: Any, sizes: Sizes) -> None:
        count = len(self.slopes) if isinstance(self.slopes, tuple) else self.slopes.shape[0]
        if count != sizes.heads:
            raise ValueError(f"`bias` is alibi with slopes for {count} heads, but `query` has {sizes.heads} heads")

    def _slopes(self, pairs: Pairs, dtype: Any) -> Array:
        xp = pairs.xp
        given = self.slopes
        array = xp.asarray(given, dtype=dtype, device=pairs.device) if isinstance(given, tuple) else as_array(xp, given)
        return pairs.per_head(xp.astype(array, dtype))

    def _call(self) -> str:
        return "alibi"


@dataclass(frozen=True, eq=False, repr=False)
class Relative(Bias):
    """``table[bucket(key_position - query_position), head]``."""

    table: Array
    bidirectional: bool
    max_distance: int

    def values(self, pairs: Pairs, dtype: Any) -> Array:
        xp, index = pairs.xp, self._index(pairs)
        table = pairs.cut(as_array(xp, self.table), -1, pairs.heads)
        by_distance = xp.take(table, self._buckets(pairs), axis=0)
        flat = xp.take(by_distance, xp.reshape(index, (-1,)), axis=0)
        return xp.astype(xp.moveaxis(xp.reshape(flat, (*index.shape, table.shape[-1])), -1, -3), dtype)

    def vjp(self, pairs: Pairs, cotangent: Array) -> Bias:
        xp, index = pairs.xp, self._index(pairs)
        flat = xp.take(self._buckets(pairs), xp.reshape(index, (-1,)))
        buckets = xp.reshape(flat, (*index.shape[:-2], 1, *index.shape[-2:]))
        zero = scalar_like(xp, 0.0, cotangent)
        rows = [_sum_by_head(xp, xp.where(buckets == row, cotangent, zero)) for row in range(self.table.shape[0])]
        table = pairs.spread(xp.stack(rows), -1, pairs.heads, self.table.shape[1])
        return replace(self, table=xp.astype(table, self.table.dtype))

    def may_mask(self) -> bool:
        return True

    def check(self, xp: Any, sizes: Sizes) -> None:
        if self.table.shape[1] != sizes.heads:
            raise ValueError(
                f"`bias` is relative with a table for {self.table.shape[1]} heads, but `query` has {sizes.heads} heads"
            )

    def _index(self, pairs: Pairs) -> Array:
        distance = pairs.key_position - pairs.query_position
        clipped = pairs.xp.clip(distance, -self.max_distance, self.max_distance) + self.max_distance
        return clipped if clipped.ndim == 2 else clipped[..., 0, :, :]  # without the head axis, which is 1

    def _buckets(self, pairs: Pairs) -> Array:
        table = bucket_of_distance(self.table.shape[0], self.bidirectional, self.max_distance)
        return pairs.xp.asarray(table, device=pairs.device)

    def _call(self) -> str:
        return "relative"


def _sum_by_head(xp: Any, x: Array) -> Array:
    axes = tuple(axis for axis in range(x.ndim) if axis != x.ndim - 3)
    return xp.sum(x, axis=axes)


# The functions that make them


def alibi(heads_or_slopes: int | Array) -> Bias:
    """``-slope_h * abs(query_position - key_position)``: linear biases (Press, Smith and Lewis 2022).

    Given a number of heads, the slopes are the paper's: ``2^(-8 h / H)`` for a power of two, else those of the next
    lower power and then every other one of the next higher. Given slopes ``(Hq,)``, those, with a gradient.

    >>> from attention_np import biases
    >>> biases.alibi(3)
    alibi((0.0625, 0.00390625, 0.25))
    """
    if isinstance(heads_or_slopes, Integral) and not isinstance(heads_or_slopes, bool):
        return Alibi(alibi_slopes(static_int("num_heads", heads_or_slopes, least=0, most=_MOST_HEADS)))
    _check_real("slopes", heads_or_slopes, "(Hq,)", ndim=1)
    return Alibi(heads_or_slopes)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """The slopes of the ALiBi paper for any number of heads."""
    power = 2 ** int(math.log2(heads)) if heads else 0
    slopes = tuple(2.0 ** (-8.0 * h / power) for h in range(1, power + 1))
    if power == heads:
        return slopes
    return slopes + tuple(2.0 ** (-4.0 * h / power) for h in range(1, 2 * (heads - power), 2))


def relative(table: Array, *, bidirectional: bool = True, max_distance: int = 128) -> Bias:
    """``table[bucket(key_position - query_position), h]``: T5's bias (Raffel et al. 2020), ``table (buckets, Hq)``.

    Half of the buckets (a quarter a side where bidirectional) hold one distance each, the others grow as its logarithm
    up to ``max_distance``. ``bidirectional=False`` is for decoders: keys after the query share bucket 0.

    >>> import numpy as np
    >>> from attention_np import biases
    >>> biases.relative(np.zeros((32, 8)))
    relative(<float64 (32, 8)>, True, 128)
    """
    _check_real("table", table, "(buckets, Hq)", ndim=2)
    if not isinstance(bidirectional, bool):
        raise TypeError(f"`bidirectional` must be True or False; got {describe(bidirectional)}")
    buckets = table.shape[0]
    least = 4 if bidirectional else 2
    if buckets < least or (bidirectional and buckets % 2):
        raise ValueError(
            f"`table` has {buckets} buckets; it must have at least {least}, and an even number if bidirectional"
        )
    return Relative(table, bidirectional, static_int("max_distance", max_distance, buckets // least + 1, _FARTHEST))


@cache
def bucket_of_distance(buckets: int, bidirectional: bool, max_distance: int) -> tuple[int, ...]:
    """The bucket of each distance ``key - query`` from ``-max_distance`` to ``max_distance``; beyond, the last one.

    The logarithm is taken by exact integers, so that no library rounds a distance into the neighbouring bucket.
    """
    side = buckets // 2 if bidirectional else buckets
    exact = side // 2

    def starts(k: int) -> int:
        """The least distance whose logarithm reaches step ``k``: ``(d / exact)^steps >= (max_distance / exact)^k``."""
        steps, far = side - exact, range(exact, max_distance)
        return exact + bisect_left(far, max_distance**k * exact**steps, key=lambda d: d**steps * exact**k)

    ends = [*range(1, exact + 1), *(starts(k) for k in range(1, side - exact)), max_distance + 1]
    one_side = [bucket for bucket, (a, b) in enumerate(pairwise([0, *ends])) for _ in range(a, b)]
    after = [side + bucket if bidirectional else 0 for bucket in one_side[1:]]
    return (*one_side[:0:-1], 0, *after)


def _check_real(name: str, x: Any, legend: str, ndim: int) -> None:
    if "float" not in dtype_name(getattr(x, "dtype", "")):
        raise TypeError(f"`{name}` must be a real array {legend}; got {describe(x)}")
    if x.ndim != ndim:
        raise ValueError(f"`{name}` must have shape {legend}; got {tuple(x.shape)}")
