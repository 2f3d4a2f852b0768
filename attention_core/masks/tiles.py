"""What a mask says of a whole tile: every pair hidden, every pair visible, or some of both."""

from __future__ import annotations

from enum import IntEnum
from types import ModuleType

from ..arrays import Array, is_traced
from ..pairs import Pairs, Span, as_index, value_range

__all__ = ["Visibility", "all_of", "any_of", "below", "between", "equal_ranges", "opposite", "seen_in"]


class Visibility(IntEnum):
    """What is known of a tile; ``MIXED`` is always a true answer, the others only when they are certain."""

    EMPTY = 0
    MIXED = 1
    FULL = 2


def all_of(*parts: Visibility) -> Visibility:
    """Visibility where every part must see the pair."""
    return min(parts)


def any_of(*parts: Visibility) -> Visibility:
    """Visibility where one part that sees the pair is enough."""
    return max(parts)


def opposite(part: Visibility) -> Visibility:
    """Visibility of the complement."""
    return Visibility(Visibility.FULL - part)


def between(values: Span | None, low: int | None, high: int | None) -> Visibility:
    """Visibility of "low <= value <= high" for values in a known range; ``None`` bounds nothing, or is not known."""
    if low is None and high is None:
        return Visibility.FULL
    if values is None:
        return Visibility.MIXED
    smallest, largest = values
    if (low is not None and largest < low) or (high is not None and smallest > high):
        return Visibility.EMPTY
    if (low is None or smallest >= low) and (high is None or largest <= high):
        return Visibility.FULL
    return Visibility.MIXED


def seen_in(xp: ModuleType, visible: Array) -> Visibility:
    """Visibility of a tile by looking at its booleans; ``MIXED`` where they are traced."""
    some = xp.any(visible)
    if is_traced(some):
        return Visibility.MIXED
    if not bool(some):
        return Visibility.EMPTY
    return Visibility.FULL if bool(xp.all(visible)) else Visibility.MIXED


def below(pairs: Pairs, values: Span | None, limit: int | Array) -> Visibility:
    """Visibility of "value < limit" where every batch item has its own limit."""
    if isinstance(limit, int):
        return between(values, None, limit - 1)
    limits = value_range(pairs.xp, as_index(pairs.xp, pairs.per_item(limit)))
    if limits is None or values is None:
        return Visibility.MIXED
    smallest, largest = limits
    low, high = between(values, None, smallest - 1), between(values, None, largest - 1)
    return low if low is high else Visibility.MIXED


def equal_ranges(a: tuple[int, ...], b: tuple[int, ...]) -> Visibility:
    """Visibility of "equal" for values in two known ranges."""
    if a[1] < b[0] or b[1] < a[0]:
        return Visibility.EMPTY
    return Visibility.FULL if a[0] == a[1] == b[0] == b[1] else Visibility.MIXED
