"""``flash_attn_func`` and ``flash_attn_varlen_func``."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ... import biases
from ...arrays import Array, as_array
from ...attention import dot_product_attention
from ...biases import Bias
from ...packed import packed_attention, segment_ids
from ...pairs import as_index
from ..shared import check_axes
from .rules import alibi, alibi_of_rows, cap, checked_slopes, dropout_to, window

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]


def flash_attn_func(
    q: Array,
    k: Array,
    v: Array,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Array | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    seed: int | Array | None = None,
) -> Any:
    """``dropout(softmax(softcap(scale * q @ k^T) + alibi)) @ v``, all aligned at the lower right.

    Args:
        q: ``(B, Lq, Hq, D)``.
        k: ``(B, Lk, Hkv, D)``.
        v: ``(B, Lk, Hkv, Dv)``.
        dropout_p: a rate; above 0 it needs ``seed``.
        softmax_scale: by default ``1/sqrt(D)``.
        causal: query ``i`` sees key ``j`` where ``j <= i + Lk - Lq``.
        window_size: query ``i`` sees ``i + Lk - Lq - left`` to ``i + Lk - Lq + right``; -1 for no bound.
        softcap: above 0, ``softcap * tanh(s / softcap)`` before bias and mask.
        alibi_slopes: ``(Hq,)`` or ``(B, Hq)``: ``-slope * |i + Lk - Lq - j|`` is added.
        deterministic: accepted; everything here is.
        return_attn_probs: return ``(out, lse, weights)`` with lse ``(B, Hq, Lq)`` and weights ``(B, Hq, Lq, Lk)``.
        seed: what dropout depends on, in place of PyTorch's generator: see :func:`attention_core.dropout`.

    A row that sees no key is 0, its lse is ``-inf``.

    >>> import numpy as np
    >>> from attention_np.dialects.flash_attention import flash_attn_func
    >>> x = np.eye(2)[None, :, None]
    >>> flash_attn_func(x[:, 1:], x, x, causal=True, softmax_scale=0.0)[0, :, 0]
    array([[0.5, 0.5]])
    """
    xp = check_axes({4: "(B, L, H, D)"}, q=q, k=k, v=v)
    result = dot_product_attention(
        q,
        k,
        v,
        mask=window(causal, window_size),
        bias=alibi(xp, alibi_slopes, q.shape[0], q.shape[2]),
        scale=softmax_scale,
        softcap=cap(softcap),
        dropout=dropout_to(dropout_p, seed, return_attn_probs),
        query_positions=k.shape[1] - q.shape[1],
        layout="BLHD",
        return_lse=True,
        return_weights=return_attn_probs,
    )
    return tuple(result) if return_attn_probs else result.out


def flash_attn_varlen_func(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Array | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Array | None = None,
    *,
    seed: int | Array | None = None,
) -> Any:
    """:func:`flash_attn_func` of ``n`` sequences that stand one after the other.

    Args:
        q: ``(total_q, Hq, D)``.
        k: ``(total_k, Hkv, D)``.
        v: ``(total_k, Hkv, Dv)``.
        cu_seqlens_q: integers ``(n + 1,)``: sequence ``s`` has the rows ``cu_seqlens_q[s]`` to the next.
        cu_seqlens_k: the same for keys.
        max_seqlen_q: accepted; the offsets say it.
        max_seqlen_k: accepted.
        dropout_p: a rate; above 0 it needs ``seed``.
        softmax_scale: by default ``1/sqrt(D)``.
        causal: aligned at the lower right of each sequence.
        window_size: ``(left, right)``; -1 for no bound.
        softcap: above 0, before bias and mask.
        alibi_slopes: ``(Hq,)`` or ``(n, Hq)``.
        deterministic: accepted; everything here is.
        return_attn_probs: return ``(out, lse, weights)``: lse ``(Hq, total_q)``, weights ``(Hq, total_q, total_k)``.
        block_table: refused: :func:`flash_attn_with_kvcache` reads paged caches.
        seed: what dropout depends on, in place of PyTorch's generator.

    >>> import numpy as np
    >>> from attention_np.dialects.flash_attention import flash_attn_varlen_func
    >>> x, offsets = np.arange(3.0)[:, None, None], np.array([0, 2, 3])
    >>> flash_attn_varlen_func(x, x, x, offsets, offsets, 2, 2, softmax_scale=0.0)[:, 0, 0]
    array([0.5, 0.5, 2. ])
    """
    if block_table is not None:
        raise NotImplementedError("`block_table` is for a paged cache, which flash_attn_with_kvcache reads")
    xp = check_axes({3: "(total, H, D)"}, q=q, k=k, v=v)
    ends, ends_q = (_offsets(xp, x) for x in (cu_seqlens_k, cu_seqlens_q))
    result = packed_attention(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        mask=window(causal, window_size),
        bias=_alibi_of_sequences(xp, alibi_slopes, cu_seqlens_k, q, k),
        scale=softmax_scale,
        softcap=cap(softcap),
        dropout=dropout_to(dropout_p, seed, return_attn_probs),
        # A key's position is its row, so that a bias can tell whose it is; only distances matter.
        query_positions=ends[1:] - (ends_q[1:] - ends_q[:-1]),
        key_positions=ends[:-1],
        return_lse=True,
        return_weights=return_attn_probs,
    )
    return tuple(result) if return_attn_probs else result.out


def _alibi_of_sequences(xp: ModuleType, slopes: Any, offsets: Array, q: Array, k: Array) -> Bias | None:
    slopes = checked_slopes(xp, slopes, offsets.shape[0] - 1, q.shape[1])
    if slopes is None or slopes.ndim == 1:
        return None if slopes is None else biases.alibi(slopes)
    sequences = xp.clip(segment_ids(offsets, k.shape[0]), 0, None)
    return alibi_of_rows(xp.take(slopes, sequences, axis=0))


def _offsets(xp: ModuleType, offsets: Array) -> Array:
    return as_index(xp, as_array(xp, offsets))
