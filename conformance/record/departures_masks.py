"""Departures in masks, positions, lengths, segments; see `conformance.record.departures`."""

from typing import Any

from conformance.record.departures import Call, Rule, departure, switch

CAUSAL = {"rule": "causal"}


def _all_rules(rule: Rule, **more: Any) -> Rule:
    if "of" in rule:
        return {**rule, "of": [_all_rules(part, **more) for part in rule["of"]]}
    return {**rule, **more}


def _ignored(c: Call, name: str) -> Call | None:
    return c.rules(name, lambda rule: None)


def _ids(ids: Any, change: Any) -> Any:
    return [_ids(each, change) for each in ids] if isinstance(ids, list) else change(ids)


def _first(numbers: Any) -> Any:
    """Give every batch item what the first has."""
    return [numbers[0]] * len(numbers) if isinstance(numbers, list) else numbers


def _by_index(c: Call) -> Call | None:
    moved = c.parameters["query_positions"] != 0 or c.parameters["key_positions"] != 0
    return c.given(query_positions=0, key_positions=0) if moved else None


def _dense(c: Call, change: Any) -> Call | None:
    return c.tensor(mask=change(c["mask"])) if (c.parameters["mask"] or {}).get("rule") == "dense" else None


def _part(c: Call, which: int) -> Call | None:
    mask = c.parameters["mask"]
    return c.given(mask=mask["of"][which]) if mask and mask["rule"] in ("and", "or") else None


def _joined(c: Call, one: str, other: str) -> Call | None:
    mask = c.parameters["mask"]
    return c.given(mask={**mask, "rule": other}) if mask and mask["rule"] == one else None


def _strict(rule: Rule) -> Rule:
    return {**rule, "shift": rule.get("shift", 0) - 1}


def enter() -> None:
    """Enter all of them."""
    _masks()
    _causal()
    _windows()
    _lengths_and_segments()
    _patterns()


def _masks() -> None:
    departure("mask=none", "The mask is ignored.", lambda c: c.given(mask=None) if c.parameters["mask"] else None)
    departure(
        "mask=inverted",
        "True is taken as `may not attend`.",
        lambda c: c.given(mask={"rule": "not", "of": [c.parameters["mask"]]}) if c.parameters["mask"] else None,
    )
    departure(
        "mask=transposed",
        "The mask's axes are (key, query).",
        lambda c: (
            _dense(c, lambda m: m.mT)
            if c.axis("Lq") == c.axis("Lk") and c.inputs.get("mask") is not None and c["mask"].ndim > 1
            else None
        ),
    )
    departure(
        "mask=first_head",
        "All heads take the mask of the first.",
        lambda c: (
            _dense(c, lambda m: m[..., :1, :, :]) if c.inputs.get("mask") is not None and c["mask"].ndim > 2 else None
        ),
    )
    departure(
        "mask=first_item",
        "All batch items take the mask of the first.",
        lambda c: _dense(c, lambda m: m[:1]) if c.inputs.get("mask") is not None and c["mask"].ndim > 3 else None,
    )
    departure(
        "mask=first_query",
        "All queries take the mask of the first.",
        lambda c: (
            _dense(c, lambda m: m[..., :1, :]) if c.inputs.get("mask") is not None and c["mask"].ndim > 1 else None
        ),
    )
    departure("masks=first_only", "Of two masks only the first is used.", lambda c: _part(c, 0))
    departure("masks=last_only", "Of two masks only the last is used.", lambda c: _part(c, -1))
    departure("masks=or_for_and", "Two masks are joined by or.", lambda c: _joined(c, "and", "or"))
    departure("masks=and_for_or", "Two masks are joined by and.", lambda c: _joined(c, "or", "and"))
    departure(
        "masks=not_ignored", "A negated mask is taken as it is.", lambda c: c.rules("not", lambda rule: rule["of"][0])
    )
    switch("masked=zero_fill", "Masked scores are set to 0 before the softmax.", lambda c: c.parameters["mask"])
    switch(
        "masked=minus_100", "Masked scores are set to -100, which is not far enough.", lambda c: c.parameters["mask"]
    )
    switch(
        "masked=without_renormalising",
        "The weights are masked after the softmax and do not sum to one.",
        lambda c: c.parameters["mask"],
    )
    switch("empty=mean_of_value", "A row that sees nothing is the mean of all values.", lambda c: c.parameters["mask"])
    switch("empty=nan", "A row that sees nothing is NaN.", lambda c: c.parameters["mask"])
    switch(
        "empty=sum_of_value",
        "A row that sees nothing has weights of 1: exp(fill - fill) without a division.",
        lambda c: c.parameters["mask"],
    )
    departure(
        "mask=causal",
        "A causal mask is applied that nobody asked for.",
        lambda c: c.given(mask=CAUSAL) if not c.parameters["mask"] else None,
    )


