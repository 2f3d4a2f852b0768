"""Causal masks, positions, windows, lengths, segments, patterns, and several masks at once."""

from collections.abc import Iterator
from typing import Any

from conformance.record.ask import Ask, Size
from conformance.record.groups.theme import DENSE, Theme, Themed

CAUSAL = {"rule": "causal"}
LOWER_RIGHT = {"rule": "causal_lower_right"}
GIVEN = {"rule": "dense", "input": "given"}
ALL = "wide tall square grouped multi-query batch plain blhd biased capped sunk tangent forward long"


def window(left: int | None, right: int | None) -> dict[str, Any]:
    """Return the rule of a window."""
    return {"rule": "sliding_window", "left": left, "right": right}


def both(*parts: Any) -> dict[str, Any]:
    """Return the rule that all parts hold."""
    return {"rule": "and", "of": list(parts)}


def either(*parts: Any) -> dict[str, Any]:
    """Return the rule that one part holds."""
    return {"rule": "or", "of": list(parts)}


def per_item(size: Size, first: int, second: int) -> Any:
    """Return a number, or one for each of two batch items."""
    return [first, second] if size.batch else first


def groups() -> Iterator[Themed]:
    """Yield the groups."""
    yield _CAUSAL, [*_causal()]
    yield _POSITIONS, [*_positions()]
    yield _WINDOW, [*_windows()]
    yield _LENGTHS, [*_lengths()]
    yield _SEGMENTS, [*_segments()]
    yield _PATTERNS, [*_patterns()]
    yield _SEVERAL, [*_several()]
    yield _DENSE, [*_dense()]


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


