"""The mask rules, as the vectors say them."""

from typing import Any

from conformance.record.ask import Size

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
