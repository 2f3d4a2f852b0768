"""Dropout by a seed: which pairs are kept is a function of the seed and of each pair's place."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.record.ask import Ask, Size
from conformance.record.groups.rules import CAUSAL, window
from conformance.record.groups.theme import Theme, Themed

Arrays = dict[str, Any]


def groups() -> Iterator[Themed]:
    """Yield the group."""
    yield _SEEDED, [*_seeded()]


_SEEDED = Theme(
    "seeded",
    "Dropout by a seed",
    "A pair is kept where its 16-bit lane of Threefry-2x32, under the seed, the item and the head, at "
    "(query, key // 4), is at least 65536 * rate.",
    "Training is not repeated on another library, tile size or number of devices.",
    "pytorch/pytorch/issues/124464",
    "dropout=heads_alike dropout=items_alike dropout=transposed dropout=lanes_reversed dropout=block_a_pair "
    "dropout=kept_below dropout=origin_ignored dropout=low_word dropout=first_seed dropout=13_rounds "
    "dropout=not_divided dropout=inverted",
    loud=1.7,
)
ALL_KEPT = {"dropout=ignored": "a rate of 0 keeps all", "dropout=not_divided": "a rate of 0 divides by 1"}


def _seeded() -> Iterator[Ask]:
    over, ask = _SEEDED.over, _SEEDED.ask
    half: Arrays = {"dropout": 0.5, "seed": 7}
    yield from over("wide grouped batch plain blhd capped", None, **half)
    yield from over("tall", lambda size: CAUSAL, "causal-", "under a causal mask", dropout=0.25, seed=11)
    yield from over("tangent", None, dropout=0.25, seed=12)
    yield ask(
        "kept-pairs",
        "equal scores and value the identity: the output is the keep mask",
        Size(4, 13, 2, 13, 2, 1, (2,)),
        scale=0.0,
        edit=_identity,
        outputs="out",
        gradients=False,
        kills="dropout=lanes_reversed dropout=heads_alike dropout=items_alike",
        **half,
    )
    yield ask(
        "two-axes",
        "the items of two leading axes are numbered in row-major order",
        Size(3, 4, 3, 2, 2, 2, (2, 3)),
        kills="dropout=items_alike dropout=per_item_heads",
        outputs="out",
        **half,
    )
    yield ask(
        "origin",
        "a part of a larger call: item 1, head 2, query 3, key 5",
        Size(3, 6, 4, 3, 2, 2, (2,)),
        origin=(1, 2, 3, 5),
        kills="dropout=origin_ignored",
        **half,
    )
    yield ask(
        "origin-of-window",
        "a later part of the keys, which begins inside a block of four",
        Size(4, 7, 3, 2, 4, 2),
        origin=(0, 0, 0, 3),
        mask=window(2, 1),
        kills="dropout=origin_ignored",
        dropout=0.25,
        seed=3,
    )
    yield ask(
        "wide-seed",
        "a seed beyond 32 bits",
        Size(3, 5, 4, 3, 2, 2),
        dropout=0.5,
        seed=2**40 + 7,
        kills="dropout=low_word",
    )
    yield ask(
        "seed-an-item",
        "a seed a batch item",
        Size(3, 5, 4, 3, 2, 1, (2,)),
        dropout=0.5,
        seed=[3, 8],
        kills="dropout=first_seed",
    )
    yield ask(
        "rate-rounded",
        "a rate of 0.1 is 6554/65536, both for keeping and for dividing",
        Size(3, 6, 4, 3, 2, 2),
        dropout=0.1,
        seed=5,
        dtypes=("float64",),
        kills="dropout=rate_as_given",
    )
    yield ask(
        "rate-high",
        "nine of ten pairs are dropped, rows may lose all of theirs",
        Size(4, 9, 3, 2, 2, 2),
        dropout=0.875,
        seed=1,
        outputs="out lse weights",
        dtypes=("float64", "float32", "float16"),
        kills="dropout=kept_below",
    )
    yield ask(
        "rate-zero", "a rate of 0 is exactly no dropout", Size(3, 5, 4, 3, 2, 2), dropout=0.0, seed=9, same=ALL_KEPT
    )
    yield ask(
        "long",
        "33 keys, beyond a tile of 32",
        Size(5, 33, 4, 2, 2, 1),
        outputs="out",
        sinks=True,
        **half,
    )


def _identity(arrays: Arrays) -> None:
    arrays["value"][...] = np.eye(arrays["value"].shape[-1], dtype=np.float32)
