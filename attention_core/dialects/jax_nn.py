"""``jax.nn.dot_product_attention`` by its documentation; where a row sees no key, by its finite fill: the mean of V.

https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .. import masks
from ..arrays import Array, as_array, cast, dtype_name, scalar_like
from ..attention import dot_product_attention as _attention
from ..masks import Mask
from .shared import all_of, check_axes, mean_of_values_where_empty

__all__ = ["dot_product_attention"]

_AXES = {3: "(L, H, D)", 4: "(B, L, H, D)"}
_FILL = -0.7 * 3.4028234663852886e38  # of a masked score, in float32
_IMPL = {"xla": "dense"}


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | None = None,
    key_value_seq_lengths: Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """``softmax(scale * query @ key^T + bias) @ value`` on arrays ``(B, L, H, D)`` or ``(L, H, D)``.

    Args:
        query: ``(B, Lq, Hq, D)`` or ``(Lq, Hq, D)``.
        key: ``(B, Lk, Hkv, D)`` or ``(Lk, Hkv, D)``.
        value: of the shape of ``key``.
        bias: numbers that broadcast to ``(B, Hq, Lq, Lk)``.
        mask: booleans that broadcast to the same, ``True`` = takes part.
        scale: by default ``1/sqrt(D)``.
        is_causal: the upper-left triangle, also for ``Lq != Lk``.
        query_seq_lengths: integers ``(B,)``: rows from there on are 0.
        key_value_seq_lengths: integers ``(B,)``: keys from there on are invisible.
        local_window_size: ``(left, right)`` positions beside a query's own, or one integer for both sides.
        implementation: ``None`` for the kernel that suits; ``"xla"`` for the definition, whose derivatives have
            derivatives; or another name that ``impl`` takes.
        return_residual: return ``(out, lse)``, lse ``(B, Lq, Hq)`` in the keys' dtype; it has a gradient.

    A row that sees no key is the mean of all values, with the residual ``-0.7 * float32's largest``.

    >>> import numpy as np
    >>> from attention_np.dialects.jax_nn import dot_product_attention
    >>> x = np.eye(2)[:, None, :]
    >>> dot_product_attention(x, x, x, mask=np.array([[True, False], [False, False]]))[:, 0]
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    xp = check_axes(_AXES, query=query, key=key, value=value)
    if value.shape != key.shape:
        raise ValueError(f"`value` has shape {tuple(value.shape)}; jax.nn takes that of `key`, {tuple(key.shape)}")
    batched = query.ndim == 4
    if not batched:
        query, key, value = (x[None, ...] for x in (query, key, value))
    bias, mask, rows, keys = (
        None if x is None else as_array(xp, x) for x in (bias, mask, query_seq_lengths, key_value_seq_lengths)
    )
    hiding = _hiding(mask, local_window_size, rows, keys)
    out, lse, _ = _attention(
        query,
        key,
        value,
        mask=all_of(hiding, masks.causal() if is_causal else None),
        bias=bias,
        scale=scale,
        layout="BLHD",
        impl="auto" if implementation is None else _IMPL.get(implementation, implementation),
        return_lse=True,
    )
    if hiding is not None or bias is not None:
        out = mean_of_values_where_empty(out, lse, value, "BLHD")
    if rows is not None:
        real = xp.arange(out.shape[1]) < rows[:, None]
        out = xp.where(real[:, :, None, None], out, scalar_like(xp, 0.0, out))
    residual = _residual(xp, lse, key) if return_residual else None
    if not batched:
        out, residual = out[0, ...], None if residual is None else residual[0, ...]
    return (out, residual) if return_residual else out


def _hiding(
    mask: Array | None, window: int | tuple[int, int] | None, rows: Array | None, keys: Array | None
) -> Mask | None:
    """Return what may hide all keys from a row, or ``None``."""
    left, right = (window, window) if isinstance(window, int) or window is None else window
    return all_of(
        None if mask is None else masks.dense(mask),
        None if window is None else masks.sliding_window(left, right),
        None if keys is None else masks.key_lengths(keys),
        None if rows is None else masks.query_lengths(rows),
    )


def _residual(xp: ModuleType, lse: Array, key: Array) -> Array:
    """Return lse as ``(B, Lq, Hq)`` in the keys' dtype; float16 has no number as low as the fill."""
    fill = -xp.inf if dtype_name(key.dtype) == "float16" else _FILL
    filled = xp.where(lse == -xp.inf, scalar_like(xp, fill, lse), lse)
    return cast(xp, xp.matrix_transpose(filled), key.dtype)
