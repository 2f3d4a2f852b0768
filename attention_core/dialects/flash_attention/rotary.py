"""Rotary embedding as FlashAttention applies it to a cache (Su et al. 2021)."""

from __future__ import annotations

from types import ModuleType

from ...arrays import Array, as_array, cast, compute_dtype, device_of

__all__ = ["rotated"]


def rotated(
    xp: ModuleType, x: Array, cos: Array, sin: Array, start: int | Array, step: int, interleaved: bool
) -> Array:
    """Rotate pairs of the first ``2 * cos.shape[1]`` depths of ``(B, L, H, D)``, row ``i`` by ``start + step * i``."""
    dtype = compute_dtype(xp, x.dtype)
    at = step * xp.arange(x.shape[1], device=device_of(xp, x)) + xp.reshape(xp.asarray(start), (-1, 1))
    cos, sin = (_at(xp, cast(xp, as_array(xp, table), dtype), at) for table in (cos, sin))
    depth = 2 * cos.shape[-1]
    turned, rest = cast(xp, x[..., :depth], dtype), x[..., depth:]
    half = depth // 2
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    a, b = a * cos - b * sin, a * sin + b * cos
    turned = xp.reshape(xp.stack([a, b], axis=-1), turned.shape) if interleaved else xp.concat([a, b], axis=-1)
    return xp.concat([cast(xp, turned, x.dtype), rest], axis=-1)


def _at(xp: ModuleType, table: Array, at: Array) -> Array:
    """Return the table's rows as ``(B or 1, L, 1, Dr / 2)``."""
    rows = xp.take(table, xp.reshape(at, (-1,)), axis=0)
    return xp.reshape(rows, (*at.shape, 1, table.shape[-1]))