def _causal() -> None:
    def lower_right(c: Call) -> Call | None:
        def moved(rule: Rule) -> Rule:
            return {**rule, "by": "index", "shift": c.axis("Lk") - c.axis("Lq")}

        return c.rules("causal", moved) if c.axis("Lk") != c.axis("Lq") else None

    departure("causal=lower_right", "The causal triangle ends at the last key: lower right.", lower_right)
    departure(
        "causal=upper_left",
        "The causal triangle starts at the first key: upper left.",
        lambda c: c.rules("causal_lower_right", lambda rule: {"rule": "causal", "by": "index"}),
    )
    for name in ("causal", "causal_lower_right"):
        first = TABLE_CAUSAL[name]
        departure(
            first + "without_self", "A query does not see its own position.", lambda c, n=name: c.rules(n, _strict)
        )  # type: ignore[misc]  # the default binds the loop's value
        departure(
            first + "one_too_many",
            "A query sees the key after its own.",
            lambda c, n=name: c.rules(n, lambda rule: {**rule, "shift": rule.get("shift", 0) + 1}),
        )  # type: ignore[misc]  # as above
    departure(
        "causal=ignored", "The causal mask is dropped, alone or beside another mask.", lambda c: _ignored(c, "causal")
    )
    departure(
        "causal=reversed",
        "A query sees what comes after it, not before.",
        lambda c: c.rules("causal", lambda rule: {"rule": "sliding_window", "left": 0, "right": None}),
    )
    departure("positions=ignored", "Positions are counted from 0, whatever the call says.", _by_index)
    departure(
        "query_positions=ignored",
        "The queries' positions are ignored.",
        lambda c: (
            c.given(query_positions=0)
            if c.parameters["query_positions"] != 0 and c.parameters["key_positions"] != 0
            else None
        ),
    )
    departure(
        "query_positions=one_more",
        "The first query stands one place later.",
        lambda c: (
            c.given(query_positions=c.parameters["query_positions"] + 1)
            if isinstance(c.parameters["query_positions"], int) and c.parameters["query_positions"]
            else None
        ),
    )
    departure(
        "query_positions=first_only",
        "Only the first of the positions is read, the others are counted on.",
        lambda c: (
            c.given(query_positions=c.parameters["query_positions"][0])
            if isinstance(c.parameters["query_positions"], list) and isinstance(c.parameters["query_positions"][0], int)
            else None
        ),
    )
    departure(
        "query_positions=first_item",
        "All batch items take the first one's positions.",
        lambda c: (
            c.given(query_positions=_first(c.parameters["query_positions"]))
            if isinstance(c.parameters["query_positions"], list)
            and isinstance(c.parameters["query_positions"][0], list)
            else None
        ),
    )


TABLE_CAUSAL = {"causal": "causal=", "causal_lower_right": "lower_right="}


