"""Dropout on attention weights: which pairs are kept is a value of the call, never hidden state.

A seeded keep mask is a pure function of ``(seed, batch, head, i, j)``, so that every library, tile size and sharding
drops the same pairs; how its bits are made is pinned in ``docs/dropout.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

from .arrays import Array, as_array, describe, dtype_name
from .checks import as_float, fits
from .pairs import Pairs
from .sizes import Sizes
from .threefry import lanes, threefry2x32, word_of, words_of_seed
from .values import Value, integer_or_array

__all__ = ["Dropout", "dropout"]

Index: TypeAlias = "int | Array"
_LANE_VALUES = 65536
_LANES = 4


@dataclass(frozen=True, eq=False, repr=False)
class Dropout(Value):
    """Which weights are kept; those are divided by ``1 - rate`` (inverted dropout), the others are 0."""

    rate: float

    def kept(self, pairs: Pairs) -> Array:
        """Return booleans that broadcast to ``pairs.shape``: is this weight kept?"""
        raise NotImplementedError(f"{type(self).__qualname__} must define kept(pairs)")

    def check(self, sizes: Sizes) -> None:
        """Raise if this does not fit a call of these sizes."""


@dataclass(frozen=True, eq=False, repr=False)
class Explicit(Dropout):
    """The caller's own booleans."""

    keep: Array

    def kept(self, pairs: Pairs) -> Array:
        return pairs.per_pair(self.keep)

    def check(self, sizes: Sizes) -> None:
        if not fits(tuple(self.keep.shape), sizes.scores):
            raise ValueError(
                f"`keep` has shape {tuple(self.keep.shape)}, "
                f"which does not broadcast to (..., Hq, Lq, Lk) = {sizes.scores}"
            )

    def __repr__(self) -> str:
        return f"dropout({self.rate!r}, keep=<{dtype_name(self.keep.dtype)} {tuple(self.keep.shape)}>)"


@dataclass(frozen=True, eq=False, repr=False)
class Seeded(Dropout):
    """Counter-based: a 16-bit lane of a Threefry block a pair, kept if it is at least ``65536 * rate``."""

    seed: Index
    origin: tuple[Index, Index, Index, Index]

    def kept(self, pairs: Pairs) -> Array:
        xp = pairs.xp
        batch, head, query, first_key = self._from_origin(pairs)
        seed = words_of_seed(xp, pairs.per_item(self.seed))
        key = threefry2x32(seed, (word_of(xp, batch), word_of(xp, head)))
        blocks, first_lane = _blocks(pairs, first_key)
        words = threefry2x32(key, (word_of(xp, query), word_of(xp, blocks)))
        threshold = round(self.rate * _LANE_VALUES)
        kept = xp.stack([lane >= threshold for lane in lanes(words)], axis=-1)
        kept = xp.reshape(kept, (*kept.shape[:-2], _LANES * kept.shape[-2]))
        return _cut(pairs, kept, first_lane)

    def _from_origin(self, pairs: Pairs) -> tuple[Array, Array, Array, Index]:
        batch, head, query, key = (o if isinstance(o, int) else as_array(pairs.xp, o) for o in self.origin)
        return pairs.batch + batch, pairs.head + head, pairs.query_index + query, pairs.keys[0] + key

    def check(self, sizes: Sizes) -> None:
        if not isinstance(self.seed, int) and not fits(tuple(self.seed.shape), sizes.batch):
            raise ValueError(
                f"`seed` has shape {tuple(self.seed.shape)}, "
                f"which does not broadcast to the batch axes (...) = {sizes.batch}"
            )

    def __repr__(self) -> str:
        shown = [
            repr(x) if isinstance(x, int) else f"<{dtype_name(x.dtype)} {tuple(x.shape)}>"
            for x in (self.seed, *self.origin)
        ]
        origin = "" if shown[1:] == ["0"] * 4 else f", origin=({', '.join(shown[1:])})"
        return f"dropout({self.rate!r}, seed={shown[0]}{origin})"


