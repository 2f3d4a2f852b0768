"""Cross-attention: queries from one sequence, keys and values from another (Vaswani et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ..arrays import Array
from .headed_call import KeysValues
from .projected import attend, attend_prepared, attend_steps, attend_vjp, keys_values, one_head
from .single_head import SingleHead

__all__ = ["CrossAttention"]


@dataclass(frozen=True, eq=False)
class CrossAttention(SingleHead):
    """``softmax(x_1 W_query (x_2 W_key)^T / sqrt(d_out_kq)) x_2 W_value``: ``(..., L_1, d_out_v)``.

    ``x_1 (..., L_1, d_in)`` asks, ``x_2 (..., L_2, d_in)`` answers; their lengths may differ.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> layer = attention.init(attention.CrossAttention, np.random.default_rng(0), d_in=3, d_out_kq=2, d_out_v=4)
    >>> layer(np.ones((6, 3)), np.ones((8, 3))).shape
    (6, 4)
    """

    no_cache: ClassVar[str] = "its keys and values are those of `x_2`, which `keys_values(x_2)` projects once"

    def keys_values(self, x_2: Array) -> KeysValues:
        """Return keys and values of ``x_2``, ``(..., 1, L_2, d)``; later calls take them in its place."""
        return keys_values(self._stacked(), x_2)

    def __call__(self, x_1: Array, x_2: Array | KeysValues) -> Array:
        """Return the context vectors ``(..., L_1, d_out_v)``; ``keys_values(x_2)`` may stand in ``x_2``'s place."""
        if isinstance(x_2, KeysValues):
            return attend_prepared(self._stacked(), x_1, x_2)
        return attend(self._stacked(), None, {"x_1": x_1, "x_2": x_2})

    def steps(self, x_1: Array, x_2: Array) -> dict[str, Array]:
        """Return queries, keys, values, attn_scores, scaled_scores, attn_weights and context_vec by name."""
        return one_head(attend_steps(self._stacked(), None, {"x_1": x_1, "x_2": x_2}))

    def vjp(self, x_1: Array, x_2: Array) -> tuple[Array, Callable[[Array], tuple[Array, Array, Any]]]:
        """Return the context vectors and their pullback: cotangent to those of ``x_1``, ``x_2`` and the layer."""
        out, pullback = attend_vjp(self._stacked(), None, {"x_1": x_1, "x_2": x_2})

        def to_inputs(cotangent: Array) -> tuple[Array, Array, Any]:
            dx_1, dx_2, weights = pullback(cotangent)
            return dx_1, dx_2, self._of(weights)

        return out, to_inputs
