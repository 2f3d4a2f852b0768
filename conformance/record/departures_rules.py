"""Departures in lengths, segments, prefixes, chunks, dilation and global tokens."""

from collections.abc import Callable
from typing import Any

from conformance.record.departures import Change, departure
from conformance.record.departures_masks import first_of, ignored, numbers


def enter() -> None:
    """Enter all of them."""
    _lengths_and_segments()
    _patterns()


def _lengths_and_segments() -> None:
    _lengths("key_lengths")
    _lengths("query_lengths")
    departure(
        "key_lengths=zero_is_all",
        "A length of 0 is taken as no length.",
        lambda c: c.rules(
            "key_lengths", lambda rule: {**rule, "lengths": numbers(rule["lengths"], lambda x: x if x > 0 else 99)}
        ),
    )
    departure(
        "key_lengths=by_position",
        "The lengths are compared with positions, not with indices.",
        lambda c: (
            c.rules("key_lengths", lambda rule: {"rule": "prefix", "length": rule["lengths"]})
            if c.parameters["key_positions"] != 0
            else None
        ),
    )
    departure(
        "key_lengths=for_queries",
        "The lengths bound the queries, not the keys.",
        lambda c: c.rules("key_lengths", lambda rule: {**rule, "rule": "query_lengths"}),
    )
    departure(
        "segments=ignored", "The segments are ignored: documents see each other.", lambda c: ignored(c, "segments")
    )
    departure(
        "segments=padding_attends",
        "Padding, with a negative id, sees padding.",
        lambda c: c.rules(
            "segments",
            lambda rule: {
                **rule,
                "query_ids": numbers(rule["query_ids"], lambda x: x + 9),
                "key_ids": numbers(rule["key_ids"], lambda x: x + 9),
            },
        ),
    )
    departure(
        "segments=padding_is_visible",
        "Padding, with a negative id, belongs to segment 0.",
        lambda c: c.rules(
            "segments",
            lambda rule: {
                **rule,
                "query_ids": numbers(rule["query_ids"], lambda x: max(x, 0)),
                "key_ids": numbers(rule["key_ids"], lambda x: max(x, 0)),
            },
        ),
    )
    departure(
        "segments=zero_is_padding",
        "Segment 0 is taken as padding.",
        lambda c: c.rules(
            "segments", lambda rule: {**rule, "query_ids": numbers(rule["query_ids"], lambda x: x if x else -1)}
        ),
    )
    departure(
        "segments=query_ids_for_keys",
        "The keys' own ids are ignored.",
        lambda c: (
            c.rules("segments", lambda rule: {**rule, "key_ids": rule["query_ids"]})
            if c.axis("Lq") == c.axis("Lk")
            else None
        ),
    )
    departure(
        "segments=first_item",
        "All batch items take the first one's ids.",
        lambda c: c.rules(
            "segments",
            lambda rule: (
                {**rule, "query_ids": first_of(rule["query_ids"]), "key_ids": first_of(rule["key_ids"])}
                if isinstance(rule["query_ids"][0], list)
                else rule
            ),
        ),
    )


def _lengths(name: str) -> None:
    def with_lengths(change: Callable[[Any], Any]) -> Change:
        return lambda c: c.rules(name, lambda rule: {**rule, "lengths": change(rule["lengths"])})

    departure(f"{name}=ignored", "The lengths are ignored: padding takes part.", lambda c: ignored(c, name))
    departure(
        f"{name}=one_more",
        "The key (or row) at index `length` still counts.",
        with_lengths(lambda lengths: numbers(lengths, lambda x: x + 1)),
    )
    departure(f"{name}=first_item", "All batch items take the first one's length.", with_lengths(first_of))


def _patterns() -> None:
    def more(name: str, key: str, by: int) -> Any:
        return lambda c: c.rules(name, lambda rule: {**rule, key: numbers(rule[key], lambda x: x + by)})

    departure("prefix=one_more", "The key at position `length` belongs to the prefix.", more("prefix", "length", 1))
    departure("prefix=ignored", "The prefix is ignored.", lambda c: ignored(c, "prefix"))
    departure(
        "prefix=by_index",
        "The prefix counts indices, not positions.",
        lambda c: (
            c.rules("prefix", lambda rule: {**rule, "by": "index"}) if c.parameters["key_positions"] != 0 else None
        ),
    )
    departure(
        "prefix=for_queries",
        "The prefix bounds the queries, not the keys.",
        lambda c: c.rules("prefix", lambda rule: {"rule": "query_lengths", "lengths": rule["length"]}),
    )
    departure(
        "chunked=sliding",
        "A chunk is taken as a window of its size.",
        lambda c: c.rules(
            "chunked", lambda rule: {"rule": "sliding_window", "left": rule["size"] - 1, "right": rule["size"] - 1}
        ),
    )
    departure("chunked=one_larger", "The chunks are one position larger.", more("chunked", "size", 1))
    departure(
        "chunked=from_one",
        "The first chunk is one position shorter.",
        lambda c: c.rules("chunked", lambda rule: {**rule, "shift": 1}),
    )
    departure(
        "chunked=by_index",
        "Chunks count indices, not positions.",
        lambda c: (
            c.rules("chunked", lambda rule: {**rule, "by": "index"})
            if c.parameters["query_positions"] != 0 or c.parameters["key_positions"] != 0
            else None
        ),
    )
    departure("chunked=ignored", "The chunks are ignored.", lambda c: ignored(c, "chunked"))
    departure("dilated=one_more", "The step counts the positions in between.", more("dilated", "step", 1))
    departure("dilated=ignored", "The dilation is ignored.", lambda c: ignored(c, "dilated"))
    departure(
        "dilated=from_zero",
        "Key positions divisible by the step are visible, wherever the query is.",
        lambda c: c.rules("dilated", lambda rule: {**rule, "rule": "from_zero"}),
    )
    departure(
        "global=keys_only",
        "Global tokens are seen by all, and do not see all.",
        lambda c: c.rules("global_tokens", lambda rule: {**rule, "queries": -(2**30)}),
    )
    departure(
        "global=queries_only",
        "Global tokens see all, and are not seen by all.",
        lambda c: c.rules("global_tokens", lambda rule: {**rule, "keys": -(2**30)}),
    )
    departure("global=one_more", "The position at `count` is global too.", more("global_tokens", "count", 1))
    departure("global=ignored", "No token is global.", lambda c: ignored(c, "global_tokens"))
