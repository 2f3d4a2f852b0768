"""Scaled dot-product self-attention with three projections (Vaswani et al. 2017), one head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ..arrays import Array
from ..masks import Mask
from .layer import NOT_CAUSAL
from .projected import attend, attend_steps, attend_vjp, decode, one_head
from .single_head import SingleHead

__all__ = ["SelfAttention"]


@dataclass(frozen=True, eq=False)
class SelfAttention(SingleHead):
    """``softmax(x W_query (x W_key)^T / sqrt(d_out_kq)) x W_value``, for ``x (..., L, d_in)``: ``(..., L, d_out_v)``.

    ``W_query`` and ``W_key`` are ``(d_in, d_out_kq)``, ``W_value`` is ``(d_in, d_out_v)``, ``d_out_v`` free.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> layer = attention.init(attention.SelfAttention, np.random.default_rng(0), d_in=3, d_out_kq=2, d_out_v=4)
    >>> layer(np.ones((5, 3))).shape
    (5, 4)
    """

    mask: ClassVar[Mask | None] = None
    no_cache: ClassVar[str] = NOT_CAUSAL

    def __call__(self, x: Array, *, lengths: int | Array | None = None, padding: str = "right") -> Array:
        """Return the context vectors ``(..., L, d_out_v)`` of ``x (..., L, d_in)``.

        In a padded batch ``lengths (...)`` tokens of each item are real, the first ones or, with ``padding="left"``,
        the last: padding is seen by nobody, and its rows of the output mean nothing.
        """
        if lengths is None and padding == "right":
            return attend(self._stacked(), self.mask, {"x": x})
        return decode(self._stacked(), self.mask, x, {"lengths": lengths, "padding": padding})

    def steps(self, x: Array) -> dict[str, Array]:
        """Return queries, keys, values, attn_scores, scaled_scores, attn_weights and context_vec by name."""
        return one_head(attend_steps(self._stacked(), self.mask, {"x": x}))

    def vjp(self, x: Array) -> tuple[Array, Callable[[Array], tuple[Array, Any]]]:
        """Return the context vectors and their pullback: cotangent to the cotangents of ``x`` and of the layer."""
        out, pullback = attend_vjp(self._stacked(), self.mask, {"x": x})

        def to_inputs(cotangent: Array) -> tuple[Array, Any]:
            dx_1, dx_2, weights = pullback(cotangent)
            return dx_1 + dx_2, self._of(weights)

        return out, to_inputs
