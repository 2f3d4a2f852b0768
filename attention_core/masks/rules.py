"""The masks by position, index and segment, each a line of arithmetic on index arrays.

Positions are those of the call, so that causal masks, windows and chunks of one call can never disagree about them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from ..arrays import Array, as_array, broadcast_shapes
from ..pairs import Pairs, Span, as_index, value_range
from ..sizes import Sizes
from ..values import integer_or_array
from .algebra import Mask
from .tiles import Visibility, all_of, any_of, between, seen_in

__all__ = [
    "causal",
    "causal_lower_right",
    "chunked",
    "dense",
    "dilated",
    "global_tokens",
    "key_lengths",
    "prefix",
    "query_lengths",
    "rule",
    "segments",
    "sliding_window",
]

_UNBOUNDED = 2**31 - 1  # no position is larger, and more would not fit JAX's default int32


@dataclass(frozen=True, eq=False, repr=False)
class SlidingWindow(Mask):
    """``-left <= key_position - query_position <= right``; ``None`` bounds nothing."""

    left: int | None
    right: int | None

    def visible(self, pairs: Pairs) -> Array:
        distance = pairs.key_position - pairs.query_position
        if self.left is None:
            return distance >= distance if self.right is None else distance <= self.right
        return distance >= -self.left if self.right is None else (distance >= -self.left) & (distance <= self.right)

    def visibility(self, pairs: Pairs) -> Visibility:
        return between(_distances(pairs), None if self.left is None else -self.left, self.right)

    def __repr__(self) -> str:
        return "causal()" if (self.left, self.right) == (None, 0) else f"sliding_window({self.left}, {self.right})"


class LowerRight(SlidingWindow):
    """Causal, and the whole call's query positions start at ``Lk - Lq``."""

    def __repr__(self) -> str:
        return "causal_lower_right()"


def _distances(pairs: Pairs) -> Span | None:
    queries, keys = pairs.query_range(), pairs.key_range()
    return None if queries is None or keys is None else (keys[0] - queries[1], keys[1] - queries[0])


@dataclass(frozen=True, eq=False, repr=False)
class KeyLengths(Mask):
    """``key_index < lengths``, a length per batch item."""

    lengths: int | Array

    def visible(self, pairs: Pairs) -> Array:
        return pairs.key_index < as_index(pairs.xp, pairs.per_item(self.lengths))

    def visibility(self, pairs: Pairs) -> Visibility:
        return _below(pairs, (pairs.keys[0], pairs.keys[1] - 1), self.lengths)

    def check(self, sizes: Sizes) -> None:
        _check_shape("key_lengths", self.lengths, sizes.batch, "(...)")

    def extent(self) -> tuple[int, ...]:
        return (*_shape(self.lengths), 1, 1, 1)

    def _call(self) -> str:
        return "key_lengths"


@dataclass(frozen=True, eq=False, repr=False)
class QueryLengths(Mask):
    """``query_index < lengths``, a length per batch item."""

    lengths: int | Array

    def visible(self, pairs: Pairs) -> Array:
        return pairs.query_index < as_index(pairs.xp, pairs.per_item(self.lengths))

    def visibility(self, pairs: Pairs) -> Visibility:
        return _below(pairs, (pairs.queries[0], pairs.queries[1] - 1), self.lengths)

    def check(self, sizes: Sizes) -> None:
        _check_shape("query_lengths", self.lengths, sizes.batch, "(...)")

    def extent(self) -> tuple[int, ...]:
        return (*_shape(self.lengths), 1, 1, 1)

    def _call(self) -> str:
        return "query_lengths"


@dataclass(frozen=True, eq=False, repr=False)
class Prefix(Mask):
    """``key_position < length``, a length per batch item."""

    length: int | Array

    def visible(self, pairs: Pairs) -> Array:
        return pairs.key_position < as_index(pairs.xp, pairs.per_item(self.length))

    def visibility(self, pairs: Pairs) -> Visibility:
        return _below(pairs, pairs.key_range(), self.length)

    def check(self, sizes: Sizes) -> None:
        _check_shape("prefix", self.length, sizes.batch, "(...)")

    def extent(self) -> tuple[int, ...]:
        return (*_shape(self.length), 1, 1, 1)

    def _call(self) -> str:
        return "prefix"


