"""What a mask says of a whole tile: every pair hidden, every pair visible, or some of both.

The arithmetic is on the smallest and largest position, index or id of the tile. These are Python integers where they
are known; under a trace they are 0-d arrays, and so is the answer: a kernel may ask inside its loop.
"""

from __future__ import annotations

from enum import IntEnum
from types import ModuleType
from typing import Any, TypeAlias

from ..arrays import Array, is_traced
from ..pairs import Pairs, Range, as_index, value_range

__all__ = [
    "Code",
    "Visibility",
    "all_of",
    "any_of",
    "below",
    "between",
    "coded",
    "equal_ranges",
    "opposite",
    "seen_in",
    "settled",
]


class Visibility(IntEnum):
    """What is known of a tile; ``MIXED`` is always a true answer, the others only when they are certain.

    >>> from attention_core.masks import Visibility
    >>> Visibility.EMPTY < Visibility.MIXED < Visibility.FULL
    True
    """

    EMPTY = 0
    MIXED = 1
    FULL = 2


Code: TypeAlias = Any
"""A :class:`Visibility` as an integer, or as a traced 0-d array of one."""

_EMPTY, _MIXED, _FULL = map(int, Visibility)


def settled(code: Code) -> Visibility:
    """Return the visibility that a code stands for, ``MIXED`` where it is traced."""
    return Visibility.MIXED if is_traced(code) else Visibility(int(code))


def coded(nothing: Any, everything: Any) -> Code:
    """Turn "no pair is visible" and "every pair is" into a code: Python booleans, or traced ones."""
    return _MIXED + everything * 1 - nothing * 1


def all_of(a: Code, b: Code) -> Code:
    """Code where both parts must see the pair: the smaller."""
    if _is(a, _EMPTY) or _is(b, _FULL):
        return a
    if _is(b, _EMPTY) or _is(a, _FULL):
        return b
    return a * (a < b) + b * (a >= b)


def any_of(a: Code, b: Code) -> Code:
    """Code where one part that sees the pair is enough: the larger."""
    return opposite(all_of(opposite(a), opposite(b)))


def opposite(code: Code) -> Code:
    """Code of the complement."""
    return _FULL - code


def _is(code: Code, known: int) -> bool:
    return not is_traced(code) and int(code) == known


def between(values: Range | None, low: Any, high: Any) -> Code:
    """Code of "low <= value <= high" for values in a range; no bound bounds nothing, of no values nothing is said."""
    if low is None and high is None:
        return _FULL
    if values is None:
        return _MIXED
    smallest, largest = values
    if low is None:
        return coded(smallest > high, largest <= high)
    if high is None:
        return coded(largest < low, smallest >= low)
    return coded((largest < low) | (smallest > high), (smallest >= low) & (largest <= high))


def seen_in(xp: ModuleType, visible: Array) -> Code:
    """Code of a tile by looking at its booleans."""
    some, every = xp.any(visible), xp.all(visible)
    if is_traced(some):
        return coded(~some, some & every)
    return coded(not bool(some), bool(some) and bool(every))


def below(pairs: Pairs, values: Range | None, limit: int | Array) -> Code:
    """Code of "value < limit" where every batch item has its own limit."""
    if isinstance(limit, int):
        return between(values, None, limit - 1)
    limits = value_range(pairs.xp, as_index(pairs.xp, pairs.per_item(limit)))
    if limits is None or values is None:
        return _MIXED
    (smallest, largest), (low, high) = values, limits
    return coded(smallest >= high, largest < low)


def equal_ranges(a: Range, b: Range) -> Code:
    """Code of "equal" for values in two ranges."""
    apart = (a[1] < b[0]) | (b[1] < a[0])
    return coded(apart, (a[0] == a[1]) & (b[0] == b[1]) & (a[0] == b[0]))
