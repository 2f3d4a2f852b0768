"""An empty cache: what each class is told of its sizes, and the arrays that it begins with."""

from __future__ import annotations

from types import ModuleType
from typing import Required, TypedDict

from ..arrays import Array, array_namespace, default_int, describe, device_of
from ..checks import check_dtypes
from ..values import static_int

__all__ = ["Shape", "empty_arrays", "made_like", "no_tokens"]


class Shape(TypedDict, total=False):
    """What every cache is told: batch axes, ``()`` by default, heads, and the depths of keys and of values.

    ``value_depth`` is ``depth`` by default.
    """

    batch: tuple[int, ...]
    num_kv_heads: Required[int]
    depth: Required[int]
    value_depth: int | None


def made_like(like: Array, shape: Shape) -> tuple[ModuleType, tuple[int, ...], int, tuple[int, int]]:
    """Return the library of ``like``, and checked sizes: batch axes, heads, and the depths of keys and of values."""
    xp = array_namespace(("like", like))
    check_dtypes(xp, like=like)
    _check_names(shape)
    batch = shape.get("batch", ())
    if not isinstance(batch, tuple):
        raise TypeError(f"`batch` must be a tuple of sizes, () for none; got {describe(batch)}")
    batch = tuple(static_int("batch", size, least=0) for size in batch)
    depth, value_depth = static_int("depth", shape["depth"], least=0), shape.get("value_depth")
    value_depth = depth if value_depth is None else static_int("value_depth", value_depth, least=0)
    return xp, batch, static_int("num_kv_heads", shape["num_kv_heads"], least=1), (depth, value_depth)


def _check_names(shape: Shape) -> None:
    names = tuple(Shape.__annotations__)
    for name in shape:
        if name not in names:
            raise TypeError(
                f"an empty cache of this class has no size `{name}`; what every cache has: {', '.join(names)}"
            )
    for name in ("num_kv_heads", "depth"):
        if name not in shape:
            raise TypeError(f"an empty cache needs the size `{name}`")


def empty_arrays(like: Array, xp: ModuleType, *shapes: tuple[int, ...]) -> tuple[Array, ...]:
    """Return zeros of ``like``'s dtype and device."""
    return tuple(xp.zeros(shape, dtype=like.dtype, device=device_of(xp, like)) for shape in shapes)


def no_tokens(like: Array, xp: ModuleType, batch: tuple[int, ...]) -> tuple[Array, Array]:
    """Return lengths ``(...)`` and ``start ()``, all 0."""
    dtype, device = default_int(xp), device_of(xp, like)
    return xp.zeros(batch, dtype=dtype, device=device), xp.zeros((), dtype=dtype, device=device)
