"""Calls that most implementations take as they are: one depth for query, key and value."""

from collections.abc import Iterator
from typing import Any

from conformance.record.ask import Ask, Size
from conformance.record.groups.rules import CAUSAL, LOWER_RIGHT, both, window
from conformance.record.groups.theme import DENSE, Theme, Themed

Arrays = dict[str, Any]


def groups() -> Iterator[Themed]:
    """Yield the group."""
    yield _COMMON, [*_common()]


_COMMON = Theme(
    "one-depth",
    "One depth for all",
    "Query, key and value have a depth of 8, as most kernels ask: nothing is padded for anybody.",
    "The everyday call of a model is another one here.",
    "pytorch/pytorch/issues/176767 Dao-AILab/flash-attention/pull/2470",
    "scale=1 causal=lower_right causal=upper_left mask=inverted mask=none heads=tiled window=counts_self "
    "bias=scaled empty=mean_of_value roles=query_key_swapped",
)
MULTI, SHARED, LONE = Size(3, 5, 8, 8, 4, 4, (2,)), Size(4, 6, 8, 8, 4, 2, (2,)), Size(5, 7, 8, 8, 2, 1)


def _common() -> Iterator[Ask]:
    ask = _COMMON.ask
    yield ask("multi-head", "4 heads each", MULTI)
    yield ask("grouped", "4 query heads, 2 key heads", SHARED, kills="heads=tiled")
    yield ask("multi-query", "2 query heads, 1 key head, with weights", LONE, outputs="out lse weights")
    yield ask("layout", "layout (..., L, H, D)", SHARED, layout="BLHD", outputs="out")
    yield ask("scale", "a scale of 1/4", MULTI, scale=0.25, kills="scale=default")
    yield ask("causal", "causal, fewer queries than keys", MULTI, mask=CAUSAL, kills="causal=lower_right")
    yield ask("causal-square", "causal, as many queries as keys", Size(6, 6, 8, 8, 4, 4), mask=CAUSAL)
    yield ask("causal-grouped", "causal, grouped heads", SHARED, mask=CAUSAL, kills="heads=tiled")
    yield ask("lower-right", "aligned at the last key", MULTI, mask=LOWER_RIGHT, kills="causal=upper_left")
    yield ask("decode", "one query after a cache of 7", Size(1, 8, 8, 8, 4, 2, (2,)), mask=CAUSAL, query_positions=7)
    yield ask("window", "2 keys before the query's own", LONE, mask=window(2, 0), kills="window=counts_self")
    yield ask("window-both", "1 key before, 2 after", SHARED, mask=window(1, 2), kills="window=counts_self")
    yield ask(
        "key-lengths",
        "5 and 2 keys",
        MULTI,
        mask={"rule": "key_lengths", "lengths": [5, 2]},
        kills="key_lengths=ignored key_lengths=one_more",
    )
    yield ask(
        "padded-causal",
        "causal within 3 and 4 keys",
        Size(4, 4, 8, 8, 2, 2, (2,)),
        mask=both(CAUSAL, {"rule": "key_lengths", "lengths": [3, 4]}),
    )
    yield ask(
        "segments",
        "two documents and padding",
        Size(5, 5, 8, 8, 2, 2),
        mask={"rule": "segments", "query_ids": [0, 0, 1, 1, -1], "key_ids": [0, 0, 1, 1, -1]},
    )
    yield ask("mask", "a boolean mask a head", MULTI, mask=DENSE, kills="mask=first_head")
    yield ask("mask-keys", "a boolean mask an item", MULTI, mask=DENSE, shapes={"mask": (2, 1, 1, 5)})
    yield ask("mask-empty", "a row that sees no key", LONE, mask=DENSE, edit=_hide_a_row, kills="empty=mean_of_value")
    yield ask("bias", "a bias a head", MULTI, bias=DENSE, kills="bias=scaled bias=first_head")
    yield ask("alibi", "ALiBi, causal", SHARED, mask=CAUSAL, bias={"rule": "alibi", "slopes": [1.0, 0.5, 0.25, 0.125]})
    yield ask("softcap", "a soft cap, causal", MULTI, mask=CAUSAL, softcap=1.5, kills="cap=none")
    yield ask("sinks", "sinks, a window", SHARED, mask=window(2, 0), sinks=True, kills="sink=none")


def _hide_a_row(arrays: Arrays) -> None:
    arrays["mask"][..., 1, :] = False
