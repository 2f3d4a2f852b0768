"""``mlx.core.fast.scaled_dot_product_attention`` by its documentation; where a row sees no key, the mean of V.

https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.fast.scaled_dot_product_attention.html
"""

from __future__ import annotations

from typing import Any

from .. import masks
from ..arrays import Array
from ..attention import dot_product_attention
from .shared import check_axes, mask_or_bias, mean_of_values_where_empty

__all__ = ["scaled_dot_product_attention"]

_AXES = {4: "(B, H, L, D)"}


def scaled_dot_product_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    mask: str | Array | None = None,
    sinks: Array | None = None,
    force_fused: bool = False,
    stream: Any = None,
) -> Array:
    """``softmax(scale * q @ k^T) @ v``; ``scale`` has no default.

    Args:
        q: ``(B, Hq, Lq, D)``.
        k: ``(B, Hkv, Lk, D)``.
        v: ``(B, Hkv, Lk, Dv)``.
        scale: the factor of the scores, typically ``D**-0.5``.
        mask: ``"causal"``, where the last query sees the last key; booleans that broadcast to ``(B, Hq, Lq, Lk)``,
            ``True`` = may attend; or numbers that do, which are added.
        sinks: ``(Hq,)``, a logit a head in the denominator only.
        force_fused: refused, since it names a means that is not here.
        stream: refused, since arrays are computed where they are.

    A row that sees no key is the mean of all values; with sinks it is 0.

    >>> import numpy as np
    >>> from attention_np.dialects.mlx import scaled_dot_product_attention
    >>> x = np.eye(2)[None, None]
    >>> scaled_dot_product_attention(x, x, x, scale=0.0, mask="causal")[0, 0]
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    if force_fused or stream is not None:
        raise NotImplementedError("`force_fused` and `stream` choose among MLX's own means: leave them out")
    check_axes(_AXES, q=q, k=k, v=v)
    if scale is None:
        raise TypeError("`scale` has no default here: D**-0.5 is what others take")
    if isinstance(mask, str) and mask != "causal":
        raise ValueError(f'`mask` must be "causal", an array or None; got {mask!r}')
    seen = {"mask": masks.causal_lower_right()} if isinstance(mask, str) else mask_or_bias("mask", mask)
    if mask is None or sinks is not None:
        return dot_product_attention(q, k, v, scale=scale, sinks=sinks, **seen)
    out, lse, _ = dot_product_attention(q, k, v, scale=scale, return_lse=True, **seen)
    return mean_of_values_where_empty(out, lse, v)
