"""What an option of a layer may be: rules that return its value, or raise for another kind or a value out of range."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from numbers import Real
from typing import Any, TypeAlias

from ..arrays import describe
from ..checks import as_float
from ..rotary import Rotary
from ..values import static_int

__all__ = ["Rule", "count", "finite", "flag", "not_negative", "one_of", "optional", "positive", "rotation", "text"]

Rule: TypeAlias = Callable[[str, Any], Any]


def flag(name: str, value: Any) -> bool:
    """Return ``True`` or ``False``."""
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False; got {describe(value)}")
    return value


def count(name: str, value: Any) -> int:
    """Return a Python integer of at least 1."""
    return static_int(name, value, least=1)


def finite(name: str, value: Any) -> float:
    """Return a finite Python number as a float."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"`{name}` must be a Python number; got {describe(value)}")
    number = as_float(value)
    if not isfinite(number):
        raise ValueError(f"`{name}` must be finite; got {number}")
    return number


def positive(name: str, value: Any) -> float:
    """Return a finite Python number above 0."""
    number = finite(name, value)
    if number <= 0:
        raise ValueError(f"`{name}` must be positive; got {number}")
    return number


def not_negative(name: str, value: Any) -> float:
    """Return a finite Python number of at least 0."""
    number = finite(name, value)
    if number < 0:
        raise ValueError(f"`{name}` must be at least 0; got {number}")
    return number


def text(name: str, value: Any) -> str:
    """Return a word."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a string; got {describe(value)}")
    return value


def rotation(name: str, value: Any) -> Rotary:
    """Return a rotary embedding."""
    if not isinstance(value, Rotary):
        raise TypeError(f"`{name}` must be a Rotary; got {describe(value)}")
    return value


def one_of(*words: str) -> Rule:
    """Return the rule of an option that is one of a few words."""

    def rule(name: str, value: Any) -> Any:
        if value not in words:
            raise ValueError(f"`{name}` must be one of {', '.join(words)}; got {value!r}")
        return value

    return rule


def optional(rule: Rule) -> Rule:
    """Return the rule of an option that may be ``None``."""
    return lambda name, value: None if value is None else rule(name, value)
