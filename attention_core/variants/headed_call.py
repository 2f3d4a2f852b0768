"""What calls of layers of heads share: their arguments, and keys and values that are projected already."""

from __future__ import annotations

from typing import Any, NamedTuple, TypedDict

from ..arrays import Array
from ..attention import dot_product_attention
from ..masks import causal
from ..problem import Result
from ..values import shown

__all__ = ["HeadedCall", "KeysValues", "attention_result", "with_causal"]


class KeysValues(NamedTuple):
    """Keys ``(..., Hkv, Lk, D)`` and values ``(..., Hkv, Lk, Dv)``, projected once for many calls.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> from attention_core.variants import ProjectedAttention
    >>> layer = attention.init(ProjectedAttention, np.random.default_rng(0), d_in=6, num_heads=3, d_head=2)
    >>> prepared = layer.keys_values(np.ones((5, 6)))
    >>> prepared.keys.shape, layer(np.ones((4, 6)), prepared).shape
    ((3, 5, 2), (4, 6))
    """

    keys: Array
    values: Array

    def __repr__(self) -> str:
        return shown(self, self._fields)


class HeadedCall(TypedDict, total=False):
    """Arguments of a layer's call that go to :func:`dot_product_attention` as they are."""

    mask: Any
    bias: Any
    dropout: Any
    query_positions: int | Array
    key_positions: int | Array
    impl: str


def with_causal(call: HeadedCall) -> HeadedCall:
    """Return the call with later positions hidden too."""
    mask = call.get("mask")
    return {**call, "mask": causal() if mask is None else causal() & mask}


def attention_result(
    queries: Array, keys_values: KeysValues, scale: float | None, return_weights: bool, call: HeadedCall
) -> Result:
    """Return a ``Result`` in any case, with weights only where they are asked for."""
    result = dot_product_attention(queries, *keys_values, scale=scale, return_weights=return_weights, **call)
    return result if isinstance(result, Result) else Result(result)
