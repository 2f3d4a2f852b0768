"""Causal masks, and positions."""

from collections.abc import Iterator
from typing import Any

from conformance.record.ask import Ask, Size
from conformance.record.groups.rules import ALL, CAUSAL, LOWER_RIGHT, both, window
from conformance.record.groups.theme import Theme, Themed


def groups() -> Iterator[Themed]:
    """Yield the groups."""
    yield _CAUSAL, [*_causal()]
    yield _POSITIONS, [*_positions()]


_CAUSAL = Theme(
    "causal",
    "Causal mask",
    "A key is visible when its position is at most the query's; with default positions the triangle starts upper left.",
    "A decoder reads the future, or a row too few: it trains well and generates nonsense.",
    "keras-team/keras/issues/23038 facebookresearch/xformers/issues/103 ml-explore/mlx/issues/2835",
    "causal=lower_right causal=without_self causal=one_too_many causal=ignored causal=reversed",
)


def _causal() -> Iterator[Ask]:
    yield from _CAUSAL.over(ALL, lambda size: CAUSAL)
    yield _CAUSAL.ask(
        "one-query",
        "one query with default positions sees the first key alone",
        Size(1, 4, 3, 5, 2, 2),
        mask=CAUSAL,
        kills="causal=lower_right",
        reports="pytorch/pytorch/issues/144858",
        outputs="out weights",
    )
    yield _CAUSAL.ask(
        "one-key",
        "one key, which every query sees",
        Size(4, 1, 3, 2, 2, 2),
        mask=CAUSAL,
        same={"out=mean_of_v": "one key has all the weight", "mask=none": "every query sees the only key"},
        kills="causal=lower_right",
    )
    yield _CAUSAL.ask(
        "growing-keys",
        "later keys have larger scores, so that a look into the future is seen",
        Size(6, 6, 2, 3, 2, 2),
        mask=CAUSAL,
        edit=_grow,
        reports="jax-ml/jax/issues/19237",
        kills="causal=ignored causal=one_too_many",
    )


def _grow(arrays: dict[str, Any]) -> None:
    arrays["query"][...] = abs(arrays["query"]) + 0.5
    for j in range(arrays["key"].shape[-2]):
        arrays["key"][..., j, :] = j / 2


_POSITIONS = Theme(
    "positions",
    "Positions",
    "Positions belong to the call: a cache passes where its queries stand, and every rule reads the same positions.",
    "Decoding with a cache, chunked prefill or a left-padded batch gives other tokens than one whole pass.",
    "pytorch/pytorch/issues/144858 google/flax/issues/5591 onnx/onnx/issues/8054",
    "positions=ignored query_positions=ignored query_positions=one_more query_positions=first_only "
    "query_positions=first_item causal=lower_right lower_right=without_self lower_right=one_too_many causal=upper_left",
)


def _positions() -> Iterator[Ask]:
    ask = _POSITIONS.ask
    yield ask(
        "decode",
        "one query after a cache of 4 keys",
        Size(1, 5, 4, 3, 2, 2),
        mask=CAUSAL,
        query_positions=4,
        kills="positions=ignored",
    )
    yield ask(
        "decode-grouped",
        "one query inside a cache that has room left",
        Size(1, 7, 4, 3, 4, 2),
        mask=CAUSAL,
        query_positions=4,
        kills="positions=ignored causal=lower_right",
    )
    yield ask(
        "decode-sunk",
        "one query inside a cache, with sinks",
        Size(1, 6, 3, 4, 3, 1),
        mask=CAUSAL,
        query_positions=3,
        sinks=True,
        outputs="out lse weights",
    )
    yield ask(
        "prefill-chunk",
        "the second chunk of a prefill",
        Size(3, 7, 4, 5, 2, 1),
        mask=CAUSAL,
        query_positions=2,
        kills="positions=ignored causal=lower_right query_positions=one_more",
    )
    yield ask(
        "prefill-window",
        "a window in the second chunk of a prefill",
        Size(3, 7, 4, 5, 2, 2),
        mask=window(2, 0),
        query_positions=3,
        kills="positions=ignored",
    )
    yield ask(
        "array",
        "positions as an array, out of order",
        Size(4, 6, 4, 3, 2, 2),
        mask=CAUSAL,
        query_positions=[5, 0, 3, 1],
        kills="query_positions=first_only positions=ignored",
    )
    yield ask(
        "array-keys",
        "a ring buffer: the keys' positions out of order",
        Size(2, 5, 4, 3, 2, 2),
        mask=CAUSAL,
        query_positions=3,
        key_positions=[4, 5, 1, 2, 3],
        kills="positions=ignored",
        reports="Blaizzy/mlx-vlm/issues/1715",
    )
    yield ask(
        "each-item",
        "each batch item has a cache of its own length",
        Size(2, 6, 4, 3, 2, 2, (2,)),
        mask=CAUSAL,
        query_positions=[[1, 2], [4, 5]],
        kills="query_positions=first_item positions=ignored",
    )
    yield ask(
        "left-padding",
        "left padding: keys with negative positions are before everything",
        Size(4, 5, 3, 4, 2, 2),
        mask=both(CAUSAL, {"rule": "not", "of": [{"rule": "prefix", "length": 0}]}),
        key_positions=-2,
        reports="huggingface/transformers/issues/37807",
    )
    yield ask(
        "keys-later",
        "keys that stand after the first queries, which see nothing",
        Size(5, 4, 3, 4, 2, 2),
        mask=CAUSAL,
        key_positions=2,
        kills="positions=ignored",
    )
    yield ask(
        "both-shifted",
        "queries and keys shifted alike change nothing relative",
        Size(4, 5, 4, 3, 2, 2, (2,)),
        mask=window(1, 1),
        query_positions=7,
        key_positions=7,
        kills="query_positions=ignored",
    )
    yield ask(
        "far",
        "positions beyond 2^24, where float32 cannot count",
        Size(3, 5, 4, 3, 2, 2),
        mask=CAUSAL,
        query_positions=16777217,
        key_positions=16777216,
        kills="query_positions=ignored",
    )
    yield from _POSITIONS.over(
        "wide tall grouped multi-query batch plain blhd biased capped tangent",
        lambda size: LOWER_RIGHT,
        "lower-right-",
        "causal_lower_right() ends at the last key",
        reports="Dao-AILab/flash-attention/issues/1778",
    )
    yield ask(
        "lower-right-window",
        "a window beside causal_lower_right reads the same positions",
        Size(3, 6, 4, 3, 2, 2),
        mask=both(LOWER_RIGHT, window(2, None)),
    )
