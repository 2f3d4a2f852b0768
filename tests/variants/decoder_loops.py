"""Grouped-query attention with all its options, written out a pair at a time in float64, for one sequence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Spec:
    """The options, in plain values: what the layer is told, and what the loops do."""

    heads: int = 6
    kv_heads: int = 2
    base: float | None = 500.0
    dim: int | None = None
    interleaved: bool = False
    window: int | None = None
    softcap: float | None = None
    scale: float | None = None
    causal: bool = True
    eps: float = 1e-6
    offset: float = 0.0
    query_gate: bool = False


def turn(x: np.ndarray, position: int, spec: Spec) -> np.ndarray:
    """Rotate one head's vector as complex numbers."""
    if spec.base is None:
        return x
    dim, out = spec.dim or len(x), x.copy()
    for i in range(dim // 2):
        one, two = (2 * i, 2 * i + 1) if spec.interleaved else (i, i + dim // 2)
        z = complex(x[one], x[two]) * np.exp(1j * position * spec.base ** (-2 * i / dim))
        out[one], out[two] = z.real, z.imag
    return out


def linear(x: np.ndarray, w: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return np.asarray(w[f"{name}.weight"], float) @ x + np.asarray(w.get(f"{name}.bias", 0.0), float)


def norm(x: np.ndarray, weight: np.ndarray, spec: Spec) -> np.ndarray:
    return x / math.sqrt((x**2).mean() + spec.eps) * (spec.offset + np.asarray(weight, float))


def heads_of(x: np.ndarray, w: Mapping[str, np.ndarray], name: str, count: int, spec: Spec) -> list[np.ndarray]:
    """One token's vectors a head, normalised where there are weights for it: the whole at once if they are as long."""
    heads = np.split(x, count)
    weight = w.get(f"{name}.weight")
    if weight is None:
        return heads
    if len(weight) == len(x):
        return np.split(norm(x, weight, spec), count)
    return [norm(head, weight, spec) for head in heads]


def seen(query: int, key: int, spec: Spec) -> bool:
    if spec.causal and key > query:
        return False
    return spec.window is None or abs(query - key) < spec.window


def grouped(
    x: np.ndarray, w: Mapping[str, np.ndarray], spec: Spec, positions: Any = None, bias: Any = None
) -> np.ndarray:
    """Return `(L, d_out)` of one sequence `x (L, d_in)`; `bias(head, query, key)` is added to the scores."""
    x = np.asarray(x, float)
    places = list(range(len(x))) if positions is None else [int(p) for p in positions]
    keys, values, queries, gates = [], [], [], []
    for token, place in zip(x, places, strict=True):
        keys.append(
            [turn(k, place, spec) for k in heads_of(linear(token, w, "k_proj"), w, "k_norm", spec.kv_heads, spec)]
        )
        values.append(np.split(linear(token, w, "v_proj"), spec.kv_heads))
        query = linear(token, w, "q_proj")
        gate = linear(token, w, "gate_proj") if "gate_proj.weight" in w else None
        if spec.query_gate:
            both = query.reshape(spec.heads, 2, -1)
            query, gate = both[:, 0].ravel(), both[:, 1].ravel()
        queries.append([turn(q, place, spec) for q in heads_of(query, w, "q_norm", spec.heads, spec)])
        gates.append(gate)
    rows = []
    for i, place in enumerate(places):
        out = [one_row(h, i, queries, keys, values, places, w, spec, bias) for h in range(spec.heads)]
        if gates[i] is not None:
            shares = 1 / (1 + np.exp(-np.asarray(gates[i]).reshape(spec.heads, -1)))
            out = [o * share for o, share in zip(out, shares, strict=True)]
        rows.append(linear(np.concatenate(out), w, "o_proj"))
        assert place == places[i]
    return np.array(rows)


def one_row(
    h: int, i: int, queries: Any, keys: Any, values: Any, places: list[int], w: Any, spec: Spec, bias: Any
) -> np.ndarray:
    shared = h // (spec.heads // spec.kv_heads)
    scale = 1 / math.sqrt(len(queries[i][h])) if spec.scale is None else spec.scale
    weights, total = {}, math.exp(w["sinks"][h]) if "sinks" in w else 0.0
    for j, place in enumerate(places):
        if not seen(places[i], place, spec):
            continue
        score = scale * float(queries[i][h] @ keys[j][shared])
        if spec.softcap is not None:
            score = spec.softcap * math.tanh(score / spec.softcap)
        weights[j] = math.exp(score + (bias(h, places[i], place) if bias else 0.0))
    total += sum(weights.values())
    return sum((weight / total * values[j][shared] for j, weight in weights.items()), 0 * values[0][0])
