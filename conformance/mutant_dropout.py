"""The dropout of the mutants: Threefry-2x32 on NumPy's wrapping uint32, wrong by a switch."""

from collections.abc import Mapping
from typing import Any

import numpy as np

Word = np.ndarray
EVEN, ODD = (13, 15, 26, 6), (17, 29, 16, 24)


def factors(rule: Any, inputs: Mapping[str, np.ndarray], shape: tuple[int, ...], w: str) -> np.ndarray:
    """Return what the weights are multiplied by."""
    if rule is None or w == "dropout=ignored":
        return np.ones((1, 1, 1))
    rate = rule["rate"]
    if "seed" in rule:
        keep = seeded(rule, shape, w)
        rate = rate if w == "dropout=rate_as_given" else round(rate * 65536) / 65536
    else:
        keep = np.broadcast_to(inputs[rule["keep"]], shape)
    return (~keep if w == "dropout=inverted" else keep) / (1.0 if w == "dropout=not_divided" else 1.0 - rate)


def seeded(rule: Mapping[str, Any], shape: tuple[int, ...], w: str) -> np.ndarray:
    """Return which of the pairs a seed keeps."""
    *batch, heads, queries, keys = shape
    origin = (0, 0, 0, 0) if w == "dropout=origin_ignored" else rule["origin"]
    item = _words(np.arange(np.prod(batch, dtype=int)).reshape(*batch, 1, 1, 1) + origin[0])
    head = _words(np.arange(heads)[:, None, None] + origin[1])
    query, key = _words(np.arange(queries)[:, None] + origin[2]), _words(np.arange(keys)[None, :] + origin[3])
    if w == "dropout=per_item_heads":
        item, head = _words(0 * item), item * np.uint32(heads) + head
    item = _words(0 * item) if w == "dropout=items_alike" else item
    head = _words(0 * head) if w == "dropout=heads_alike" else head
    rounds = 13 if w == "dropout=13_rounds" else 20
    low, high = _seed(rule["seed"], w)
    of_head = _threefry((low, high), (item, head), rounds)
    place = key % 4
    if w == "dropout=transposed":
        query, key, place = key, query, query % 4
    counter = (query, key) if w == "dropout=block_a_pair" else (query, key // np.uint32(4))
    lane = _lane(_threefry(of_head, counter, rounds), place, w)
    least = round(rule["rate"] * 65536)
    keep: np.ndarray = lane < 65536 - least if w == "dropout=kept_below" else lane >= least
    return np.broadcast_to(keep, shape)


def _lane(words: tuple[Word, Word], place: Word, w: str) -> Word:
    if w == "dropout=block_a_pair":
        return words[0] & np.uint32(0xFFFF)
    place = np.uint32(3) - place if w == "dropout=lanes_reversed" else place
    word = np.where(place < 2, words[0], words[1])
    return np.where(place % 2 == 0, word & np.uint32(0xFFFF), word >> np.uint32(16))


def _seed(seed: Any, w: str) -> tuple[Word, Word]:
    seeds = np.asarray(seed, np.uint64)
    if seeds.ndim:
        seeds = (np.full_like(seeds, seeds[0]) if w == "dropout=first_seed" else seeds)[..., None, None, None]
    high = _words(seeds >> np.uint64(32))
    return _words(seeds), (_words(0 * high) if w == "dropout=low_word" else high)


def _threefry(key: tuple[Word, Word], counter: tuple[Word, Word], rounds: int) -> tuple[Word, Word]:
    extra = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x, y = counter[0] + key[0], counter[1] + key[1]
    for r in range(rounds):
        turn = (EVEN if r // 4 % 2 == 0 else ODD)[r % 4]
        x = x + y
        y = (y << np.uint32(turn) | y >> np.uint32(32 - turn)) ^ x
        if (r + 1) % 4 == 0:
            n = (r + 1) // 4
            x, y = x + extra[n % 3], y + extra[(n + 1) % 3] + np.uint32(n)
    return x, y


def _words(numbers: Any) -> Word:
    # At least one axis: NumPy warns of single numbers that wrap.
    return np.atleast_1d(np.asarray(numbers).astype(np.uint32))
