"""Attention as a plain loop over Python floats, and masks as plain comparisons: it shares nothing with the packages.

What the tests of this folder expect is computed here, or written by hand; never by the code under test.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

INF = math.inf


class Plain(NamedTuple):
    """One call: ``out (..., Hq, Lq, Dv)``, ``lse (..., Hq, Lq)``, ``weights (..., Hq, Lq, Lk)``, in float64."""

    out: np.ndarray
    lse: np.ndarray
    weights: np.ndarray


def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Any = None,
) -> Plain:
    """Attention of ``(..., H, L, D)``, or of plain ``(L, D)``, one row at a time."""
    q, k, v = (np.asarray(x, dtype=float) for x in (query, key, value))
    if q.ndim == 2:
        one_head = attention(q[None], k[None], v[None], mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
        return Plain(*(x[0] for x in one_head))
    batch = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    q, k, v = (np.broadcast_to(x, (*batch, *x.shape[-3:])) for x in (q, k, v))
    shape = (*q.shape[:-1], k.shape[-2])
    seen = np.broadcast_to(np.asarray(True if mask is None else mask, dtype=bool), shape)
    added = np.broadcast_to(np.asarray(0.0 if bias is None else bias, dtype=float), shape)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    plain = Plain(np.zeros((*q.shape[:-1], v.shape[-1])), np.zeros(q.shape[:-1]), np.zeros(shape))
    for index in np.ndindex(q.shape[:-1]):
        *item, head, _ = index
        keys = (*item, head * k.shape[-3] // q.shape[-3])
        logits = [
            one_logit(q[index], k[keys][j], scale, softcap) + added[index][j] if seen[index][j] else -INF
            for j in range(k.shape[-2])
        ]
        plain.weights[index], plain.lse[index] = softmax(logits, None if sinks is None else sinks[head])
        for j, weight in enumerate(plain.weights[index]):
            if weight:
                plain.out[index] += weight * v[keys][j]
    return plain


def one_logit(query: np.ndarray, key: np.ndarray, scale: float, softcap: float | None) -> float:
    product = scale * sum(float(a) * float(b) for a, b in zip(query, key, strict=True))
    return product if softcap is None else softcap * math.tanh(product / softcap)


def softmax(logits: list[float], sink: float | None = None) -> tuple[list[float], float]:
    """Weights and log-sum-exp; a sink takes its share of the sum and gets no weight of its own."""
    everything = logits if sink is None else [*logits, float(sink)]
    largest = max(everything, default=-INF)
    if largest == -INF:
        return [0.0] * len(logits), -INF
    total = math.fsum(math.exp(x - largest) for x in everything)
    return [math.exp(x - largest) / total for x in logits], largest + math.log(total)


def merge(parts: Iterable[tuple[np.ndarray, float]]) -> tuple[np.ndarray, float]:
    """Merge ``(out, lse)`` of one row over disjoint keys."""
    parts = list(parts)
    shares, lse = softmax([part[1] for part in parts])
    return sum(share * np.asarray(out) for share, (out, _) in zip(shares, parts, strict=True) if share), lse


def window(queries: int, keys: int, left: float = INF, right: float = INF, start: int = 0) -> np.ndarray:
    """Booleans: which keys lie from ``left`` before to ``right`` after query ``start + i``."""
    return np.array([[-left <= j - (start + i) <= right for j in range(keys)] for i in range(queries)], dtype=bool)


def causal(queries: int, keys: int, start: int = 0) -> np.ndarray:
    return window(queries, keys, INF, 0, start)