def _below(pairs: Pairs, values: Span | None, limit: int | Array) -> Visibility:
    """Visibility of "value < limit" where every batch item has its own limit."""
    if isinstance(limit, int):
        return between(values, None, limit - 1)
    limits = value_range(pairs.xp, as_index(pairs.xp, pairs.per_item(limit)))
    if limits is None or values is None:
        return Visibility.MIXED
    smallest, largest = limits
    low, high = between(values, None, smallest - 1), between(values, None, largest - 1)
    return low if low is high else Visibility.MIXED


@dataclass(frozen=True, eq=False, repr=False)
class GlobalTokens(Mask):
    """``query_position < count or key_position < count``."""

    count: int

    def visible(self, pairs: Pairs) -> Array:
        return (pairs.query_position < self.count) | (pairs.key_position < self.count)

    def visibility(self, pairs: Pairs) -> Visibility:
        queries, keys = pairs.query_range(), pairs.key_range()
        return any_of(between(queries, None, self.count - 1), between(keys, None, self.count - 1))

    def _call(self) -> str:
        return "global_tokens"


@dataclass(frozen=True, eq=False, repr=False)
class Chunked(Mask):
    """``query_position // size == key_position // size``."""

    size: int

    def visible(self, pairs: Pairs) -> Array:
        return pairs.query_position // self.size == pairs.key_position // self.size

    def visibility(self, pairs: Pairs) -> Visibility:
        queries, keys = pairs.query_range(), pairs.key_range()
        if queries is None or keys is None:
            return Visibility.MIXED
        return _equal_ranges(tuple(p // self.size for p in queries), tuple(p // self.size for p in keys))

    def _call(self) -> str:
        return "chunked"


@dataclass(frozen=True, eq=False, repr=False)
class Dilated(Mask):
    """The distance of the positions is divisible by ``step``."""

    step: int

    def visible(self, pairs: Pairs) -> Array:
        return (pairs.query_position - pairs.key_position) % self.step == 0

    def visibility(self, pairs: Pairs) -> Visibility:
        distances = _distances(pairs)
        if distances is None:
            return Visibility.MIXED
        if self.step == 1:
            return Visibility.FULL
        low, high = distances
        return Visibility.EMPTY if -(-low // self.step) > high // self.step else Visibility.MIXED

    def _call(self) -> str:
        return "dilated"


@dataclass(frozen=True, eq=False, repr=False)
class Segments(Mask):
    """Query and key carry the same id; a negative id is padding, which sees nothing and is seen by nobody."""

    query_ids: Array
    key_ids: Array | None

    def visible(self, pairs: Pairs) -> Array:
        queries, keys = self._ids(pairs)
        return (queries == keys) & (queries >= 0)

    def visibility(self, pairs: Pairs) -> Visibility:
        queries, keys = (value_range(pairs.xp, ids) for ids in self._ids(pairs))
        if queries is None or keys is None:
            return Visibility.MIXED
        return all_of(_equal_ranges(queries, keys), between(queries, 0, None), between(keys, 0, None))

    def _ids(self, pairs: Pairs) -> tuple[Array, Array]:
        keys = self.query_ids if self.key_ids is None else self.key_ids
        return as_index(pairs.xp, pairs.per_query(self.query_ids)), as_index(pairs.xp, pairs.per_key(keys))

    def check(self, sizes: Sizes) -> None:
        if self.key_ids is None and sizes.queries != sizes.keys:
            raise ValueError(
                f"segments needs `key_ids` where the number of queries, {sizes.queries}, "
                f"is not that of keys, {sizes.keys}"
            )
        _check_shape("query_ids", self.query_ids, (*sizes.batch, sizes.queries), "(..., Lq)", exact=1)
        if self.key_ids is not None:
            _check_shape("key_ids", self.key_ids, (*sizes.batch, sizes.keys), "(..., Lk)", exact=1)

    def extent(self) -> tuple[int, ...]:
        queries = tuple(self.query_ids.shape)
        keys = queries if self.key_ids is None else tuple(self.key_ids.shape)
        return broadcast_shapes((*queries[:-1], 1, queries[-1], 1), (*keys[:-1], 1, 1, keys[-1]))

    def _call(self) -> str:
        return "segments"


def _equal_ranges(a: tuple[int, ...], b: tuple[int, ...]) -> Visibility:
    if a[1] < b[0] or b[1] < a[0]:
        return Visibility.EMPTY
    return Visibility.FULL if a[0] == a[1] == b[0] == b[1] else Visibility.MIXED


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Mask):
    """The caller's own booleans."""

    values: Array

    def visible(self, pairs: Pairs) -> Array:
        return pairs.per_pair(self.values)

    def visibility(self, pairs: Pairs) -> Visibility:
        return seen_in(pairs.xp, self.visible(pairs))

    def check(self, sizes: Sizes) -> None:
        _check_shape("mask", self.values, sizes.scores, "(..., Hq, Lq, Lk)")

    def extent(self) -> tuple[int, ...]:
        return broadcast_shapes(tuple(self.values.shape), (1, 1, 1))

    def _call(self) -> str:
        return "dense"


@dataclass(frozen=True, eq=False, repr=False)
class Rule(Mask):
    """A rule of the caller's own on index arrays."""

    fn: Callable[..., Array]
    params: tuple[Any, ...]

    def visible(self, pairs: Pairs) -> Array:
        seen = self.fn(pairs.batch, pairs.head, pairs.query_position, pairs.key_position, *self.params)
        seen = as_array(pairs.xp, seen)
        if seen.dtype != pairs.xp.bool:
            raise TypeError(f"the function of masks.rule must return booleans; {self!r} returned {seen.dtype}")
        return seen

    def _call(self) -> str:
        return "rule"


def _shape(x: int | Array) -> tuple[int, ...]:
    return () if isinstance(x, int) else tuple(x.shape)


def _check_shape(name: str, x: Any, shape: tuple[int, ...], legend: str, exact: int = 0) -> None:
    """Check that an array broadcasts to ``shape``, its last ``exact`` axes without broadcasting."""
    if isinstance(x, int):
        return
    try:
        fits = (
            broadcast_shapes(tuple(x.shape), shape) == shape
            and x.shape[x.ndim - exact :] == shape[len(shape) - exact :]
        )
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"`{name}` has shape {tuple(x.shape)}, which does not broadcast to {legend} = {shape}")


# The functions that make them


def causal() -> Mask:
    """Keys up to the query's own position: ``key_position <= query_position``.

    With the default positions of a call this is the upper-left triangle, also for ``Lq != Lk``; a call that continues a
    cache of ``n`` keys passes ``query_positions=n``.

    >>> from attention_np import masks
    >>> masks.causal().array(2, 4, query_positions=2)[0].astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    return SlidingWindow(None, 0)


def causal_lower_right() -> Mask:
    """Causal with the last query at the last key: shorthand for ``query_positions = Lk - Lq`` and ``causal()``.

    It sets the positions of the whole call, so that a window or a bias beside it agrees; a call that gives
    ``query_positions`` or ``key_positions`` too is a ``ValueError``.

    >>> from attention_np import masks
    >>> masks.causal_lower_right().array(2, 4)[0].astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    return LowerRight(None, 0)


def sliding_window(left: int | None, right: int | None) -> Mask:
    """``left`` positions before the query's own and ``right`` after it: ``-left <= key - query <= right``.

    Both count *extra* positions, the query's own is always visible; ``None`` means no bound and a negative number is a
    ``ValueError``. A model's "window of w keys" (Mistral) is ``sliding_window(w - 1, 0)``.

    >>> from attention_np import masks
    >>> masks.sliding_window(1, 0).array(3, 4)[0].astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0]])
    """
    return SlidingWindow(_bound("left", left), _bound("right", right))


def _bound(name: str, value: Any) -> int | None:
    if value is None:
        return None
    value = _static_int(name, value, least=0)
    return None if value >= _UNBOUNDED else value


def _limit(name: str, value: Any) -> int | Array:
    value = integer_or_array(name, value)
    return max(-_UNBOUNDED, min(value, _UNBOUNDED)) if isinstance(value, int) else value


def key_lengths(lengths: int | Array) -> Mask:
    """Only the first ``lengths`` keys exist: those at *index* ``>= lengths`` are invisible.

    A length per batch item, ``(...)``. Every integer is defined: one below 0 is as 0, one above ``Lk`` as ``Lk``.

    >>> import numpy as np
    >>> from attention_np import masks
    >>> masks.key_lengths(np.array([1, 3])).array(1, 4, batch=(2,))[:, 0, 0].astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 1, 0]])
    """
    return KeyLengths(_limit("lengths", lengths))


def query_lengths(lengths: int | Array) -> Mask:
    """Rows at *index* ``>= lengths`` see nothing. A length per batch item, ``(...)``; every integer is defined.

    >>> from attention_np import masks
    >>> masks.query_lengths(1).array(2, 3)[0].astype(int)
    array([[1, 1, 1],
           [0, 0, 0]])
    """
    return QueryLengths(_limit("lengths", lengths))


def segments(query_ids: Array, key_ids: Array | None = None) -> Mask:
    """Pairs whose integer ids are equal: packed documents. A negative id is padding and sees nothing.

    ``query_ids`` is ``(..., Lq)``, ``key_ids`` ``(..., Lk)``, by default the same.

    >>> import numpy as np
    >>> from attention_np import masks
    >>> masks.segments(np.array([0, 0, 1, -1])).array(4, 4)[0].astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 0],
           [0, 0, 0, 0]])
    """
    ids = [("query_ids", query_ids)] + ([] if key_ids is None else [("key_ids", key_ids)])
    for name, x in ids:
        if isinstance(integer_or_array(name, x), int) or x.ndim == 0:
            raise TypeError(f"`{name}` must be an integer array (..., L); got a single integer")
    return Segments(query_ids, key_ids)


def prefix(length: int | Array) -> Mask:
    """Keys at position ``< length``, for every query; a prefix-LM is ``prefix(n) | causal()``.

    A length per batch item, ``(...)``.

    >>> from attention_np import masks
    >>> (masks.prefix(2) | masks.causal()).array(3, 3)[0].astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [1, 1, 1]])
    """
    return Prefix(_limit("length", length))


def chunked(size: int) -> Mask:
    """Positions in the same chunk: ``query_position // size == key_position // size`` (Llama 4, with ``& causal()``).

    >>> from attention_np import masks
    >>> masks.chunked(2).array(3, 4)[0].astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 1]])
    """
    return Chunked(_static_int("size", size, least=1))


def dilated(step: int) -> Mask:
    """Positions whose distance is divisible by ``step`` (the strided pattern of Child et al. 2019).

    >>> from attention_np import masks
    >>> masks.dilated(2).array(2, 5)[0].astype(int)
    array([[1, 0, 1, 0, 1],
           [0, 1, 0, 1, 0]])
    """
    return Dilated(_static_int("step", step, least=1))


def global_tokens(count: int) -> Mask:
    """The first ``count`` positions see and are seen by all: ``query_position < count or key_position < count``.

    With ``| sliding_window(...)`` this is the pattern of Longformer and BigBird.

    >>> from attention_np import masks
    >>> masks.global_tokens(1).array(3, 3)[0].astype(int)
    array([[1, 1, 1],
           [1, 0, 0],
           [1, 0, 0]])
    """
    return GlobalTokens(_static_int("count", count, least=0))


def dense(values: Array) -> Mask:
    """A boolean array that broadcasts to ``(..., Hq, Lq, Lk)``; ``True`` = may attend.

    >>> import numpy as np
    >>> from attention_np import masks
    >>> masks.dense(np.array([True, False])) & masks.causal()
    dense(<bool (2,)>) & causal()
    """
    dtype = str(getattr(values, "dtype", None))
    if "bool" not in dtype:
        got = f"an array of {dtype}" if hasattr(values, "dtype") else f"a {type(values).__qualname__}"
        raise TypeError(f"`mask` must be a mask or a boolean array, True = may attend; got {got}: numbers are a `bias`")
    return Dense(values)


def rule(fn: Callable[..., Array], *params: Any) -> Mask:
    """A rule of your own: ``fn(batch, head, query_position, key_position, *params) -> bool``.

    The arguments are integer arrays that broadcast against each other, for a tile at a time, so write it with operators
    and the functions of their library. Arrays that the rule needs go in as ``params`` (a function that closes over
    traced arrays cannot be differentiated through by a custom rule).

    >>> from attention_np import masks
    >>> every_third = masks.rule(lambda batch, head, query, key: (query + key) % 3 == 0)
    >>> every_third.array(2, 4)[0].astype(int)
    array([[1, 0, 0, 1],
           [0, 0, 1, 0]])
    """
    if not callable(fn):
        raise TypeError(f"`fn` must be a function of index arrays; got a {type(fn).__qualname__}")
    return Rule(fn, params)


def _static_int(name: str, value: Any, least: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"`{name}` must be a Python integer; got a {type(value).__qualname__}")
    if value < least:
        raise ValueError(f"`{name}` must be at least {least}; got {value}")
    return min(int(value), _UNBOUNDED)