def _blocks(pairs: Pairs, first_key: Index) -> tuple[Array, Index]:
    """Return the numbers of the blocks that hold a tile's keys, ``(1, blocks)``, and the first key's lane."""
    first, lane = first_key // _LANES, first_key % _LANES
    unaligned = lane if isinstance(lane, int) else _LANES - 1  # the most it can be
    count = -(-(pairs.key_index.shape[-1] + unaligned) // _LANES)
    return (pairs.xp.arange(count, device=pairs.device) + first)[None, :], lane


def _cut(pairs: Pairs, kept: Array, first: Index) -> Array:
    count = pairs.key_index.shape[-1]
    if isinstance(first, int):
        return kept[..., first : first + count]
    return pairs.xp.take(kept, first + pairs.xp.arange(count, device=pairs.device), axis=-1)


def dropout(
    rate: float,
    seed: int | Array | None = None,
    *,
    keep: Array | None = None,
    origin: tuple[Index, Index, Index, Index] = (0, 0, 0, 0),
) -> Dropout:
    """Drop weights with probability ``rate``, and divide the others by ``1 - rate``; give either ``seed`` or ``keep``.

    Args:
        rate: a Python number, ``0 <= rate < 1``; 0 is exactly no dropout. With a seed it is rounded to a multiple of
            1/65536, both for drawing and for dividing, so that the expectation of ``kept / (1 - rate)`` is exactly 1.
        seed: a Python integer ``0 <= seed < 2**64``, or integers ``(...)``, one for all or one a batch item, which may
            be traced by ``jax.jit``. Which pairs are kept is a pure function of ``(seed, batch, head, i, j)``, the
            call's own indices: batch items numbered in row-major order, query heads, queries, keys. The same call with
            the same seed drops the same pairs, so pass another one at each step and layer. Under ``jax.vmap`` each item
            is a call of its own: pass a seed an item.
        keep: booleans that broadcast to ``(..., Hq, Lq, Lk)``, ``True`` = kept.
        origin: for a call that is a part of a larger one (a shard, a chunk of queries or keys), the indices ``(batch,
            head, query, key)`` in it of the part's first pair: it drops what the whole would.

    The weights and lse that a call returns are those before dropout.

    >>> import numpy as np
    >>> from attention_np import dot_product_attention, dropout
    >>> x = np.eye(2)
    >>> dot_product_attention(x, x, x, scale=0.0, dropout=dropout(0.5, keep=np.eye(2, dtype=bool)))
    array([[1., 0.],
           [0., 1.]])
    >>> dropout(0.25, seed=7)
    dropout(0.25, seed=7)
    """
    rate = _checked_rate(rate)
    if (seed is None) == (keep is None):
        raise ValueError(
            f"dropout needs exactly one of `seed` and `keep`; got {'neither' if seed is None else 'both of them'}"
        )
    origin = _checked_origin(origin)
    if keep is None:
        return Seeded(_rounded(rate), _checked_seed(seed), origin)
    if any(not isinstance(x, int) or x != 0 for x in origin):
        raise ValueError("`origin` shifts the indices that a `seed` reads; `keep` has none: cut the array itself")
    return Explicit(rate, _boolean("keep", keep))


def _checked_rate(rate: Any) -> float:
    if not isinstance(rate, Real) or isinstance(rate, bool):
        raise TypeError(f"`rate` must be a Python number; got {describe(rate)}")
    rate = as_float(rate)
    if not 0 <= rate < 1:
        raise ValueError(f"`rate` must be at least 0 and below 1; got {rate}")
    return rate


def _rounded(rate: float) -> float:
    threshold = round(rate * _LANE_VALUES)
    if threshold == _LANE_VALUES:
        raise ValueError(f"`rate` with a seed is rounded to a multiple of 1/65536; {rate} would be 1, all dropped")
    return threshold / _LANE_VALUES


def _checked_seed(seed: Any) -> Index:
    seed = integer_or_array("seed", seed)
    if isinstance(seed, int) and not 0 <= seed < 2**64:
        raise ValueError(f"`seed` must be at least 0 and below 2**64; got {seed}")
    return seed


def _checked_origin(origin: Any) -> tuple[Index, Index, Index, Index]:
    if not isinstance(origin, (tuple, list)) or len(origin) != 4:
        raise ValueError(f"`origin` must be four indices (batch, head, query, key); got {origin!r}")
    batch, head, query, key = (integer_or_array("origin", x) for x in origin)
    for x in (batch, head, query, key):
        if isinstance(x, int) and not 0 <= x < 2**31:
            raise ValueError(f"`origin` must hold indices of at least 0 and below 2**31; got {x}")
        if not isinstance(x, int) and x.ndim:
            raise ValueError(f"`origin` must hold single integers; got an array of shape {tuple(x.shape)}")
    return batch, head, query, key


def _boolean(name: str, x: Any) -> Array:
    if "bool" not in str(getattr(x, "dtype", None)):
        raise TypeError(f"`{name}` must be a boolean array, True = kept; got {describe(x)}")
    return x
