"""PyTorch's calls by their documentation.

https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .. import masks
from ..arrays import Array, array_namespace, matmul
from ..attention import dot_product_attention
from .shared import all_of, dropout_of, mask_or_bias

__all__ = ["multi_head_attention_forward", "scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    seed: int | Array | None = None,
) -> Array:
    """``dropout(softmax(scale * query @ key^T + bias)) @ value``.

    Args:
        query: ``(..., Hq, Lq, D)``.
        key: ``(..., Hkv, Lk, D)``; ``Hkv`` is ``Hq``, or divides it with ``enable_gqa``.
        value: ``(..., Hkv, Lk, Dv)``.
        attn_mask: booleans, ``True`` = takes part, or numbers, which are added; broadcasts to ``(..., Hq, Lq, Lk)``. Or
            what ``causal_upper_left`` and ``causal_lower_right`` of ``torch.nn.attention.bias`` make.
        dropout_p: applied whenever it is above 0.
        is_causal: the upper-left triangle, also for ``Lq != Lk``; beside ``attn_mask`` it is a ``ValueError``.
        scale: by default ``1/sqrt(D)``.
        enable_gqa: let ``Hq / Hkv`` query heads share a key head.
        seed: what dropout depends on, in place of PyTorch's generator: see :func:`attention_core.dropout`.

    >>> import numpy as np
    >>> from attention_np.dialects.torch import scaled_dot_product_attention
    >>> x = np.eye(2)
    >>> scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.0)
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    if attn_mask is not None and is_causal:
        raise ValueError("`attn_mask` and `is_causal` exclude each other: put the triangle into `attn_mask`")
    array_namespace(("query", query), ("key", key))
    heads = [x.shape[-3] if x.ndim > 2 else 1 for x in (query, key)]
    if not enable_gqa and heads[1] not in (1, heads[0]):
        raise ValueError(f"`key` has {heads[1]} heads, but `query` has {heads[0]}: pass enable_gqa=True to share them")
    seen = {"mask": masks.causal()} if is_causal else _seen(attn_mask, (query.shape[-2], key.shape[-2]))
    return dot_product_attention(query, key, value, scale=scale, dropout=dropout_of(dropout_p, seed), **seen)


def _seen(attn_mask: Any, lengths: tuple[int, int]) -> dict[str, Any]:
    """Return the core's mask or bias; the numbers of a ``CausalBias`` mean nothing, only its variant does."""
    variant = getattr(getattr(attn_mask, "variant", None), "name", None)
    if variant is None:
        return mask_or_bias("attn_mask", attn_mask)
    made_for = (attn_mask.seq_len_q, attn_mask.seq_len_kv)
    if made_for != lengths:
        raise ValueError(f"`attn_mask` is a CausalBias of lengths {made_for}, but those of the call are {lengths}")
    return {"mask": masks.causal_lower_right() if variant == "LOWER_RIGHT" else masks.causal()}


def multi_head_attention_forward(
    query: Array,
    key: Array,
    value: Array,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Array | None,
    in_proj_bias: Array | None,
    bias_k: Array | None,
    bias_v: Array | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Array,
    out_proj_bias: Array | None,
    training: bool = True,
    key_padding_mask: Array | None = None,
    need_weights: bool = True,
    attn_mask: Array | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Array | None = None,
    k_proj_weight: Array | None = None,
    v_proj_weight: Array | None = None,
    static_k: Array | None = None,
    static_v: Array | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    seed: int | Array | None = None,
) -> tuple[Array, Array | None]:
    """What ``torch.nn.MultiheadAttention`` computes; its boolean masks say ``True`` = may *not* attend.

    Args:
        query: ``(Lq, E)`` or ``(Lq, N, E)``; ``E`` must be ``embed_dim_to_check`` and divisible by ``num_heads``.
        key: ``(Lk, Ek)`` or ``(Lk, N, Ek)``.
        value: ``(Lk, Ev)`` or ``(Lk, N, Ev)``.
        embed_dim_to_check: ``E``.
        num_heads: ``H``.
        in_proj_weight: ``(3 E, E)``, those of query, key and value one below the other.
        in_proj_bias: ``(3 E,)``, also with separate weights.
        bias_k: ``(1, 1, E)``, one more key for all, after the projection; with ``bias_v``.
        bias_v: ``(1, 1, E)``, its value.
        add_zero_attn: append a key and a value of zeros.
        dropout_p: applied in training only.
        out_proj_weight: ``(E, E)``.
        out_proj_bias: ``(E,)``.
        training: whether there is dropout.
        key_padding_mask: ``(N, Lk)`` or ``(Lk,)``: booleans, ``True`` = ignore that key, or numbers, which are added.
        need_weights: return the weights too, those before dropout.
        attn_mask: ``(Lq, Lk)`` or ``(N * H, Lq, Lk)``: booleans, ``True`` = may not attend, or numbers to add.
        use_separate_proj_weight: take the three weights instead of ``in_proj_weight``.
        q_proj_weight: ``(E, E)``.
        k_proj_weight: ``(E, Ek)``.
        v_proj_weight: ``(E, Ev)``.
        static_k: ``(N * H, Lk, E / H)`` in place of the projected keys.
        static_v: ``(N * H, Lk, E / H)`` in place of the projected values.
        average_attn_weights: return the mean of the weights over heads.
        is_causal: a hint that ``attn_mask``, which must be given, is causal; nothing depends on it here.
        seed: what dropout depends on, in place of PyTorch's generator.

    Returns:
        ``(Lq, N, E)``, or ``(Lq, E)``, and the weights ``(N, Lq, Lk)``, ``(N, H, Lq, Lk)`` or without ``N``, or
        ``None``. A row that sees no key has weights 0, where PyTorch has NaN with ``need_weights`` and 0 without.

    >>> import numpy as np
    >>> from attention_np.dialects.torch import multi_head_attention_forward
    >>> x, eye = np.eye(2), np.eye(2)
    >>> hidden = np.array([[False, True], [False, False]])
    >>> weights = np.concatenate([eye, eye, eye])
    >>> multi_head_attention_forward(
    ...     x, x, x, 2, 1, weights, None, None, None, False, 0.0, eye, None, attn_mask=hidden
    ... )[1].round(2)
    array([[1.  , 0.  ],
           [0.33, 0.67]])
    """
    xp = array_namespace(("query", query), ("key", key), ("value", value))
    _check_embedding(query, embed_dim_to_check, num_heads)
    if is_causal and attn_mask is None:
        raise ValueError("`is_causal` is a hint about `attn_mask`, which must be given with it")
    batched = query.ndim == 3
    lifted = [x if batched else x[:, None, :] for x in (query, key, value)]
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    weights = _thirds("in_proj_weight", in_proj_weight) if separate is None else separate
    offsets = (None, None, None) if in_proj_bias is None else _thirds("in_proj_bias", in_proj_bias)
    projected = (_linear(xp, x, w, b) for x, w, b in zip(lifted, weights, offsets, strict=True))
    q, k, v = (_split(xp, x, num_heads) for x in projected)
    k, v = (_static(xp, x, given, num_heads) for x, given in ((k, static_k), (v, static_v)))
    k, v = _extended(xp, k, v, bias_k, bias_v, add_zero_attn)
    out, _, attn_weights = dot_product_attention(
        q,
        k,
        v,
        **_masks(xp, attn_mask, key_padding_mask, q, k),
        dropout=dropout_of(dropout_p if training else 0.0, seed),
        return_lse=True,
        return_weights=need_weights,
    )
    joined = xp.reshape(xp.permute_dims(out, (2, 0, 1, 3)), lifted[0].shape)
    out = _linear(xp, joined, out_proj_weight, out_proj_bias)
    if need_weights and average_attn_weights:
        attn_weights = xp.mean(attn_weights, axis=1)
    if batched:
        return out, attn_weights
    return out[:, 0, :], attn_weights[0, ...] if need_weights else None


