"""Which pairs a seed keeps, one pair at a time in Python's own integers: the second source for dropout.

Threefry-2x32 with 20 rounds as its authors write it (Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

WORD = 2**32
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA
Words = tuple[int, int]


def threefry(key: Words, counter: Words) -> Words:
    """Return the block of a counter under a key."""
    schedule = (*key, key[0] ^ key[1] ^ PARITY)
    left, right = ((word + part) % WORD for word, part in zip(counter, key, strict=True))
    for number in range(20):
        left = (left + right) % WORD
        turn = ROTATIONS[number % 8]
        right = (right * 2**turn % WORD + right // 2 ** (32 - turn)) ^ left
        if number % 4 == 3:
            step = number // 4 + 1
            left = (left + schedule[step % 3]) % WORD
            right = (right + schedule[(step + 1) % 3] + step) % WORD
    return left, right


def lane(seed: int, batch: int, head: int, query: int, key: int) -> int:
    """Return the 16 bits of one pair."""
    of_head = threefry((seed % WORD, seed // WORD), (batch, head))
    word = threefry(of_head, (query, key // 4))[key % 4 // 2]
    return word // 65536 if key % 2 else word % 65536


def kept(rule: Mapping[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return the keep mask of scores of a shape, `(..., Hq, Lq, Lk)` or `(Lq, Lk)`."""
    *batch, heads, queries, keys = (*([1] * (3 - len(shape))), *shape)
    found = np.zeros((*batch, heads, queries, keys), bool)
    seeds = np.broadcast_to(np.array(rule["seed"], dtype=object), batch)
    first = rule["origin"]
    for number, item in enumerate(np.ndindex(*batch)):
        for pair in np.ndindex(heads, queries, keys):
            place = (number + first[0], *(index + start for index, start in zip(pair, first[1:], strict=True)))
            found[(*item, *pair)] = lane(int(seeds[item]), *place) >= threshold(rule["rate"])
    return found.reshape(shape)


def threshold(rate: float) -> int:
    """Return the least lane that is kept: 65536 times the rate, rounded to an integer, ties to even."""
    return round(math.ldexp(rate, 16))
