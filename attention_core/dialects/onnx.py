"""ONNX's ``Attention`` operator, as https://onnx.ai/onnx/operators/onnx__Attention.html says, of opsets 23 to 25."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from .. import masks
from ..arrays import Array, cast, device_of, dtype_name
from ..attention import attention_scores, dot_product_attention
from ..dense import Stage
from ..masks import Mask
from ..pairs import as_index
from .shared import all_of, check_axes, mask_or_bias, unbounded

__all__ = ["Attention", "AttentionOutputs"]

_AXES = {3: "(B, L, H * D)", 4: "(B, H, L, D)"}
_STAGES: dict[int, Stage] = {0: "scaled", 1: "capped", 2: "masked"}
_FLOAT, _FLOAT16, _DOUBLE, _BFLOAT16 = 1, 10, 11, 16


class AttentionOutputs(NamedTuple):
    """The operator's outputs; ``None`` stands for those that were not asked for.

    >>> import numpy as np
    >>> from attention_np.dialects.onnx import Attention
    >>> x = np.zeros((1, 2, 3, 4))
    >>> Attention(x, x, x, outputs=1).qk_matmul_output is None
    True
    """

    Y: Array
    present_key: Array | None = None
    present_value: Array | None = None
    qk_matmul_output: Array | None = None


def Attention(
    Q: Array,
    K: Array,
    V: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    opset: int = 25,
    outputs: int = 4,
) -> AttentionOutputs:
    """``softmax(softcap(scale * Q @ K^T) + bias) @ V``, with a cache inside or outside of the operator.

    Args:
        Q: ``(B, Hq, Lq, D)`` or ``(B, Lq, Hq * D)``.
        K: ``(B, Hkv, Lk, D)`` or ``(B, Lk, Hkv * D)``.
        V: ``(B, Hkv, Lk, Dv)`` or ``(B, Lk, Hkv * Dv)``.
        attn_mask: booleans, ``True`` = takes part, or numbers, which are added; broadcasts to ``(B, Hq, Lq, total)``.
            From opset 24 its last axis may be shorter: it is padded with what hides a key.
        past_key: ``(B, Hkv, past, D)``, goes before ``K``; ``total = past + Lk``. With ``past_value``.
        past_value: ``(B, Hkv, past, Dv)``, goes before ``V``.
        nonpad_kv_seqlen: integers ``(B,)``, from opset 24, without ``past_key``: keys from there on are invisible.
        is_causal: query ``i`` sees key ``j`` where ``j <= i + offset``; ``offset`` is ``past``, or
            ``nonpad_kv_seqlen - Lq``, or 0.
        kv_num_heads: ``Hkv``, with three axes only.
        left_window_size: positions before the query's own, ``i + offset``; -1 for all. From opset 25.
        q_num_heads: ``Hq``, with three axes only.
        qk_matmul_output_mode: what the last output is: 0 scaled scores, 1 after the soft cap, 2 after mask and bias,
            3 weights.
        right_window_size: positions after the query's own; -1 for all. From opset 25.
        scale: by default ``1/sqrt(D)``.
        softcap: 0 for none.
        softmax_precision: 1, 10, 11 or 16. What is computed here is at least float32, and float64 for float64 inputs;
            11 (double) with narrower inputs is refused.
        opset: refuse what that opset does not have.
        outputs: how many of the four outputs the node names; the last one costs ``Lq * total`` numbers a head.

    A row that sees no key is 0, also in the output of mode 3.

    >>> import numpy as np
    >>> from attention_np.dialects.onnx import Attention
    >>> x = np.eye(2)[None, None]
    >>> Attention(x, x, x, past_key=x, past_value=x, is_causal=1, scale=0.0, qk_matmul_output_mode=3)[3][0, 0].round(2)
    array([[0.33, 0.33, 0.33, 0.  ],
           [0.25, 0.25, 0.25, 0.25]])
    """
    xp = check_axes(_AXES, Q=Q, K=K, V=V)
    _check_opset(opset, nonpad_kv_seqlen, left_window_size, right_window_size)
    _check_modes(qk_matmul_output_mode, softmax_precision, Q, V)
    joined = Q.ndim == 3
    q, k, v = _with_heads(xp, Q, K, V, q_num_heads, kv_num_heads)
    past, k, v = _with_past(xp, k, v, past_key, past_value, nonpad_kv_seqlen)
    seen = _whole(xp, attn_mask, k.shape[2], opset)
    call: dict[str, Any] = {
        "mask": all_of(
            seen.pop("mask", None),
            masks.causal() if is_causal else None,
            _window(left_window_size, right_window_size),
            None if nonpad_kv_seqlen is None else masks.key_lengths(nonpad_kv_seqlen),
        ),
        "query_positions": _positions(xp, past, nonpad_kv_seqlen, q),
        "scale": scale,
        "softcap": None if softcap == 0 else softcap,
        **seen,
    }
    asked = outputs > 3
    weights = asked and qk_matmul_output_mode == 3
    out, _, scores = dot_product_attention(q, k, v, **call, return_lse=True, return_weights=weights)
    if asked and not weights:
        scores = attention_scores(q, k, **call, stage=_STAGES[qk_matmul_output_mode])
    if joined:
        out = xp.permute_dims(out, (0, 2, 1, 3))
        out = xp.reshape(out, (*out.shape[:2], -1))
    scores = cast(xp, scores, Q.dtype) if asked else None
    return AttentionOutputs(cast(xp, out, Q.dtype), k if outputs > 1 else None, v if outputs > 2 else None, scores)


def _window(left: int, right: int) -> Mask | None:
    return None if left == right == -1 else masks.sliding_window(unbounded(left), unbounded(right))


def _check_opset(opset: int, lengths: Any, *windows: int) -> None:
    if opset not in (23, 24, 25):
        raise ValueError(f"`opset` must be 23, 24 or 25, where Attention last changed; got {opset}")
    if opset < 24 and lengths is not None:
        raise ValueError(f"`nonpad_kv_seqlen` came with opset 24; this call is of opset {opset}")
    if opset < 25 and any(size != -1 for size in windows):
        raise ValueError(
            f"`left_window_size` and `right_window_size` came with opset 25; this call is of opset {opset}"
        )


def _check_modes(output_mode: int, precision: int | None, Q: Array, V: Array) -> None:
    if output_mode not in (*_STAGES, 3):
        raise ValueError(f"`qk_matmul_output_mode` must be 0, 1, 2 or 3; got {output_mode!r}")
    if precision not in (None, _FLOAT, _FLOAT16, _DOUBLE, _BFLOAT16):
        raise ValueError(f"`softmax_precision` must be 1, 10, 11 or 16; got {precision!r}")
    if precision == _DOUBLE and "float64" not in (dtype_name(Q.dtype), dtype_name(V.dtype)):
        raise NotImplementedError("`softmax_precision` 11 is double, which needs inputs of float64: cast them")


def _with_heads(
    xp: ModuleType, Q: Array, K: Array, V: Array, q_heads: int | None, kv_heads: int | None
) -> tuple[Array, ...]:
    """Return the three as ``(B, H, L, D)``."""
    if Q.ndim == 4:
        if q_heads is not None or kv_heads is not None:
            raise ValueError("`q_num_heads` and `kv_num_heads` are for inputs of three axes; these have four")
        return Q, K, V
    if q_heads is None or kv_heads is None:
        raise ValueError("inputs of three axes, (B, L, H * D), need `q_num_heads` and `kv_num_heads`")
    return tuple(
        _split(xp, name, x, heads) for name, x, heads in (("Q", Q, q_heads), ("K", K, kv_heads), ("V", V, kv_heads))
    )


def _split(xp: ModuleType, name: str, x: Array, heads: int) -> Array:
    items, length, depth = x.shape
    if heads < 1 or depth % heads:
        raise ValueError(f"`{name}` has a last axis of {depth}, which its {heads} heads must divide")
    return xp.permute_dims(xp.reshape(x, (items, length, heads, depth // heads)), (0, 2, 1, 3))


def _with_past(
    xp: ModuleType, k: Array, v: Array, past_key: Array | None, past_value: Array | None, lengths: Any
) -> tuple[int, Array, Array]:
    """Return the length of the past, and keys and values with it."""
    if (past_key is None) != (past_value is None):
        raise ValueError("`past_key` and `past_value` must be given together")
    if past_key is None or past_value is None:
        return 0, k, v
    if lengths is not None:
        raise ValueError("`nonpad_kv_seqlen` is for a cache outside of the operator: not with `past_key`")
    return past_key.shape[2], xp.concat([past_key, k], axis=2), xp.concat([past_value, v], axis=2)


def _whole(xp: ModuleType, attn_mask: Any, total: int, opset: int) -> dict[str, Any]:
    """Return the core's mask or bias, padded to all keys."""
    seen = mask_or_bias("attn_mask", attn_mask)
    if not seen or opset < 24 or attn_mask.ndim == 0 or attn_mask.shape[-1] >= total:
        return seen
    shape = (*attn_mask.shape[:-1], total - attn_mask.shape[-1])
    hidden = False if "mask" in seen else -xp.inf
    more = xp.full(shape, hidden, dtype=attn_mask.dtype, device=device_of(xp, attn_mask))
    return mask_or_bias("attn_mask", xp.concat([attn_mask, more], axis=-1))


def _positions(xp: ModuleType, past: int, lengths: Any, q: Array) -> int | Array:
    if lengths is None:
        return past
    rows = xp.arange(q.shape[2], device=device_of(xp, q))
    return (as_index(xp, lengths) - q.shape[2])[:, None] + rows
