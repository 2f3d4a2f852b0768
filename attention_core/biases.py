"""What is added to the scores: small values that give a tile of themselves, and the gradient of their parameters.

Never ``L x L`` unless the caller's own array is. Biases are added with ``+``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from numbers import Integral
from typing import Any

from .arrays import Array, as_array, is_real_floating, jvp_of, scalar_like, sum_to_shape, vjp_of
from .checks import fits
from .pairs import Pairs
from .sizes import Sizes
from .values import Value

__all__ = ["Bias", "alibi", "dense", "relative", "rule"]


class Bias(Value):
    """Real numbers added to the scores, after scale and soft cap and before the mask; ``-inf`` masks its pair.

    >>> from attention_np import biases
    >>> biases.alibi(2)
    alibi((0.0625, 0.00390625))
    """

    __array_ufunc__ = None  # lets `array + bias` reach __radd__ instead of being tried element by element

    def values(self, pairs: Pairs, dtype: Any) -> Array:
        """Return values of ``dtype`` that broadcast to ``pairs.shape``."""
        raise NotImplementedError(f"{type(self).__qualname__} must define values(pairs, dtype)")

    def vjp(self, pairs: Pairs, cotangent: Array) -> Bias:
        """Return this bias with its arrays replaced by their cotangents, for a cotangent of these pairs' values."""
        raise NotImplementedError(f"{type(self).__qualname__} must define vjp(pairs, cotangent)")

    def jvp(self, pairs: Pairs, tangent: Bias, dtype: Any) -> Array:
        """Return the tangent of the values; ``tangent`` is this bias with its arrays replaced by tangents."""
        return tangent.values(pairs, dtype)  # every bias but a rule is linear in its arrays

    def may_mask(self) -> bool:
        """Say whether some value may be ``-inf``."""
        return False

    def check(self, xp: Any, sizes: Sizes) -> None:
        """Raise if this bias does not fit a call of these sizes."""

    def __add__(self, other: Any) -> Bias:
        return Sum(self, other if isinstance(other, Bias) else dense(other))

    def __radd__(self, other: Any) -> Bias:
        return Sum(dense(other), self)


@dataclass(frozen=True, eq=False, repr=False)
class Sum(Bias):
    """The sum of two biases."""

    left: Bias
    right: Bias

    def values(self, pairs: Pairs, dtype: Any) -> Array:
        return self.left.values(pairs, dtype) + self.right.values(pairs, dtype)

    def vjp(self, pairs: Pairs, cotangent: Array) -> Bias:
        return Sum(self.left.vjp(pairs, cotangent), self.right.vjp(pairs, cotangent))

    def jvp(self, pairs: Pairs, tangent: Bias, dtype: Any) -> Array:
        assert isinstance(tangent, Sum)
        return self.left.jvp(pairs, tangent.left, dtype) + self.right.jvp(pairs, tangent.right, dtype)

    def may_mask(self) -> bool:
        return self.left.may_mask() or self.right.may_mask()

    def check(self, xp: Any, sizes: Sizes) -> None:
        self.left.check(xp, sizes)
        self.right.check(xp, sizes)

    def __repr__(self) -> str:
        return f"{self.left!r} + {self.right!r}"


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Bias):
    """The caller's own array."""

    array: Array

    def values(self, pairs: Pairs, dtype: Any) -> Array:
        return pairs.xp.astype(pairs.per_pair(self.array), dtype)

    def vjp(self, pairs: Pairs, cotangent: Array) -> Bias:
        shape = tuple(pairs.per_pair(self.array).shape)
        return Dense(pairs.xp.astype(sum_to_shape(pairs.xp, cotangent, shape), self.array.dtype))

    def may_mask(self) -> bool:
        return True

    def check(self, xp: Any, sizes: Sizes) -> None:
        if not is_real_floating(xp, as_array(xp, self.array).dtype):
            raise TypeError(
                f"`bias` has dtype {self.array.dtype}; it must be real floating-point, and booleans are a `mask`"
            )
        if not fits(tuple(self.array.shape), sizes.scores):
            raise ValueError(
                f"`bias` has shape {tuple(self.array.shape)}, "
                f"which does not broadcast to (..., Hq, Lq, Lk) = {sizes.scores}"
            )

    def _call(self) -> str:
        return "dense"


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
        slopes = _at_heads(pairs, _sum_by_head(xp, -cotangent * distance), self.slopes.shape[0])
        return Alibi(xp.astype(slopes, self.slopes.dtype))

    def jvp(self, pairs: Pairs, tangent: Bias, dtype: Any) -> Array:
        if isinstance(self.slopes, tuple):
            return pairs.xp.zeros((1, 1, 1), dtype=dtype, device=pairs.device)
        return tangent.values(pairs, dtype)

    def check(self, xp: Any, sizes: Sizes) -> None:
        count = len(self.slopes) if isinstance(self.slopes, tuple) else tuple(self.slopes.shape)
        if count not in (sizes.heads, (sizes.heads,)):
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
        xp, (start, stop), index = pairs.xp, pairs.heads, self._index(pairs)
        by_distance = xp.take(as_array(xp, self.table)[:, start:stop], self._buckets(pairs), axis=0)
        flat = xp.take(by_distance, xp.reshape(index, (-1,)), axis=0)
        return xp.astype(xp.moveaxis(xp.reshape(flat, (*index.shape, stop - start)), -1, -3), dtype)

    def vjp(self, pairs: Pairs, cotangent: Array) -> Bias:
        xp, index = pairs.xp, self._index(pairs)
        flat = xp.take(self._buckets(pairs), xp.reshape(index, (-1,)))
        buckets = xp.reshape(flat, (*index.shape[:-2], 1, *index.shape[-2:]))
        zero = scalar_like(xp, 0.0, cotangent)
        rows = [_sum_by_head(xp, xp.where(buckets == row, cotangent, zero)) for row in range(self.table.shape[0])]
        table = _at_heads(pairs, xp.stack(rows), self.table.shape[1])
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


