"""Which pairs a seed keeps, all at once on PyTorch's integers, and the wrong ways of it.

int64 holds two words of 32 bits with room to shift; what overflows a word is masked off.
"""

import math
from collections.abc import Mapping
from typing import Any

Tensor = Any
WORD, HALF = 0xFFFFFFFF, 0xFFFF
MEANS = {
    "dropout=heads_alike": "All heads drop the same pairs: the head is not in the counter.",
    "dropout=items_alike": "All batch items drop the same pairs: the item is not in the counter.",
    "dropout=transposed": "Query and key have exchanged places in the counter.",
    "dropout=lanes_reversed": "The four 16-bit lanes of a block are taken from the top.",
    "dropout=block_a_pair": "Each pair has a block of its own.",
    "dropout=kept_below": "Lanes below 65536 * (1 - rate) are kept, not those from 65536 * rate on.",
    "dropout=origin_ignored": "A part of a larger call counts its pairs from 0.",
    "dropout=low_word": "The upper 32 bits of the seed are ignored.",
    "dropout=first_seed": "All batch items take the first one's seed.",
    "dropout=13_rounds": "Threefry runs 13 rounds, not 20.",
    "dropout=per_item_heads": "The item's number counts heads, as if each were a call of its own.",
}


def block(key: tuple[Tensor, Tensor], counter: tuple[Tensor, Tensor], rounds: int = 20) -> tuple[Tensor, Tensor]:
    """Return Threefry-2x32's two words of every counter."""
    schedule = [*key, key[0] ^ key[1] ^ 0x1BD11BDA]
    x, y = (counter[0] + key[0]) & WORD, (counter[1] + key[1]) & WORD
    for first in range(0, rounds, 4):
        turns = (13, 15, 26, 6) if first % 8 == 0 else (17, 29, 16, 24)
        for turn in turns[: rounds - first]:
            x = (x + y) & WORD
            y = (((y << turn) & WORD) | (y >> (32 - turn))) ^ x
        if rounds - first >= 4:
            n = first // 4 + 1
            x, y = (x + schedule[n % 3]) & WORD, (y + schedule[(n + 1) % 3] + n) & WORD
    return x, y


def kept(rule: Mapping[str, Any], shape: tuple[int, ...], wrong: str = "") -> Tensor:
    """Return the keep mask of scores of a shape, `(..., Hq, Lq, Lk)` or `(Lq, Lk)`."""
    import torch

    *batch, heads, queries, keys = (*([1] * (3 - len(shape))), *shape)
    start = [0, 0, 0, 0] if wrong == "dropout=origin_ignored" else rule["origin"]
    item = torch.arange(math.prod(batch)).reshape(*batch, 1, 1, 1) + start[0]
    head = torch.arange(heads)[:, None, None] + start[1]
    query, key = torch.arange(queries)[:, None] + start[2], torch.arange(keys) + start[3]
    item = 0 * item if wrong == "dropout=items_alike" else item
    head = 0 * head if wrong == "dropout=heads_alike" else head
    if wrong == "dropout=per_item_heads":
        item, head = 0 * item, item * heads + head
    rounds = 13 if wrong == "dropout=13_rounds" else 20
    of_head = block(_seed_words(rule["seed"], wrong), (item, head), rounds)
    lanes = _lanes(of_head, query, key, rounds, wrong)
    least = round(65536 * rule["rate"])
    seen = lanes < 65536 - least if wrong == "dropout=kept_below" else lanes >= least
    return seen.expand(*batch, heads, queries, keys).reshape(shape)


def _seed_words(seed: Any, wrong: str) -> tuple[Tensor, Tensor]:
    import torch

    seeds = torch.tensor(seed, dtype=torch.int64)
    if seeds.ndim:
        seeds = (0 * seeds + seeds[0] if wrong == "dropout=first_seed" else seeds)[..., None, None, None]
    return seeds & WORD, 0 * seeds if wrong == "dropout=low_word" else seeds >> 32


def _lanes(of_head: tuple[Tensor, Tensor], query: Tensor, key: Tensor, rounds: int, wrong: str) -> Tensor:
    import torch

    if wrong == "dropout=block_a_pair":
        return block(of_head, (query, key), rounds)[0] & HALF
    if wrong == "dropout=transposed":
        query, key = key.expand(query.shape[0], -1), query.expand(-1, key.shape[0])
    one, other = block(of_head, (query, key // 4), rounds)
    four = torch.stack([one & HALF, one >> 16, other & HALF, other >> 16], -1)
    place = 3 - key % 4 if wrong == "dropout=lanes_reversed" else key % 4
    return four.gather(-1, place.expand(four.shape[:-1])[..., None])[..., 0]
