"""Windows, lengths, segments."""

from collections.abc import Iterator
from typing import Any

from conformance.record.ask import Ask, Size
from conformance.record.groups.rules import CAUSAL, both, per_item, window
from conformance.record.groups.theme import Theme, Themed


def groups() -> Iterator[Themed]:
    """Yield the groups."""
    yield _WINDOW, [*_windows()]
    yield _LENGTHS, [*_lengths()]
    yield _SEGMENTS, [*_segments()]


_WINDOW = Theme(
    "window",
    "Sliding window",
    "left and right count extra positions, the query's own key is always visible, None is no bound.",
    "Every layer of a windowed model (Mistral, Gemma) reads a key too many or too few.",
    "huggingface/transformers/issues/39408 microsoft/onnxruntime/pull/25927 ml-explore/mlx-lm/pull/390",
    "window=counts_self window=counts_self_right window=one_more_left window=one_more_right window=left_only "
    "window=right_only window=causal window=mirrored window=zero_is_unbounded window=none_is_zero "
    "window=symmetric window=lower_right",
    loud=1.7,
)


def _windows() -> Iterator[Ask]:
    ask = _WINDOW.ask
    yield from _WINDOW.over(
        "wide tall grouped batch capped sunk forward", lambda size: window(1, 0), "1-0-", "one key before"
    )
    yield from _WINDOW.over(
        "wide tall square multi-query biased plain", lambda size: window(2, 1), "2-1-", "two before, one after"
    )
    yield from _WINDOW.over("wide tall blhd tangent", lambda size: window(0, 2), "0-2-", "none before, two after")
    yield from _WINDOW.over(
        "wide grouped plain capped", lambda size: window(None, 1), "all-1-", "all before, one after"
    )
    yield from _WINDOW.over("tall square sunk", lambda size: window(2, None), "2-all-", "two before, all after")
    yield ask(
        "0-0",
        "the query's own key alone",
        Size(4, 6, 3, 4, 2, 2),
        mask=window(0, 0),
        kills="window=zero_is_unbounded window=one_more_left",
    )
    yield ask(
        "right-zero",
        "a right bound of 0 is a bound",
        Size(4, 6, 3, 4, 2, 2),
        mask=window(None, 0),
        reports="Dao-AILab/flash-attention/issues/2574",
        kills="window=left_only",
    )
    yield ask(
        "right-beyond",
        "a right bound beyond all keys bounds nothing",
        Size(4, 3, 4, 5, 2, 2),
        mask=window(1, 99),
        reports="Dao-AILab/flash-attention/issues/895",
        kills="window=causal",
    )
    yield ask(
        "without-mask",
        "a window and no other mask",
        Size(3, 5, 4, 3, 2, 2, (2,)),
        mask=window(1, 0),
        reports="jax-ml/jax/issues/32300",
        kills="window=ignored",
        dropout=0.5,
    )
    yield ask(
        "tile",
        "a window over the edges of tiles of 32",
        Size(6, 65, 4, 2, 2, 2),
        mask=window(2, 1),
        query_positions=30,
        gradients=False,
        kills="positions=ignored window=one_more_left",
    )


_LENGTHS = Theme(
    "lengths",
    "Lengths",
    "Keys at index >= key_lengths are invisible, rows at index >= query_lengths are empty; lengths are clamped "
    "to [0, L].",
    "Padding leaks into real tokens: a sentence's result depends on its neighbours in the batch.",
    "jax-ml/jax/issues/23349 pytorch/pytorch/issues/81077",
    "key_lengths=ignored key_lengths=one_more key_lengths=first_item key_lengths=for_queries query_lengths=ignored "
    "query_lengths=one_more query_lengths=first_item key_lengths=zero_is_all empty=mean_of_value empty=nan",
)


