"""Departures in which pairs a seed keeps."""

from typing import Any

from conformance.record.departures import Call, departure
from conformance.record.kept import MEANS, kept


def enter() -> None:
    """Enter all of them."""
    for name, means in MEANS.items():
        departure(name, means, _other_pairs(name))
    departure("dropout=rate_as_given", "The kept weights are divided by 1 minus the unrounded rate.", _rate_as_given)


def _other_pairs(name: str) -> Any:
    def change(c: Call) -> Call | None:
        rule = c.parameters["dropout"]
        if rule is None or "seed" not in rule:
            return None
        wrong = kept(rule, tuple(c["keep"].shape), name)
        same = bool((wrong == c["keep"]).all())
        return None if same else _explicit(c, round(65536 * rule["rate"]) / 65536).tensor(keep=wrong)

    return change


def _rate_as_given(c: Call) -> Call | None:
    rule = c.parameters["dropout"]
    return _explicit(c, rule["rate"]) if rule is not None and "seed" in rule else None


def _explicit(c: Call, rate: float) -> Call:
    return c.given(dropout={"rate": rate, "keep": "keep"})
