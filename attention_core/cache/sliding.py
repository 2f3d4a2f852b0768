"""The cache of a window: a ring of exactly as many keys as a query may see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Self

from ..arrays import Array, array_namespace, cast, device_of
from ..masks import sliding_window
from ..values import static_int
from .base import Kept, Seen, empty_arrays, made_like, no_tokens, put_tokens
from .positions import PADDING, real

__all__ = ["SlidingCache"]


@dataclass(frozen=True, eq=False)
class SlidingCache(Kept):
    """Keys and values of the last ``window`` tokens of each sequence, whatever its length: Mistral, Gemma, gpt-oss.

    Token ``i`` stands at index ``i % window`` until token ``i + window`` takes its place, exactly when the window has
    left it. A query sees ``window`` keys, itself among them, also where many tokens come at once. All shapes are fixed,
    for ``jax.jit`` and scans.

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

    @classmethod
    def empty(
        cls,
        like: Array,
        *,
        batch: tuple[int, ...] = (),
        num_kv_heads: int,
        depth: int,
        value_depth: int | None = None,
        window: int,
    ) -> Self:
        """Return a cache without tokens, of the library, dtype and device of ``like``."""
        xp, batch, heads, depths = made_like(like, batch, num_kv_heads, depth, value_depth)
        window = static_int("window", window, least=1)
        keys, values = empty_arrays(like, xp, *((*batch, heads, window, size) for size in depths))
        return cls(keys, values, *no_tokens(like, xp, batch))

    @property
    def window(self) -> int:
        """How many tokens of each sequence are kept."""
        return int(self.keys.shape[-2])

    @property
    def reach(self) -> int | None:
        return self.window

    def key_shape(self) -> tuple[int, int, int]:
        return self.keys.shape[-3], self.keys.shape[-1], self.values.shape[-1]

    def stored(self) -> Seen:
        xp = array_namespace(("lengths", self.lengths))
        last = self.lengths[..., None] - 1
        index = last - (last - xp.arange(self.window, device=device_of(xp, self.lengths))) % self.window
        positions = xp.where(index < 0, PADDING, self.start + index)
        return Seen(self.keys, self.values, positions, real() & sliding_window(self.window - 1, None))

    def extended(self, key: Array, value: Array, positions: Array, lengths: Array, padded: bool) -> tuple[Seen, Self]:
        xp = array_namespace(("key", key))
        index = positions - self.start
        evicted = (positions < 0) | (index < lengths[..., None] - self.window)
        slots = xp.where(evicted, -1, index % self.window)
        keys, values = (put_tokens(xp, self, *x, slots) for x in ((self.keys, key), (self.values, value)))
        cache = replace(self, keys=keys, values=values, lengths=lengths)
        if key.shape[-2] == 1:  # its own window is what is kept
            return cache.stored(), cache
        return _with_new(xp, self.stored(), key, value, positions), cache


def _with_new(xp: ModuleType, old: Seen, key: Array, value: Array, positions: Array) -> Seen:
    """Return what was kept before and the new tokens, since an early one's window reaches behind what will be kept."""
    keys, values = (
        xp.concat([held, cast(xp, new, held.dtype)], axis=-2) for held, new in ((old.keys, key), (old.values, value))
    )
    return old._replace(keys=keys, values=values, positions=xp.concat([old.positions, positions], axis=-1))
