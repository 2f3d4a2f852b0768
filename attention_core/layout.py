"""The two layouts: ``"BHLD"`` is ``(..., H, L, D)``, ``"BLHD"`` is ``(..., L, H, D)``. Inside, all is the first."""

from __future__ import annotations

from types import ModuleType

from .arrays import Array

__all__ = ["from_heads_first", "heads_first"]


def heads_first(xp: ModuleType, x: Array, layout: str) -> Array:
    """Return ``x`` as ``(..., H, L, D)``; a plain ``(L, D)`` becomes one head. Nothing is copied."""
    if x.ndim == 2:
        return x[None, :, :]
    return x if layout == "BHLD" else _swap(xp, x)


def from_heads_first(xp: ModuleType, x: Array, layout: str, plain: bool) -> Array:
    """Undo :func:`heads_first` for an output ``(..., H, L, D)``."""
    if plain:
        return x[0, :, :]
    return x if layout == "BHLD" else _swap(xp, x)


def _swap(xp: ModuleType, x: Array) -> Array:
    axes = list(range(x.ndim))
    axes[-3], axes[-2] = axes[-2], axes[-3]
    return xp.permute_dims(x, tuple(axes))
