"""FlashAttention's published meaning, written from its docstrings alone: one query, one key at a time, in float64.

https://github.com/Dao-AILab/flash-attention/blob/main/flash_attn/flash_attn_interface.py
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["attend", "packed", "with_cache"]


def one_sequence(
    q: Any,
    k: Any,
    v: Any,
    slopes: Any = None,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Out ``(Lq, Hq, Dv)``, lse ``(Hq, Lq)`` and weights ``(Hq, Lq, Lk)`` of ``q (Lq, Hq, D)`` and its keys."""
    seqlen_q, nheads, headdim = q.shape
    seqlen_k, nheads_k, _ = k.shape
    scale = headdim**-0.5 if softmax_scale is None else softmax_scale
    out = np.zeros((seqlen_q, nheads, v.shape[2]))
    lse = np.full((nheads, seqlen_q), -np.inf)
    weights = np.zeros((nheads, seqlen_q, seqlen_k))
    for h in range(nheads):
        own = h * nheads_k // nheads
        for i in range(seqlen_q):
            scores = {}
            for j in range(seqlen_k):
                if hidden(i, j, seqlen_q, seqlen_k, causal, window_size):
                    continue
                score = scale * sum(q[i, h, d] * k[j, own, d] for d in range(headdim))
                if softcap > 0:
                    score = softcap * math.tanh(score / softcap)
                if slopes is not None:
                    score += -slopes[h] * abs(i + seqlen_k - seqlen_q - j)
                scores[j] = score
            if scores:
                total = sum(math.exp(score) for score in scores.values())
                lse[h, i] = math.log(total)
            for j, score in scores.items():
                weights[h, i, j] = math.exp(score) / total
                out[i, h] += weights[h, i, j] * v[j, own]
    return out, lse, weights


def hidden(i: int, j: int, seqlen_q: int, seqlen_k: int, causal: bool, window_size: tuple[int, int]) -> bool:
    """ "Query at position i will only attend to keys between [i + seqlen_k - seqlen_q - window_size[0], i + seqlen_k -
    seqlen_q + window_size[1]] inclusive"; causal is "aligned to the bottom right corner".
    """
    diagonal = i + seqlen_k - seqlen_q
    left, right = window_size
    return (causal and j > diagonal) or (left != -1 and j < diagonal - left) or (right != -1 and j > diagonal + right)


def slopes_of(alibi_slopes: Any, item: int) -> Any:
    """ "(nheads,) or (batch_size, nheads)"."""
    return alibi_slopes if alibi_slopes is None or np.ndim(alibi_slopes) == 1 else alibi_slopes[item]


def attend(q: Any, k: Any, v: Any, alibi_slopes: Any = None, **settings: Any) -> list[np.ndarray]:
    """Out, lse and weights of a batch."""
    each = (one_sequence(q[b], k[b], v[b], slopes_of(alibi_slopes, b), **settings) for b in range(len(q)))
    return [np.stack(parts) for parts in zip(*each, strict=True)]


def packed(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, alibi_slopes: Any = None, **settings: Any
) -> list[np.ndarray]:
    """Out, lse and weights of sequences that stand one after the other."""
    out = np.zeros((*q.shape[:2], v.shape[2]))
    lse = np.full((q.shape[1], len(q)), -np.inf)
    weights = np.zeros((q.shape[1], len(q), len(k)))
    for s in range(len(cu_seqlens_q) - 1):
        rows, columns = (slice(int(offsets[s]), int(offsets[s + 1])) for offsets in (cu_seqlens_q, cu_seqlens_k))
        found = one_sequence(q[rows], k[columns], v[columns], slopes_of(alibi_slopes, s), **settings)
        out[rows], lse[:, rows], weights[:, rows, columns] = found
    return [out, lse, weights]


def rotate(x: Any, cos: Any, sin: Any, position: int, interleaved: bool) -> np.ndarray:
    """A vector; "if True, rotary embedding will combine dimensions 0 & 1, 2 & 3, etc. If False, dimensions
    0 & rotary_dim / 2, 1 & rotary_dim / 2 + 1".
    """
    turned, half = np.array(x), cos.shape[1]
    for pair in range(half):
        a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
        c, s = cos[position, pair], sin[position, pair]
        turned[a], turned[b] = x[a] * c - x[b] * s, x[a] * s + x[b] * c
    return turned


def with_cache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    **settings: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Out, lse and the updated caches: a loop over the batch, written into copies of the caches."""
    k_cache, v_cache, q = k_cache.copy(), v_cache.copy(), q.copy()
    outs, lses = [], []
    local = settings.get("causal", False) or tuple(settings.get("window_size", (-1, -1))) != (-1, -1)
    for b in range(len(q)):
        places = places_of(b, k_cache, cache_batch_idx, block_table)
        length = len(places) if cache_seqlens is None else int(np.broadcast_to(cache_seqlens, len(q))[b])
        if rotary_cos is not None:
            for i, h in np.ndindex(q.shape[1:3]):
                at = length + (i if local else 0)
                q[b, i, h] = rotate(q[b, i, h], rotary_cos, rotary_sin, at, rotary_interleaved)
        for i in range(0 if k is None else k.shape[1]):
            for h in range(k.shape[2]):
                new = k[b, i, h]
                if rotary_cos is not None:
                    new = rotate(new, rotary_cos, rotary_sin, length + i, rotary_interleaved)
                k_cache[(*places[length + i], h)], v_cache[(*places[length + i], h)] = new, v[b, i, h]
        total = length + (0 if k is None else k.shape[1])
        valid = places[(0 if cache_leftpad is None else int(cache_leftpad[b])) : total]
        keys, values = (
            np.array([cache[place] for place in valid]).reshape(-1, *cache.shape[2:]) for cache in (k_cache, v_cache)
        )
        out, lse, _ = one_sequence(q[b], keys, values, slopes_of(alibi_slopes, b), **settings)
        outs.append(out)
        lses.append(lse)
    return np.stack(outs), np.stack(lses), k_cache, v_cache


def places_of(b: int, cache: Any, cache_batch_idx: Any, block_table: Any) -> list[tuple[int, int]]:
    """Where the keys of a batch item stand in the cache, in their order."""
    if block_table is not None:
        return [(int(page), row) for page in block_table[b] for row in range(cache.shape[1])]
    item = b if cache_batch_idx is None else int(cache_batch_idx[b])
    return [(item, row) for row in range(cache.shape[1])]
