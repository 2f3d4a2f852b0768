"""Departures in masks, positions, lengths, segments; see `conformance.record.departures`."""

from typing import Any

from conformance.record.departures import Call, Change, Rule, departure, switch

CAUSAL = {"rule": "causal"}


def _all_rules(rule: Rule, **more: Any) -> Rule:
    if "of" in rule:
        return {**rule, "of": [_all_rules(part, **more) for part in rule["of"]]}
    return {**rule, **more}


def ignored(c: Call, name: str) -> Call | None:
    """Leave out every rule of one name."""
    return c.rules(name, lambda rule: None)


def numbers(ids: Any, change: Any) -> Any:
    """Change every number of nested lists."""
    return [numbers(each, change) for each in ids] if isinstance(ids, list) else change(ids)


def first_of(numbers: Any) -> Any:
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


def enter() -> None:
    """Enter all of them."""
    _masks()
    _causal()
    _windows()


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
    _one_key_off("causal", "causal=")
    _one_key_off("causal_lower_right", "lower_right=")
    departure(
        "causal=ignored", "The causal mask is dropped, alone or beside another mask.", lambda c: ignored(c, "causal")
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
            c.given(query_positions=first_of(c.parameters["query_positions"]))
            if isinstance(c.parameters["query_positions"], list)
            and isinstance(c.parameters["query_positions"][0], list)
            else None
        ),
    )


def _one_key_off(name: str, prefix: str) -> None:
    def shifted(by: int) -> Change:
        return lambda c: c.rules(name, lambda rule: {**rule, "shift": rule.get("shift", 0) + by})

    departure(prefix + "without_self", "A query does not see its own position.", shifted(-1))
    departure(prefix + "one_too_many", "A query sees the key after its own.", shifted(1))


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
    departure("window=ignored", "The window is dropped.", lambda c: ignored(c, "sliding_window"))
    departure(
        "window=lower_right",
        "The window is aligned with the last key.",
        lambda c: (
            c.rules("sliding_window", lambda rule: {**rule, "by": "index", "shift": c.axis("Lk") - c.axis("Lq")})
            if c.axis("Lk") != c.axis("Lq")
            else None
        ),
    )