def _lengths() -> Iterator[Ask]:
    def keys(size: Size) -> Any:
        return {"rule": "key_lengths", "lengths": per_item(size, 2, 3)}

    def rows(size: Size) -> Any:
        return {"rule": "query_lengths", "lengths": per_item(size, 2, 3)}

    ask, pair = _LENGTHS.ask, Size(4, 5, 4, 3, 2, 2, (2,))
    yield from _LENGTHS.over(
        "wide tall grouped multi-query batch plain blhd biased capped sunk", keys, "keys-", "key lengths"
    )
    yield from _LENGTHS.over("wide square multi-query batch plain capped", rows, "queries-", "query lengths")
    yield ask(
        "zero",
        "an item of length 0 beside a full one",
        pair,
        mask={"rule": "key_lengths", "lengths": [0, 5]},
        kills="key_lengths=zero_is_all empty=mean_of_value",
    )
    yield ask(
        "clamped",
        "lengths below 0 and beyond the keys",
        pair,
        mask={"rule": "key_lengths", "lengths": [-1, 9]},
        kills="empty=nan",
        outputs="out",
    )
    yield ask(
        "both",
        "lengths of keys and of queries",
        pair,
        mask=both({"rule": "key_lengths", "lengths": [2, 4]}, {"rule": "query_lengths", "lengths": [3, 1]}),
        kills="masks=first_only",
    )
    yield ask(
        "index",
        "lengths count indices, whatever the positions",
        Size(3, 5, 4, 3, 2, 2),
        mask={"rule": "key_lengths", "lengths": 3},
        query_positions=2,
        key_positions=1,
        kills="key_lengths=by_position",
    )
    yield ask(
        "one",
        "one length for the whole batch",
        Size(3, 6, 4, 2, 2, 2, (2,)),
        mask={"rule": "key_lengths", "lengths": 4},
        kills="key_lengths=one_more",
    )


_SEGMENTS = Theme(
    "segments",
    "Segments",
    "Pairs see each other when their ids are equal; a negative id is padding and sees nothing.",
    "Packed documents read each other.",
    "facebookresearch/xformers/issues/722 fla-org/flash-linear-attention/pull/842",
    "segments=ignored segments=padding_attends segments=padding_is_visible segments=zero_is_padding "
    "segments=first_item "
    "segments=query_ids_for_keys",
)


def _segments() -> Iterator[Ask]:
    def packed(size: Size, shift: int = 0) -> Any:
        queries = [[(n * 3 + item + shift) // size.queries for n in range(size.queries)] for item in range(2)]
        keys = [[(n * 3 + 2 * item) // size.keys for n in range(size.keys)] for item in range(2)]
        return {
            "rule": "segments",
            "query_ids": queries if size.batch else queries[0],
            "key_ids": keys if size.batch else keys[0],
        }

    def padded(size: Size) -> Any:
        rule = packed(size)
        last = [rule["query_ids"], rule["key_ids"]]
        for ids in last:
            for row in ids if isinstance(ids[0], list) else [ids]:
                row[-1] = -1
        return rule

    yield from _SEGMENTS.over("wide tall grouped multi-query batch plain capped sunk", packed)
    yield from _SEGMENTS.over("square multi-query biased blhd tangent", padded, "padded-", "with padding")
    yield _SEGMENTS.ask(
        "causal",
        "packed causal documents",
        Size(6, 6, 4, 3, 2, 2),
        mask=both({"rule": "segments", "query_ids": [0, 0, 0, 1, 1, 2], "key_ids": [0, 0, 0, 1, 1, 2]}, CAUSAL),
        kills="causal=ignored segments=ignored",
    )
    yield _SEGMENTS.ask(
        "unsorted",
        "ids in any order",
        Size(5, 5, 4, 3, 2, 2, (2,)),
        mask={"rule": "segments", "query_ids": [[2, 0, 2, 1, 0]] * 2, "key_ids": [[1, 2, 0, 0, 2], [0, 2, 1, 1, 2]]},
        kills="segments=query_ids_for_keys",
    )
