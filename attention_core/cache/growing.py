"""The cache of plain decoding: arrays that grow with the text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, Unpack

from ..arrays import Array, array_namespace, cast, default_int, device_of, is_traced
from .base import Kept, Seen, flat
from .empty import Shape, empty_arrays, made_like, no_tokens
from .positions import PADDING, real

__all__ = ["GrowingCache"]


@dataclass(frozen=True, eq=False)
class GrowingCache(Kept):
    """Keys and values of all tokens, concatenated: the cache for NumPy, and for any length.

    Padding stays among the keys, hidden. Under ``jax.jit`` each length would be another program: use
    :class:`StaticCache` there.

    >>> import numpy as np
    >>> from attention_np import cache
    >>> empty = cache.GrowingCache.empty(np.ones(1), num_kv_heads=1, depth=2)
    >>> x = np.ones((1, 3, 2))
    >>> empty.append(x, x).append(x, x).keys.shape
    (1, 6, 2)
    """

    keys: Array
    values: Array
    places: Array
    lengths: Array
    start: Array
    padded: bool = field(default=False, metadata={"option": True})

    of_sequences: ClassVar[tuple[str, ...]] = ("keys", "values", "places", "lengths")

    @classmethod
    def empty(cls, like: Array, **shape: Unpack[Shape]) -> Self:
        """Return a cache without tokens, of the library, dtype and device of ``like``."""
        xp, batch, heads, depths = made_like(like, shape)
        keys, values = empty_arrays(like, xp, *((*batch, heads, 0, size) for size in depths))
        places = xp.zeros((*batch, 0), dtype=default_int(xp), device=device_of(xp, like))
        return cls(keys, values, places, *no_tokens(like, xp, batch))

    def stored(self) -> Seen:
        return Seen(self.keys, self.values, self.places, real() if self.padded else None)

    def extended(self, key: Array, value: Array, positions: Array, lengths: Array, padded: bool) -> tuple[Seen, Self]:
        xp = array_namespace(("key", key))
        keys, values = (
            xp.concat([held, cast(xp, new, held.dtype)], axis=-2)
            for held, new in ((self.keys, key), (self.values, value))
        )
        places = xp.concat([self.places, positions], axis=-1)
        cache = replace(self, keys=keys, values=values, places=places, lengths=lengths, padded=self.padded or padded)
        return cache.stored(), cache

    def truncate(self, lengths: int | Array) -> Self:
        xp, left = array_namespace(("lengths", self.lengths)), self.shortened(lengths)
        places = xp.where(self.places < (self.start + left)[..., None], self.places, PADDING)
        cache = replace(self, places=places, lengths=left, padded=True)
        return cache if is_traced(places) else cache._trimmed()

    def _trimmed(self) -> Self:
        """Return the cache without the last places, where no sequence has a token any more."""
        xp = array_namespace(("lengths", self.lengths))
        held = xp.any(flat(xp, self.places >= 0, self.batch), axis=0)
        ends = xp.arange(1, held.shape[0] + 1, device=device_of(xp, held))
        count = int(xp.max(xp.where(held, ends, 0))) if held.shape[0] else 0
        places = self.places[..., :count]
        keys, values = (x[..., :count, :] for x in (self.keys, self.values))
        return replace(self, keys=keys, values=values, places=places, padded=bool(xp.any(places < 0)))
