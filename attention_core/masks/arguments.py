"""The arguments of the functions that make masks: integers, lengths, and arrays that fit a call."""

from __future__ import annotations

from typing import Any

from ..arrays import Array
from ..checks import fits
from ..values import integer_or_array, static_int

__all__ = ["UNBOUNDED", "bound", "check_shape", "limit", "reach", "shape_of"]

UNBOUNDED = 2**31 - 1  # no position is larger, and more would not fit JAX's default int32


def bound(name: str, value: Any) -> int | None:
    """Return a window's bound; ``None``, or more than any distance, bounds nothing."""
    if value is None:
        return None
    value = static_int(name, value, least=0)
    return None if value >= UNBOUNDED else value


def limit(name: str, value: Any) -> int | Array:
    """Return a length, or a length per batch item; any integer is defined."""
    value = integer_or_array(name, value)
    return max(-UNBOUNDED, min(value, UNBOUNDED)) if isinstance(value, int) else value


def reach(name: str, value: Any, least: int) -> int:
    """Return a Python integer of at least ``least``, cut where more makes no difference."""
    return min(static_int(name, value, least), UNBOUNDED)


def shape_of(x: int | Array) -> tuple[int, ...]:
    """Return the shape of an integer or an array."""
    return () if isinstance(x, int) else tuple(x.shape)


def check_shape(name: str, x: Any, shape: tuple[int, ...], legend: str, exact: int = 0) -> None:
    """Check that an array broadcasts to ``shape``, its last ``exact`` axes without broadcasting."""
    if isinstance(x, int):
        return
    own = tuple(x.shape)
    if not fits(own, shape) or own[len(own) - exact :] != shape[len(shape) - exact :]:
        raise ValueError(f"`{name}` has shape {own}, which does not broadcast to {legend} = {shape}")
