"""The masks that the caller's own arrays and functions say: lengths, segments, booleans, a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..arrays import Array, as_array, broadcast_shapes, default_int, describe, dtype_name
from ..checks import fits
from ..pairs import Pairs, as_index, value_range
from ..sizes import Sizes
from ..values import integer_or_array
from .algebra import Mask
from .arguments import check_shape, limit, shape_of
from .tiles import Code, Visibility, all_of, below, between, equal_ranges, seen_in

__all__ = ["dense", "key_lengths", "query_lengths", "rule", "segments"]


@dataclass(frozen=True, eq=False, repr=False)
class KeyLengths(Mask):
    """``key_index < lengths``, a length per batch item."""

    lengths: int | Array

    def visible(self, pairs: Pairs) -> Array:
        return pairs.key_index < as_index(pairs.xp, pairs.per_item(self.lengths))

    def code(self, pairs: Pairs) -> Code:
        return below(pairs, pairs.ends(pairs.keys), self.lengths)

    def check(self, sizes: Sizes) -> None:
        check_shape("lengths` of `key_lengths", self.lengths, sizes.batch, "(...)")

    def extent(self) -> tuple[int, ...]:
        return (*shape_of(self.lengths), 1, 1, 1)

    def _call(self) -> str:
        return "key_lengths"


@dataclass(frozen=True, eq=False, repr=False)
class QueryLengths(Mask):
    """``query_index < lengths``, a length per batch item."""

    lengths: int | Array

    def visible(self, pairs: Pairs) -> Array:
        return pairs.query_index < as_index(pairs.xp, pairs.per_item(self.lengths))

    def code(self, pairs: Pairs) -> Code:
        return below(pairs, pairs.ends(pairs.queries), self.lengths)

    def check(self, sizes: Sizes) -> None:
        check_shape("lengths` of `query_lengths", self.lengths, sizes.batch, "(...)")

    def extent(self) -> tuple[int, ...]:
        return (*shape_of(self.lengths), 1, 1, 1)

    def _call(self) -> str:
        return "query_lengths"


@dataclass(frozen=True, eq=False, repr=False)
class Segments(Mask):
    """Query and key carry the same id; a negative id is padding, which sees nothing and is seen by nobody."""

    query_ids: Array
    key_ids: Array | None

    def visible(self, pairs: Pairs) -> Array:
        (queries, query_least), (keys, key_least) = self._ids(pairs)
        seen = queries == keys
        for ids, least in ((queries, query_least), (keys, key_least)):
            seen = seen if least is None else seen & (ids >= least)
        return seen

    def code(self, pairs: Pairs) -> Code:
        (queries, query_least), (keys, key_least) = self._ids(pairs)
        asked, found = value_range(pairs.xp, queries), value_range(pairs.xp, keys)
        if asked is None or found is None:
            return Visibility.MIXED
        real = all_of(between(asked, query_least, None), between(found, key_least, None))
        return all_of(equal_ranges(asked, found), real)

    def _ids(self, pairs: Pairs) -> tuple[tuple[Array, int | None], tuple[Array, int | None]]:
        """The ids of queries and keys in one dtype, and the least that is not padding.

        Large unsigned ids wrap around, which keeps them apart; they are never padding.
        """
        xp = pairs.xp
        keys = self.query_ids if self.key_ids is None else self.key_ids
        cut = pairs.per_query(self.query_ids), pairs.per_key(keys)
        least = tuple(None if dtype_name(ids.dtype).startswith("uint") else 0 for ids in cut)
        queries, keys = (xp.astype(ids, default_int(xp)) for ids in cut)
        return (queries, least[0]), (keys, least[1])

    def check(self, sizes: Sizes) -> None:
        if self.key_ids is None and sizes.queries != sizes.keys:
            raise ValueError(
                f"segments needs `key_ids` where the number of queries, {sizes.queries}, "
                f"is not that of keys, {sizes.keys}"
            )
        check_shape("query_ids", self.query_ids, (*sizes.batch, sizes.queries), "(..., Lq)", exact=1)
        if self.key_ids is not None:
            check_shape("key_ids", self.key_ids, (*sizes.batch, sizes.keys), "(..., Lk)", exact=1)

    def extent(self) -> tuple[int, ...]:
        queries = tuple(self.query_ids.shape)
        keys = queries if self.key_ids is None else tuple(self.key_ids.shape)
        return broadcast_shapes((*queries[:-1], 1, queries[-1], 1), (*keys[:-1], 1, 1, keys[-1]))

    def _call(self) -> str:
        return "segments"


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Mask):
    """The caller's own booleans."""

    values: Array

    def visible(self, pairs: Pairs) -> Array:
        return pairs.per_pair(self.values)

    def code(self, pairs: Pairs) -> Code:
        return seen_in(pairs.xp, self.visible(pairs))

    def check(self, sizes: Sizes) -> None:
        check_shape("mask", self.values, sizes.scores, "(..., Hq, Lq, Lk)")

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
        if not (isinstance(seen, bool) or "bool" in dtype_name(getattr(seen, "dtype", ""))):
            raise TypeError(f"the function of masks.rule must return booleans; {self!r} returned {describe(seen)}")
        seen = as_array(pairs.xp, seen)
        if not fits(tuple(seen.shape), pairs.shape):
            raise ValueError(
                f"the function of masks.rule must return booleans that broadcast to {pairs.shape}; "
                f"{self!r} returned shape {tuple(seen.shape)}"
            )
        return seen

    def _call(self) -> str:
        return "rule"