def _at_heads(pairs: Pairs, x: Array, heads: int) -> Array:
    """Put a tile's heads, on the last axis, among zeros for the other heads."""
    start, stop = pairs.heads
    if (start, stop) == (0, heads):
        return x
    before, after = (
        pairs.xp.zeros((*x.shape[:-1], count), dtype=x.dtype, device=pairs.device) for count in (start, heads - stop)
    )
    return pairs.xp.concat([before, x, after], axis=-1)


@dataclass(frozen=True, eq=False, repr=False)
class Rule(Bias):
    """An additive rule of the caller's own on index arrays."""

    fn: Callable[..., Array]
    params: tuple[Any, ...]
    pullback: Callable[..., tuple[Any, ...]] | None

    def values(self, pairs: Pairs, dtype: Any) -> Array:
        values = as_array(pairs.xp, self.fn(*_indices(pairs), *self.params))
        if not is_real_floating(pairs.xp, values.dtype):
            raise TypeError(f"the function of biases.rule must return real numbers; {self!r} returned {values.dtype}")
        return pairs.xp.astype(values, dtype)

    def vjp(self, pairs: Pairs, cotangent: Array) -> Bias:
        if not self.arrays():
            return self
        if self.pullback is not None:
            cotangents = self.pullback(*_indices(pairs), *self.params, cotangent)
        else:
            cotangents = vjp_of(
                pairs.xp, lambda *params: self._broadcast(pairs, params, cotangent.dtype), self.params, cotangent
            )
        return replace(self, params=tuple(cotangents))

    def jvp(self, pairs: Pairs, tangent: Bias, dtype: Any) -> Array:
        assert isinstance(tangent, Rule)
        if not self.arrays():
            return pairs.xp.zeros((1, 1, 1), dtype=dtype, device=pairs.device)
        return jvp_of(pairs.xp, lambda *params: self._broadcast(pairs, params, dtype), self.params, tangent.params)

    def _broadcast(self, pairs: Pairs, params: tuple[Any, ...], dtype: Any) -> Array:
        return pairs.xp.broadcast_to(replace(self, params=params).values(pairs, dtype), pairs.shape)

    def may_mask(self) -> bool:
        return True

    def _call(self) -> str:
        return "rule"


def _indices(pairs: Pairs) -> tuple[Array, Array, Array, Array]:
    return pairs.batch, pairs.head, pairs.query_position, pairs.key_position


# The functions that make them


