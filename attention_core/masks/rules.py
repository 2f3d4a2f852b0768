"""The masks by position, each a line of arithmetic on index arrays.

Positions are those of the call, so that causal masks, windows and chunks of one call can never disagree about them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays import Array
from ..pairs import Pairs, Range, as_index
from ..sizes import Sizes
from .algebra import Mask
from .arguments import bound, check_shape, limit, reach, shape_of
from .tiles import Code, Visibility, any_of, below, between, coded, equal_ranges

__all__ = [
    "causal",
    "causal_lower_right",
    "chunked",
    "dilated",
    "global_tokens",
    "prefix",
    "sliding_window",
]


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

    def code(self, pairs: Pairs) -> Code:
        return between(_distances(pairs), None if self.left is None else -self.left, self.right)

    def __repr__(self) -> str:
        return "causal()" if (self.left, self.right) == (None, 0) else f"sliding_window({self.left}, {self.right})"


class LowerRight(SlidingWindow):
    """Causal, and the whole call's query positions start at ``Lk - Lq``."""

    def __repr__(self) -> str:
        return "causal_lower_right()"


def _distances(pairs: Pairs) -> Range | None:
    queries, keys = pairs.query_range(), pairs.key_range()
    return None if queries is None or keys is None else (keys[0] - queries[1], keys[1] - queries[0])


@dataclass(frozen=True, eq=False, repr=False)
class Prefix(Mask):
    """``key_position < length``, a length per batch item."""

    length: int | Array

    def visible(self, pairs: Pairs) -> Array:
        return pairs.key_position < as_index(pairs.xp, pairs.per_item(self.length))

    def code(self, pairs: Pairs) -> Code:
        return below(pairs, pairs.key_range(), self.length)

    def check(self, sizes: Sizes) -> None:
        check_shape("length` of `prefix", self.length, sizes.batch, "(...)")

    def extent(self) -> tuple[int, ...]:
        return (*shape_of(self.length), 1, 1, 1)

    def _call(self) -> str:
        return "prefix"


@dataclass(frozen=True, eq=False, repr=False)
class GlobalTokens(Mask):
    """``query_position < count or key_position < count``."""

    count: int

    def visible(self, pairs: Pairs) -> Array:
        return (pairs.query_position < self.count) | (pairs.key_position < self.count)

    def code(self, pairs: Pairs) -> Code:
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

    def code(self, pairs: Pairs) -> Code:
        queries, keys = pairs.query_range(), pairs.key_range()
        if queries is None or keys is None:
            return Visibility.MIXED
        (q_low, q_high), (k_low, k_high) = queries, keys
        return equal_ranges((q_low // self.size, q_high // self.size), (k_low // self.size, k_high // self.size))

    def _call(self) -> str:
        return "chunked"


@dataclass(frozen=True, eq=False, repr=False)
class Dilated(Mask):
    """The distance of the positions is divisible by ``step``."""

    step: int

    def visible(self, pairs: Pairs) -> Array:
        return (pairs.query_position - pairs.key_position) % self.step == 0

    def code(self, pairs: Pairs) -> Code:
        distances = _distances(pairs)
        if distances is None:
            return Visibility.MIXED
        low, high = distances
        none = -(-low // self.step) > high // self.step  # no multiple of the step in between
        return coded(none, (low % self.step == 0) & ((low == high) | (self.step == 1)))

    def _call(self) -> str:
        return "dilated"


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
    return SlidingWindow(bound("left", left), bound("right", right))


def prefix(length: int | Array) -> Mask:
    """Keys at position ``< length``, for every query; a prefix-LM is ``prefix(n) | causal()``.

    A length per batch item, ``(...)``.

    >>> from attention_np import masks
    >>> (masks.prefix(2) | masks.causal()).array(3, 3)[0].astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [1, 1, 1]])
    """
    return Prefix(limit("length", length))


def chunked(size: int) -> Mask:
    """Positions in the same chunk: ``query_position // size == key_position // size`` (Llama 4, with ``& causal()``).

    >>> from attention_np import masks
    >>> masks.chunked(2).array(3, 4)[0].astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 1]])
    """
    return Chunked(reach("size", size, least=1))


def dilated(step: int) -> Mask:
    """Positions whose distance is divisible by ``step`` (the strided pattern of Child et al. 2019).

    >>> from attention_np import masks
    >>> masks.dilated(2).array(2, 5)[0].astype(int)
    array([[1, 0, 1, 0, 1],
           [0, 1, 0, 1, 0]])
    """
    return Dilated(reach("step", step, least=1))


def global_tokens(count: int) -> Mask:
    """The first ``count`` positions see and are seen by all: ``query_position < count or key_position < count``.

    With ``| sliding_window(...)`` this is the pattern of Longformer and BigBird.

    >>> from attention_np import masks
    >>> masks.global_tokens(1).array(3, 3)[0].astype(int)
    array([[1, 1, 1],
           [1, 0, 0],
           [1, 0, 0]])
    """
    return GlobalTokens(reach("count", count, least=0))
