"""The formula of attention by loops over Python numbers, in float64: shares no code with the package.

Arrays are ``(batch, head, length, depth)``, with one batch axis that broadcasts; ``visible``, ``bias`` and ``keep``
broadcast to ``(batch, heads, queries, keys)``. Gradients are central finite differences.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Array = np.ndarray
INF = math.inf


class Answer(NamedTuple):
    out: Array
    lse: Array
    weights: Array


def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    visible: Array | bool = True,
    bias: Array | float = 0.0,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    keep: Array | bool = True,
    rate: float = 0.0,
) -> Answer:
    """Attention, a row at a time."""
    batch = max((x.shape[0] for x in (query, key, value)), key=lambda size: (size != 1, size))
    query, key, value = (np.broadcast_to(x, (batch, *x.shape[1:])) for x in (query, key, value))
    _, heads, queries, depth = query.shape
    kv_heads, keys, value_depth = value.shape[1:]
    shape = (batch, heads, queries, keys)
    visible, bias, keep = (np.broadcast_to(x, shape) for x in (visible, bias, keep))
    out, lse, weights = np.zeros((*shape[:3], value_depth)), np.zeros(shape[:3]), np.zeros(shape)
    scale = (1 / math.sqrt(depth) if depth else 1.0) if scale is None else scale
    for b, h, i in np.ndindex(*shape[:3]):
        g = h // (heads // kv_heads)
        scores = [
            score(query[b, h, i], key[b, g, j], bias[b, h, i, j], scale, softcap) if visible[b, h, i, j] else -INF
            for j in range(keys)
        ]
        weights[b, h, i], lse[b, h, i] = softmax(scores, -INF if sinks is None else float(sinks[h]))
        for j in range(keys):
            if weights[b, h, i, j] > 0 and keep[b, h, i, j]:
                out[b, h, i] += weights[b, h, i, j] / (1 - rate) * value[b, g, j]
    return Answer(out, lse, weights)


def score(query: Array, key: Array, bias: float, scale: float, softcap: float | None) -> float:
    """Scale, then cap, then bias."""
    s = scale * math.fsum(float(a) * float(b) for a, b in zip(query, key, strict=True))
    if softcap is not None:
        s = softcap * math.tanh(s / softcap)
    return s + float(bias)


def softmax(scores: list[float], sink: float) -> tuple[list[float], float]:
    """The weights of the scores and the logarithm of their denominator; all masked gives zeros and the sink."""
    largest = max([sink, *scores])
    if largest == -INF:
        return [0.0] * len(scores), -INF
    exponentials = [math.exp(s - largest) for s in scores]
    total = math.fsum([math.exp(sink - largest), *exponentials])
    return [e / total for e in exponentials], largest + math.log(total)


def gradient(f: Callable[[Array], float], x: Array, step: float = 1e-5) -> Array:
    """The gradient of ``f`` at ``x``, an element at a time, by central differences of fourth order."""
    slopes = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        unit = np.zeros(x.shape)
        unit[index] = 1.0
        slopes[index] = slope(lambda t, unit=unit: f(x + t * unit), step)
    return slopes


def slope(f: Callable[[float], float], step: float = 1e-3) -> float:
    """The derivative of ``f`` at 0 by central differences of fourth order."""
    return (8 * (f(step) - f(-step)) - (f(2 * step) - f(-2 * step))) / (12 * step)


def visible_by(rule: Callable[[int, int, int, int], bool], shape: tuple[int, int, int, int]) -> Array:
    """The booleans of a rule on the indices ``(batch, head, query, key)``."""
    seen = np.zeros(shape, dtype=bool)
    for index in np.ndindex(*shape):
        seen[index] = rule(*index)
    return seen


def alibi(slopes: Array, query_positions: Array, key_positions: Array) -> Array:
    """``-slope_h * |query position - key position|``, ``(batch, heads, queries, keys)``."""
    distance = np.abs(query_positions[:, None, :, None] - key_positions[:, None, None, :])
    return -slopes[None, :, None, None] * distance


def relative(table: Array, query_positions: Array, key_positions: Array, bidirectional: bool, limit: int) -> Array:
    """T5's bias: ``table[bucket(key position - query position), head]``, the buckets by Raffel et al. 2020."""
    distance = key_positions[:, None, None, :] - query_positions[:, None, :, None]
    buckets = np.vectorize(lambda d: bucket(int(d), len(table), bidirectional, limit), otypes=[int])(distance)
    return np.moveaxis(table[buckets[:, 0]], -1, 1)


def bucket(distance: int, buckets: int, bidirectional: bool, limit: int) -> int:
    """Half of a side's buckets hold one distance each, the others grow as its logarithm, to ``limit``."""
    side = buckets // 2 if bidirectional else buckets
    first = side if bidirectional and distance > 0 else 0
    away = abs(distance) if bidirectional else max(-distance, 0)
    exact = side // 2
    if away < exact:
        return first + away
    grown = exact + int(math.log(away / exact) / math.log(limit / exact) * (side - exact) + 1e-9)
    return first + min(grown, side - 1)