_WINDOW = Theme(
    "window",
    "Sliding window",
    "left and right count extra positions, the query's own key is always visible, None is no bound.",
    "Every layer of a windowed model (Mistral, Gemma) reads a key too many or too few.",
    "huggingface/transformers/issues/39408 microsoft/onnxruntime/pull/25927 ml-explore/mlx-lm/pull/390",
    "window=counts_self window=counts_self_right window=one_more_left window=one_more_right window=left_only "
    "window=right_only window=causal window=mirrored window=zero_is_unbounded window=none_is_zero window=symmetric window=lower_right",
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
    "Keys at index >= key_lengths are invisible, rows at index >= query_lengths are empty; lengths are clamped to [0, L].",
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
    "segments=ignored segments=padding_attends segments=padding_is_visible segments=zero_is_padding segments=first_item "
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


_PATTERNS = Theme(
    "patterns",
    "Prefix, chunks, dilation, global tokens",
    "prefix: key position < n; chunked: equal position // c; dilated: distance divisible by s; global: query or key position < n.",
    "A prefix-LM, a chunked (Llama 4), a strided or a Longformer model reads other keys.",
    "",
    "prefix=one_more prefix=ignored prefix=by_index prefix=for_queries chunked=sliding chunked=one_larger chunked=from_one "
    "chunked=by_index dilated=one_more dilated=from_zero global=keys_only global=queries_only global=one_more masks=and_for_or "
    "masks=or_for_and masks=first_only masks=last_only",
)


def _patterns() -> Iterator[Ask]:
    over, ask = _PATTERNS.over, _PATTERNS.ask
    yield from over(
        "wide grouped batch plain", lambda size: {"rule": "prefix", "length": per_item(size, 2, 3)}, "prefix-", "prefix"
    )
    yield from over(
        "wide tall multi-query sunk",
        lambda size: either({"rule": "prefix", "length": per_item(size, 2, 3)}, CAUSAL),
        "prefix-lm-",
        "prefix-LM",
    )
    yield from over(
        "wide tall square grouped plain capped", lambda size: {"rule": "chunked", "size": 2}, "chunked-", "chunks of 2"
    )
    yield from over(
        "grouped batch blhd",
        lambda size: both({"rule": "chunked", "size": 3}, CAUSAL),
        "chunked-causal-",
        "causal chunks of 3",
    )
    yield from over(
        "wide tall grouped plain biased", lambda size: {"rule": "dilated", "step": 2}, "dilated-", "every second key"
    )
    yield from over(
        "wide tall grouped batch tangent",
        lambda size: {"rule": "global_tokens", "count": 1},
        "global-",
        "one global token",
    )
    yield from over(
        "wide tall forward capped",
        lambda size: either({"rule": "global_tokens", "count": 1}, window(1, 1)),
        "longformer-",
        "a global token and a window",
    )
    yield ask(
        "prefix-position",
        "the prefix counts positions",
        Size(3, 5, 4, 3, 2, 2),
        mask={"rule": "prefix", "length": 2},
        key_positions=-1,
        kills="prefix=by_index",
    )
    yield ask(
        "chunked-position",
        "chunks count positions, negative ones too",
        Size(4, 6, 4, 3, 2, 2),
        mask={"rule": "chunked", "size": 3},
        query_positions=-1,
        key_positions=-2,
        kills="chunked=by_index",
    )
    yield ask(
        "dilated-causal",
        "every third key up to the query",
        Size(6, 7, 4, 3, 2, 1),
        mask=both({"rule": "dilated", "step": 3}, CAUSAL),
        kills="dilated=from_zero dilated=ignored",
    )
    yield ask(
        "global-two",
        "two global tokens, seen from position 1",
        Size(3, 5, 3, 4, 2, 2),
        mask={"rule": "global_tokens", "count": 2},
        query_positions=1,
        kills="global=queries_only",
    )


_SEVERAL = Theme(
    "several",
    "Several masks",
    "Masks given together hold together; & | ~ compose them, and causal is one of them.",
    "A framework silently drops one of two masks: padding, or the future, becomes visible.",
    "huggingface/transformers/issues/37807 keras-team/keras/issues/23038 facebookresearch/xformers/issues/103",
    "masks=first_only masks=last_only masks=or_for_and masks=and_for_or masks=not_ignored causal=ignored",
)


def _several() -> Iterator[Ask]:
    over, ask = _SEVERAL.over, _SEVERAL.ask
    yield from over(
        "wide tall square grouped batch plain blhd biased capped sunk tangent long",
        lambda size: both(GIVEN, CAUSAL),
        "causal-",
        "a boolean mask and causal",
    )
    yield from over(
        "wide grouped batch",
        lambda size: both(window(2, 1), {"rule": "key_lengths", "lengths": per_item(size, 3, 4)}),
        "window-lengths-",
        "a window and lengths",
    )
    yield from over("wide tall plain", lambda size: either(GIVEN, window(0, 0)), "or-", "a boolean mask or the own key")
    yield from over(
        "wide square multi-query", lambda size: {"rule": "not", "of": [window(1, 1)]}, "not-", "not a window"
    )
    yield ask(
        "three",
        "three masks at once",
        Size(5, 6, 4, 3, 2, 2),
        mask=both(CAUSAL, window(2, None), GIVEN),
        kills="masks=first_only masks=last_only",
    )
    yield ask(
        "nested",
        "not (a or b), and c",
        Size(5, 6, 4, 3, 2, 2),
        mask=both(
            {"rule": "not", "of": [either({"rule": "dilated", "step": 3}, {"rule": "prefix", "length": 1})]}, GIVEN
        ),
        kills="masks=not_ignored",
    )


_DENSE = Theme(
    "mask",
    "Boolean mask",
    "True = may attend; a mask broadcasts to (..., Hq, Lq, Lk) like any array.",
    "A mask taken the other way round, or for the wrong axis, trains to nothing and says no word.",
    "neuro-galaxy/torch_brain/pull/74 jax-ml/jax/issues/28974 keras-team/keras/issues/21483 tensorflow/tensorflow/issues/60626",
    "mask=none mask=transposed mask=first_head mask=first_item mask=first_query masked=zero_fill masked=minus_100 "
    "masked=without_renormalising",
)


def _dense() -> Iterator[Ask]:
    ask, size = _DENSE.ask, Size(3, 5, 4, 3, 4, 2, (2,))
    yield from _DENSE.over(
        "wide tall square grouped multi-query batch plain blhd biased capped sunk tangent", lambda size: DENSE
    )
    shapes = {
        "keys": (5,),
        "queries-keys": (3, 5),
        "one-query": (3, 1),
        "heads": (4, 1, 5),
        "heads-queries": (4, 3, 1),
        "items": (2, 1, 1, 5),
        "items-queries": (2, 1, 3, 5),
        "items-heads": (2, 4, 1, 5),
    }
    for name, shape in shapes.items():
        said = f"a mask of shape {shape}"
        yield ask(
            f"shape-{name}",
            said,
            size,
            mask=DENSE,
            shapes={"mask": shape},
            outputs="out" if len(shape) > 2 else "out lse",
        )
    yield ask(
        "holes",
        "visible keys that are no prefix",
        Size(2, 6, 4, 3, 2, 2),
        mask=DENSE,
        shapes={"mask": (6,)},
        edit=_holes,
        reports="huggingface/diffusers/issues/14114",
    )
    yield ask(
        "all-true",
        "a mask that hides nothing is no mask",
        Size(3, 5, 4, 3, 2, 2),
        mask=DENSE,
        edit=_true,
        same={"mask=none": "nothing is masked"},
        kills="mask=inverted",
        reports="jax-ml/jax/issues/32300",
    )


def _holes(arrays: dict[str, Any]) -> None:
    arrays["mask"][...] = [True, False, True, True, False, True]


def _true(arrays: dict[str, Any]) -> None:
    arrays["mask"][...] = True