def dense(array: Array) -> Bias:
    """A real array that broadcasts to ``(..., Hq, Lq, Lk)``; where it is ``-inf`` the pair is masked.

    >>> import numpy as np
    >>> from attention_np import biases
    >>> biases.dense(np.zeros((2, 3))) + biases.alibi(2)
    dense(<float64 (2, 3)>) + alibi((0.0625, 0.00390625))
    """
    if not hasattr(array, "dtype") or not hasattr(array, "shape"):
        raise TypeError(f"`bias` must be a bias or a real array; got a {type(array).__qualname__}")
    if "bool" in str(array.dtype):
        raise TypeError("`bias` is a boolean array: booleans are a `mask`, True = may attend")
    return Dense(array)


def alibi(heads_or_slopes: int | Array) -> Bias:
    """``-slope_h * abs(query_position - key_position)``: linear biases (Press, Smith and Lewis 2022).

    Given a number of heads, the slopes are the paper's: ``2^(-8 h / H)`` for a power of two, else those of the next
    lower power and then every other one of the next higher. Given slopes ``(Hq,)``, those, with a gradient.

    >>> from attention_np import biases
    >>> biases.alibi(3)
    alibi((0.0625, 0.00390625, 0.25))
    """
    if isinstance(heads_or_slopes, Integral) and not isinstance(heads_or_slopes, bool):
        if heads_or_slopes < 0:
            raise ValueError(f"`num_heads` must be at least 0; got {heads_or_slopes}")
        return Alibi(alibi_slopes(int(heads_or_slopes)))
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
    buckets = table.shape[0]
    least = 4 if bidirectional else 2
    if buckets < least or (bidirectional and buckets % 2):
        raise ValueError(
            f"`table` has {buckets} buckets; it must have at least {least}, and an even number if bidirectional"
        )
    exact = buckets // least
    if max_distance <= exact:
        raise ValueError(f"`max_distance` must be an integer above the {exact} exact distances; got {max_distance!r}")
    return Relative(table, bool(bidirectional), max_distance)


@cache
def bucket_of_distance(buckets: int, bidirectional: bool, max_distance: int) -> tuple[int, ...]:
    """The bucket of each distance ``key - query`` from ``-max_distance`` to ``max_distance``; beyond, the last one.

    The logarithm is taken by exact integers, so that no library rounds a distance into the neighbouring bucket.
    """
    side = buckets // 2 if bidirectional else buckets
    exact = side // 2

    def one_side(distance: int) -> int:
        if distance < exact:
            return distance
        steps = side - exact
        # largest k with (distance / exact) ** steps >= (max_distance / exact) ** k
        k = 0
        while k < steps - 1 and distance**steps * exact ** (k + 1) >= max_distance ** (k + 1) * exact**steps:
            k += 1
        return exact + k

    before = [one_side(distance) for distance in range(max_distance, 0, -1)]
    after = [side + one_side(d) if bidirectional else 0 for d in range(1, max_distance + 1)]
    return (*before, 0, *after)


def rule(fn: Callable[..., Array], *params: Any, vjp: Callable[..., tuple[Any, ...]] | None = None) -> Bias:
    """A bias of your own: ``fn(batch, head, query_position, key_position, *params) -> real``, on index arrays.

    Gradients to ``params`` come from the library where it can (JAX); elsewhere give
    ``vjp(batch, head, query_position, key_position, *params, cotangent) -> (cotangent of each param, ...)``.

    >>> import numpy as np
    >>> from attention_np import biases
    >>> biases.rule(lambda batch, head, query, key, w: w[head] * (key - query), np.ones(4)).params[0].shape
    (4,)
    """
    for name, function in (("fn", fn), *((("vjp", vjp),) if vjp is not None else ())):
        if not callable(function):
            raise TypeError(f"`{name}` must be a function of index arrays; got a {type(function).__qualname__}")
    return Rule(fn, params, vjp)


def _check_real(name: str, x: Any, legend: str, ndim: int) -> None:
    dtype = str(getattr(x, "dtype", ""))
    if "float" not in dtype:
        raise TypeError(f"`{name}` must be a real array {legend}; got {dtype or type(x).__qualname__}")
    if x.ndim != ndim:
        raise ValueError(f"`{name}` must have shape {legend}; got {tuple(x.shape)}")
