"""The cache of a window: a ring of exactly as many keys as a query may see."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import ClassVar, Self, Unpack

from ..arrays import Array, array_namespace, cast, device_of, is_traced
from ..masks import sliding_window
from ..values import static_int
from .base import Kept, Seen, put_tokens
from .empty import Shape, empty_arrays, made_like, no_tokens
from .positions import PADDING, real

__all__ = ["SlidingCache"]


@dataclass(frozen=True, eq=False)
class SlidingCache(Kept):
    """Keys and values of the last ``window`` tokens of each sequence, whatever its length: Mistral, Gemma, gpt-oss.

    Token ``i`` stands at index ``i % window`` until token ``i + window`` takes its place, exactly when the window has
    left it. A query sees ``window`` keys, itself among them, also where many tokens come at once. All shapes are fixed,
    for ``jax.jit`` and scans.

    What has left the window is gone: of a longer sequence one token can be taken back, and ``spare`` more where so many
    are kept beside the window. To take back others is a ``ValueError`` where the lengths are known; in a trace the rows
    of the output that lack a token are NaN.

    >>> import numpy as np
    >>> from attention_np import cache
    >>> empty = cache.SlidingCache.empty(np.ones(1), num_kv_heads=1, depth=2, window=4)
    >>> x = np.ones((1, 6, 2))
    >>> empty.append(x, x).stored().positions
    array([4, 5, 2, 3])
    """

    keys: Array
    values: Array
    lengths: Array
    start: Array
    first: Array
    spare: int = field(default=0, metadata={"option": True})

    of_sequences: ClassVar[tuple[str, ...]] = ("keys", "values", "lengths", "first")

    @classmethod
    def empty(cls, like: Array, *, window: int, spare: int = 0, **shape: Unpack[Shape]) -> Self:
        """Return a cache without tokens, of the library, dtype and device of ``like``."""
        xp, batch, heads, depths = made_like(like, shape)
        window, spare = static_int("window", window, least=1), static_int("spare", spare, least=0)
        keys, values = empty_arrays(like, xp, *((*batch, heads, window + spare, size) for size in depths))
        first, _ = no_tokens(like, xp, batch)  # an array of its own: JAX gives no buffer away twice
        return cls(keys, values, *no_tokens(like, xp, batch), first, spare)

    @property
    def window(self) -> int:
        """How many tokens of each sequence a query sees."""
        return self._ring - self.spare

    @property
    def _ring(self) -> int:
        return int(self.keys.shape[-2])

    @property
    def reach(self) -> int | None:
        return self.window

    def stored(self) -> Seen:
        xp = array_namespace(("lengths", self.lengths))
        last = self.lengths[..., None] - 1
        index = last - (last - xp.arange(self._ring, device=device_of(xp, self.lengths))) % self._ring
        positions = xp.where(index < self.first[..., None], PADDING, self.start + index)
        return Seen(self.keys, self.values, positions, real() & sliding_window(self.window - 1, None))

    def extended(self, key: Array, value: Array, positions: Array, lengths: Array, padded: bool) -> tuple[Seen, Self]:
        xp = array_namespace(("key", key))
        index = positions - self.start
        lost = self._lacking(xp, index) & (positions >= 0)
        if not is_traced(lost) and bool(xp.any(lost)):
            raise ValueError(
                "this cache lacks tokens that were taken back in a compiled call: keep more of them `spare`"
            )
        evicted = (positions < 0) | (index < lengths[..., None] - self._ring)
        slots = xp.where(evicted, -1, index % self._ring)
        keys, values = (put_tokens(xp, self, *x, slots) for x in ((self.keys, key), (self.values, value)))
        cache = replace(self, keys=keys, values=values, lengths=lengths)
        # of one token, its own window is what is kept
        seen = cache.stored() if key.shape[-2] == 1 else _with_new(xp, self.stored(), key, value, positions)
        return seen._replace(lost=lost if is_traced(lost) else None), cache

    def truncate(self, lengths: int | Array) -> Self:
        xp, left = array_namespace(("lengths", self.lengths)), self.shortened(lengths)
        first = xp.minimum(xp.maximum(self.first, self.lengths - self._ring), left)
        cache = replace(self, lengths=left, first=first)
        lacks = cache.lacks()
        if not is_traced(lacks) and bool(xp.any(lacks)):
            raise ValueError(
                f"this cache has a window of {self.window} and keeps {self.spare} more tokens, `spare`: of a longer "
                f"sequence it can take back {self.spare + 1} at most"
            )
        return cache

    def lacks(self) -> Array:
        xp = array_namespace(("lengths", self.lengths))
        return self._lacking(xp, self.lengths[..., None])[..., 0]

    def _lacking(self, xp: ModuleType, index: Array) -> Array:
        """Say which queries ``(..., L)`` would see a token that is gone, since later ones were taken back."""
        first = self.first[..., None]
        return (first > 0) & (index - self.window + 1 < first)


def _with_new(xp: ModuleType, old: Seen, key: Array, value: Array, positions: Array) -> Seen:
    """Return what was kept before and the new tokens, since an early one's window reaches behind what will be kept."""
    keys, values = (
        xp.concat([held, cast(xp, new, held.dtype)], axis=-2) for held, new in ((old.keys, key), (old.values, value))
    )
    return old._replace(keys=keys, values=values, positions=xp.concat([old.positions, positions], axis=-1))
