"""Numbers drawn by the id of their case, in plain Python: the same on every machine, exact in every dtype."""

import hashlib
import math
from collections.abc import Iterator

import numpy as np

WORD = 2**64


def words(name: str) -> Iterator[int]:
    """Yield 64-bit words, seeded by a name (SplitMix64; Steele, Lea and Flood 2014)."""
    state = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    while True:
        state = (state + 0x9E3779B97F4A7C15) % WORD
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
        yield z ^ (z >> 31)


def eighths(name: str, shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
    """Return multiples of 1/8 between `low` and `high`, both included."""
    first, count = round(8 * low), round(8 * (high - low)) + 1
    source = words(name)
    numbers = [(first + next(source) % count) / 8 for _ in range(math.prod(shape))]
    return np.array(numbers, dtype=np.float32).reshape(shape)


def booleans(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return booleans, five of eight of them true."""
    source = words(name)
    return np.array([next(source) % 8 < 5 for _ in range(math.prod(shape))], dtype=bool).reshape(shape)
