"""Prefixes, chunks, dilation, global tokens; several masks at once; boolean masks."""

from collections.abc import Iterator
from typing import Any

from conformance.record.ask import Ask, Size
from conformance.record.groups.rules import CAUSAL, GIVEN, both, either, per_item, window
from conformance.record.groups.theme import DENSE, Theme, Themed


def groups() -> Iterator[Themed]:
    """Yield the groups."""
    yield _PATTERNS, [*_patterns()]
    yield _SEVERAL, [*_several()]
    yield _DENSE, [*_dense()]


_PATTERNS = Theme(
    "patterns",
    "Prefix, chunks, dilation, global tokens",
    "prefix: key position < n; chunked: equal position // c; dilated: distance divisible by s; global: query or "
    "key position < n.",
    "A prefix-LM, a chunked (Llama 4), a strided or a Longformer model reads other keys.",
    "",
    "prefix=one_more prefix=ignored prefix=by_index prefix=for_queries chunked=sliding chunked=one_larger "
    "chunked=from_one "
    "chunked=by_index dilated=one_more dilated=from_zero global=keys_only global=queries_only global=one_more "
    "masks=and_for_or "
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
    "neuro-galaxy/torch_brain/pull/74 jax-ml/jax/issues/28974 keras-team/keras/issues/21483 "
    "tensorflow/tensorflow/issues/60626",
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