# The functions that make them


def key_lengths(lengths: int | Array) -> Mask:
    """Only the first ``lengths`` keys exist: those at *index* ``>= lengths`` are invisible.

    A length per batch item, ``(...)``. Every integer is defined: one below 0 is as 0, one above ``Lk`` as ``Lk``.

    >>> import numpy as np
    >>> from attention_np import masks
    >>> masks.key_lengths(np.array([1, 3])).array(1, 4, batch=(2,))[:, 0, 0].astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 1, 0]])
    """
    return KeyLengths(limit("lengths", lengths))


def query_lengths(lengths: int | Array) -> Mask:
    """Rows at *index* ``>= lengths`` see nothing. A length per batch item, ``(...)``; every integer is defined.

    >>> from attention_np import masks
    >>> masks.query_lengths(1).array(2, 3)[0].astype(int)
    array([[1, 1, 1],
           [0, 0, 0]])
    """
    return QueryLengths(limit("lengths", lengths))


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


def dense(values: Array) -> Mask:
    """A boolean array that broadcasts to ``(..., Hq, Lq, Lk)``; ``True`` = may attend.

    >>> import numpy as np
    >>> from attention_np import masks
    >>> masks.dense(np.array([True, False])) & masks.causal()
    dense(<bool (2,)>) & causal()
    """
    if "bool" not in str(getattr(values, "dtype", None)):
        raise TypeError(
            f"`mask` must be a mask or a boolean array, True = may attend; got {describe(values)}: numbers are a `bias`"
        )
    return Dense(values)


def rule(fn: Callable[..., Array], *params: Any) -> Mask:
    """A rule of your own: ``fn(batch, head, query_position, key_position, *params) -> bool``.

    The arguments are integer arrays that broadcast against each other, for a tile at a time, so write it with operators
    and the functions of their library. Arrays that the rule needs go in as ``params`` (a function that closes over
    traced arrays cannot be differentiated through by a custom rule), and so does what changes: a compiled call asks a
    function once, and never again what else it reads.

    >>> from attention_np import masks
    >>> every_third = masks.rule(lambda batch, head, query, key: (query + key) % 3 == 0)
    >>> every_third.array(2, 4)[0].astype(int)
    array([[1, 0, 0, 1],
           [0, 0, 1, 0]])
    """
    if not callable(fn):
        raise TypeError(f"`fn` must be a function of index arrays; got {describe(fn)}")
    return Rule(fn, params)
