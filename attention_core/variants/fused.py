"""Layers whose query, key and value are one projection."""

from __future__ import annotations

from ..arrays import Array
from .headed import Headed, KeysValues

__all__ = ["Fused"]


class Fused(Headed):
    """A layer that projects to queries, keys and values at once: self-attention."""

    def fused(self, x: Array, name: str = "x") -> tuple[Array, Array, Array]:
        """Return queries, keys and values of ``x``, ``(..., H, L, D)`` each."""
        raise NotImplementedError(f"{type(self).__qualname__} must define fused(x)")

    def queries(self, x: Array) -> Array:
        return self.fused(x)[0]

    def keys_values(self, x_2: Array) -> KeysValues:
        return KeysValues(*self.fused(x_2, "x_2")[1:])

    def project(self, x: Array, x_2: Array | KeysValues | None) -> tuple[Array, KeysValues]:
        if x_2 is not None:
            return super().project(x, x_2)
        queries, keys, values = self.fused(x)
        return queries, KeysValues(keys, values)
