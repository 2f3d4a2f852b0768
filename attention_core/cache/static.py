"""The cache of compiled decoding: arrays of a fixed capacity, written in place where the compiler can."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, Unpack

from ..arrays import Array, array_namespace, is_traced
from ..masks import key_lengths
from ..values import static_int
from .base import Kept, Seen, put_tokens
from .empty import Shape, empty_arrays, made_like, no_tokens

__all__ = ["StaticCache"]


@dataclass(frozen=True, eq=False)
class StaticCache(Kept):
    """Keys and values of up to ``capacity`` tokens a sequence, all shapes fixed: the cache for ``jax.jit`` and scans.

    Sequences may be of unequal lengths; each one's tokens stand side by side, without padding.

    A token beyond the capacity is a ``ValueError`` where the lengths are known. Under a trace they are not: then it is
    not kept, and its rows of the output are NaN, as are those of all tokens after it.

    >>> import numpy as np
    >>> from attention_np import cache
    >>> empty = cache.StaticCache.empty(np.ones(1), batch=(2,), num_kv_heads=1, depth=2, capacity=8)
    >>> x = np.ones((2, 1, 3, 2))
    >>> empty.append(x, x, lengths=np.array([1, 3])).positions(2)
    array([[1, 2],
           [3, 4]])
    """

    keys: Array
    values: Array
    lengths: Array
    start: Array

    @classmethod
    def empty(cls, like: Array, *, capacity: int, **shape: Unpack[Shape]) -> Self:
        """Return a cache without tokens, of the library, dtype and device of ``like``."""
        xp, batch, heads, depths = made_like(like, shape)
        capacity = static_int("capacity", capacity, least=1)
        keys, values = empty_arrays(like, xp, *((*batch, heads, capacity, size) for size in depths))
        return cls(keys, values, *no_tokens(like, xp, batch))

    @property
    def capacity(self) -> int:
        """How many tokens a sequence may have."""
        return int(self.keys.shape[-2])

    def lacks(self) -> Array:
        return self.lengths > self.capacity

    def stored(self) -> Seen:
        return Seen(self.keys, self.values, self.start, key_lengths(self.lengths))

    def extended(self, key: Array, value: Array, positions: Array, lengths: Array, padded: bool) -> tuple[Seen, Self]:
        xp = array_namespace(("key", key))
        index = positions - self.start
        lost = index >= self.capacity
        if not is_traced(lost) and bool(xp.any(lost)):
            raise ValueError(
                f"this cache has a capacity of {self.capacity} tokens a sequence, too few for {int(xp.max(lengths))}"
            )
        slots = xp.where(lost | (positions < 0), -1, index)
        keys, values = (put_tokens(xp, self, *x, slots) for x in ((self.keys, key), (self.values, value)))
        cache = replace(self, keys=keys, values=values, lengths=lengths)
        return cache.stored()._replace(lost=lost if is_traced(lost) else None), cache