def _windows() -> None:
    def window(name: str, means: str, change: Any) -> None:
        departure(
            f"window={name}",
            means,
            lambda c: c.rules("sliding_window", lambda rule: {**rule, **change(rule["left"], rule["right"])}),
        )

    window(
        "counts_self", "The window's left side counts the query's own key.", lambda a, b: {"left": a - 1} if a else {}
    )
    window(
        "counts_self_right",
        "The window's right side counts the query's own key.",
        lambda a, b: {"right": b - 1} if b else {},
    )
    window(
        "one_more_left",
        "The window reaches one key further to the left.",
        lambda a, b: {"left": a + 1} if a is not None else {},
    )
    window(
        "one_more_right",
        "The window reaches one key further to the right.",
        lambda a, b: {"right": b + 1} if b is not None else {},
    )
    window("left_only", "The window's right bound is ignored.", lambda a, b: {"right": None})
    window("right_only", "The window's left bound is ignored.", lambda a, b: {"left": None})
    window("causal", "The window is causal, whatever its right bound says.", lambda a, b: {"right": 0})
    window("symmetric", "The window reaches as far to the right as to the left.", lambda a, b: {"right": a})
    window("mirrored", "Left and right are exchanged.", lambda a, b: {"left": b, "right": a})
    window(
        "zero_is_unbounded", "A bound of 0 is taken as no bound.", lambda a, b: {"left": a or None, "right": b or None}
    )
    window("none_is_zero", "No bound is taken as a bound of 0.", lambda a, b: {"left": a or 0, "right": b or 0})
    departure("window=ignored", "The window is dropped.", lambda c: _ignored(c, "sliding_window"))
    departure(
        "window=lower_right",
        "The window is aligned with the last key.",
        lambda c: (
            c.rules("sliding_window", lambda rule: {**rule, "by": "index", "shift": c.axis("Lk") - c.axis("Lq")})
            if c.axis("Lk") != c.axis("Lq")
            else None
        ),
    )


def _lengths_and_segments() -> None:
    for name in ("key_lengths", "query_lengths"):
        departure(f"{name}=ignored", "The lengths are ignored: padding takes part.", lambda c, n=name: _ignored(c, n))  # type: ignore[misc]  # the default binds the loop's value
        departure(
            f"{name}=one_more",
            "The key (or row) at index `length` still counts.",
            lambda c, n=name: c.rules(n, lambda rule: {**rule, "lengths": _ids(rule["lengths"], lambda x: x + 1)}),
        )  # type: ignore[misc]  # as above
        departure(
            f"{name}=first_item",
            "All batch items take the first one's length.",
            lambda c, n=name: c.rules(n, lambda rule: {**rule, "lengths": _first(rule["lengths"])}),
        )  # type: ignore[misc]  # as above
    departure(
        "key_lengths=zero_is_all",
        "A length of 0 is taken as no length.",
        lambda c: c.rules(
            "key_lengths", lambda rule: {**rule, "lengths": _ids(rule["lengths"], lambda x: x if x > 0 else 99)}
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
        "segments=ignored", "The segments are ignored: documents see each other.", lambda c: _ignored(c, "segments")
    )
    departure(
        "segments=padding_attends",
        "Padding, with a negative id, sees padding.",
        lambda c: c.rules(
            "segments",
            lambda rule: {
                **rule,
                "query_ids": _ids(rule["query_ids"], lambda x: x + 9),
                "key_ids": _ids(rule["key_ids"], lambda x: x + 9),
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
                "query_ids": _ids(rule["query_ids"], lambda x: max(x, 0)),
                "key_ids": _ids(rule["key_ids"], lambda x: max(x, 0)),
            },
        ),
    )
    departure(
        "segments=zero_is_padding",
        "Segment 0 is taken as padding.",
        lambda c: c.rules(
            "segments", lambda rule: {**rule, "query_ids": _ids(rule["query_ids"], lambda x: x if x else -1)}
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
                {**rule, "query_ids": _first(rule["query_ids"]), "key_ids": _first(rule["key_ids"])}
                if isinstance(rule["query_ids"][0], list)
                else rule
            ),
        ),
    )


def _patterns() -> None:
    def more(name: str, key: str, by: int) -> Any:
        return lambda c: c.rules(name, lambda rule: {**rule, key: _ids(rule[key], lambda x: x + by)})

    departure("prefix=one_more", "The key at position `length` belongs to the prefix.", more("prefix", "length", 1))
    departure("prefix=ignored", "The prefix is ignored.", lambda c: _ignored(c, "prefix"))
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
    departure("chunked=ignored", "The chunks are ignored.", lambda c: _ignored(c, "chunked"))
    departure("dilated=one_more", "The step counts the positions in between.", more("dilated", "step", 1))
    departure("dilated=ignored", "The dilation is ignored.", lambda c: _ignored(c, "dilated"))
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
    departure("global=ignored", "No token is global.", lambda c: _ignored(c, "global_tokens"))
