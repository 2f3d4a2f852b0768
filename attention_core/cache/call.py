"""What a cache's ``attend`` takes besides tokens, and what it refuses: it keeps keys at indices of its own."""

from __future__ import annotations

from typing import Any, TypedDict

from ..arrays import Array
from ..biases import Bias
from ..biases.algebra import Sum
from ..biases.given import Dense as DenseBias
from ..masks import Mask
from ..masks.algebra import And, Or
from ..masks.given import Dense, KeyLengths, QueryLengths, Segments
from ..masks.rules import LowerRight, SlidingWindow

__all__ = ["LookCall", "check_call", "left_of", "terms"]


class LookCall(TypedDict, total=False):
    """Arguments that go to :func:`dot_product_attention` as they are."""

    bias: Any
    scale: float | None
    softcap: float | None
    sinks: Array | None
    impl: str


def check_call(mask: Any, call: LookCall, reach: int | None = None) -> None:
    """Raise for what ``attend`` does not take: a mask or a bias by index, or a window of more keys than are kept."""
    for name in call:
        if name not in LookCall.__annotations__:
            raise TypeError(f"`{name}` was given, but a cache's attend takes {', '.join(LookCall.__annotations__)}")
    _check_positional(mask, call.get("bias"))
    left = None if reach is None or not isinstance(mask, Mask) else left_of(mask)
    if reach is not None and left is not None and left >= reach:
        raise ValueError(
            f"by `mask` {mask!r} a query sees {left + 1} keys, its own among them, but the cache keeps {reach}"
        )


def left_of(mask: Mask) -> int | None:
    """Return how many keys before its own a query may see by the windows of a mask; ``None`` where none bounds it."""
    if isinstance(mask, SlidingWindow):
        return mask.left
    if not isinstance(mask, And):  # and Or
        return None
    sides = [left_of(mask.left), left_of(mask.right)]
    bounds = [side for side in sides if side is not None]
    if isinstance(mask, Or):
        return max(bounds) if len(bounds) == len(sides) else None
    return min(bounds, default=None)


def _check_positional(mask: Any, bias: Any) -> None:
    """Raise for a mask or a bias that goes by the indices of a call: a cache keeps keys at indices of its own."""
    if mask is not None and not isinstance(mask, Mask):
        raise ValueError(
            "`mask` is an array, whose axes a cache does not keep: say it by positions, as masks.rule does"
        )
    for part in [] if mask is None else mask.parts():
        if isinstance(part, (Dense, KeyLengths, QueryLengths, Segments, LowerRight)):
            raise ValueError(f"`mask` holds {part!r}, which goes by index: with a cache masks go by positions")
    if bias is not None and not (isinstance(bias, Bias) and not any(isinstance(x, DenseBias) for x in terms(bias))):
        raise ValueError(
            "`bias` is an array, whose axes a cache does not keep: say it by positions, as biases.rule does"
        )


def terms(bias: Bias) -> list[Bias]:
    """Return the biases of a sum."""
    return [*terms(bias.left), *terms(bias.right)] if isinstance(bias, Sum) else [bias]