def _check_embedding(query: Array, embed_dim: int, heads: int) -> None:
    if query.ndim not in (2, 3):
        raise ValueError(f"`query` must be (Lq, E) or (Lq, N, E); got shape {tuple(query.shape)}")
    if query.shape[-1] != embed_dim or embed_dim % heads:
        raise ValueError(
            f"`query` has depth {query.shape[-1]}; it must be `embed_dim_to_check`, {embed_dim}, "
            f"which `num_heads`, {heads}, must divide"
        )


def _thirds(name: str, x: Array | None) -> tuple[Array, ...]:
    if x is None:
        raise ValueError(f"`{name}` must be given, or use_separate_proj_weight=True and the three weights")
    third = x.shape[0] // 3
    return tuple(x[start * third : (start + 1) * third, ...] for start in range(3))


def _linear(xp: ModuleType, x: Array, weight: Array | None, offset: Array | None) -> Array:
    if weight is None:
        raise ValueError("use_separate_proj_weight=True needs `q_proj_weight`, `k_proj_weight` and `v_proj_weight`")
    y = matmul(xp, x, xp.matrix_transpose(weight))
    return y if offset is None else y + offset


def _split(xp: ModuleType, x: Array, heads: int) -> Array:
    """Take the heads of ``(L, N, H * D)`` apart: ``(N, H, L, D)``."""
    length, items, depth = x.shape
    return xp.permute_dims(xp.reshape(x, (length, items, heads, depth // heads)), (1, 2, 0, 3))


def _static(xp: ModuleType, projected: Array, given: Array | None, heads: int) -> Array:
    return projected if given is None else xp.reshape(given, (given.shape[0] // heads, heads, *given.shape[1:]))


def _extended(xp: ModuleType, k: Array, v: Array, bias_k: Any, bias_v: Any, zero: bool) -> tuple[Array, Array]:
    """Append the learned key and value, and those of zeros."""
    if (bias_k is None) != (bias_v is None):
        raise ValueError("`bias_k` and `bias_v` must be given together")
    if bias_k is not None:
        more = (xp.broadcast_to(_split(xp, b, k.shape[1]), (*k.shape[:2], 1, k.shape[3])) for b in (bias_k, bias_v))
        k, v = (xp.concat([x, b], axis=2) for x, b in zip((k, v), more, strict=True))
    if zero:
        k, v = (xp.concat([x, xp.zeros_like(x[:, :, :1, :])], axis=2) for x in (k, v))
    return k, v


def _masks(xp: ModuleType, attn_mask: Any, key_padding_mask: Any, q: Array, k: Array) -> dict[str, Any]:
    """Return the core's mask and bias: booleans inverted, numbers added, appended keys visible to all."""
    shapes = {"attn_mask": q.shape[:3], "key_padding_mask": (q.shape[0], 1, 1)}
    hidden, added = [], []
    for name, given in (("attn_mask", attn_mask), ("key_padding_mask", key_padding_mask)):
        if given is None:
            continue
        whole = given if name == "attn_mask" and given.ndim == 2 else xp.reshape(given, (*shapes[name], -1))
        more = xp.zeros((*whole.shape[:-1], k.shape[2] - whole.shape[-1]), dtype=whole.dtype)
        part = mask_or_bias(name, xp.concat([whole, more], axis=-1))
        hidden += [~part["mask"]] if "mask" in part else []
        added += [part["bias"]] if "bias" in part else []
    return {"mask": all_of(*hidden), "bias": sum(added[1:], added[0]) if added else None}
