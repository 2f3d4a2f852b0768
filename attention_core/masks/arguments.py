"""The arguments of the functions that make masks: integers, lengths, and arrays that fit a call."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from ..arrays import Array, broadcast_shapes
from ..values import integer_or_array

__all__ = ["UNBOUNDED", "bound", "check_shape", "limit", "shape_of", "static_int"]

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


def static_int(name: str, value: Any, least: int) -> int:
    """Return a Python integer of at least ``least``; never an array, so that the mask stays static."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"`{name}` must be a Python integer; got a {type(value).__qualname__}")
    if value < least:
        raise ValueError(f"`{name}` must be at least {least}; got {value}")
    return min(int(value), UNBOUNDED)


def shape_of(x: int | Array) -> tuple[int, ...]:
    """Return the shape of an integer or an array."""
    return () if isinstance(x, int) else tuple(x.shape)


def check_shape(name: str, x: Any, shape: tuple[int, ...], legend: str, exact: int = 0) -> None:
    """Check that an array broadcasts to ``shape``, its last ``exact`` axes without broadcasting."""
    if isinstance(x, int):
        return
    try:
        fits = (
            broadcast_shapes(tuple(x.shape), shape) == shape
            and x.shape[x.ndim - exact :] == shape[len(shape) - exact :]
        )
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"`{name}` has shape {tuple(x.shape)}, which does not broadcast to {legend} = {shape}")
