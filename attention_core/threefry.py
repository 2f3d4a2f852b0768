"""Threefry-2x32 with 20 rounds (Salmon et al. 2011): random bits as a pure function of a key and a counter.

Words are int32 in two's complement, the one 32-bit type that every library adds, shifts and wraps in: NumPy, JAX with
and without x64, torch, array-api-strict. They are arrays of at least one axis, since NumPy warns of scalars that wrap.
"""

from __future__ import annotations

from types import ModuleType
from typing import TypeAlias

from .arrays import Array

__all__ = ["Word", "lanes", "signed_word", "threefry2x32", "word_of", "words_of_seed"]

Word: TypeAlias = "int | Array"
"""32 bits: a Python integer in the range of int32, or an array of int32."""

_PARITY = 0x1BD11BDA
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry2x32(key: tuple[Word, Word], counter: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the two words of the block at ``counter`` under ``key``; everything broadcasts."""
    (k0, k1), (x0, x1) = key, counter
    schedule = (k0, k1, k0 ^ k1 ^ _PARITY)
    x0, x1 = x0 + k0, x1 + k1
    for injection in range(1, 6):
        for distance in _ROTATIONS[(injection - 1) % 2]:
            x0 = x0 + x1
            x1 = _rotate_left(x1, distance) ^ x0
        x0 = x0 + schedule[injection % 3]
        x1 = x1 + schedule[(injection + 1) % 3] + injection
    return x0, x1


def _rotate_left(x: Array, distance: int) -> Array:
    low_bits = (1 << distance) - 1  # int32 shifts its sign in from the left: mask it off
    return (x << distance) | ((x >> (32 - distance)) & low_bits)


def lanes(words: tuple[Array, Array]) -> tuple[Array, Array, Array, Array]:
    """Return the four 16-bit lanes of a block, ``0 <= lane < 65536``: low and high half of word 0, then of word 1."""
    (x0, x1), half = words, 0xFFFF
    return x0 & half, (x0 >> 16) & half, x1 & half, (x1 >> 16) & half


def signed_word(bits: int) -> int:
    """Return the low 32 bits of a Python integer, read as int32."""
    return ((bits + 2**31) & 0xFFFFFFFF) - 2**31


def word_of(xp: ModuleType, x: Array) -> Array:
    """Return the low 32 bits of integers as int32."""
    return x if x.dtype == xp.int32 else xp.astype(x, xp.int32)


def words_of_seed(xp: ModuleType, seed: int | Array) -> tuple[Word, Word]:
    """Return low and high word of a 64-bit seed, the same for the same number in every dtype."""
    if isinstance(seed, int):
        return signed_word(seed), signed_word(seed >> 32)
    if xp.iinfo(seed.dtype).bits == 64:
        seed = xp.astype(seed, xp.int64)  # the same bits; torch does not shift uint64
        return word_of(xp, seed), word_of(xp, seed >> 32)
    low = word_of(xp, seed)
    return low, (low & 0 if xp.isdtype(seed.dtype, "unsigned integer") else low >> 31)
