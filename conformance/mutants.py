"""Attention in plain NumPy with one mistake at a time: what the vectors must find, and name.

`attend` is right for the switch "" and wrong by one line for every other; the names are those of the vectors' variants.
It is written for itself: it shares no code with the recording, nor with the attention that the vectors are for.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.cases import Case, in_memory
from conformance.mutant_checks import refuse
from conformance.mutant_dropout import factors
from conformance.mutant_gradients import Settled, back, first_heads, gradients
from conformance.mutant_packed import as_attention
from conformance.mutant_rotary import rotary
from conformance.mutant_rules import bias_of, sees
from conformance.rules import Pairs, pairs_of

Arrays = Mapping[str, np.ndarray]
ROUNDED: Mapping[str, Any] = {"dtype=float32": np.float32, "dtype=scores_in_float16": np.float16}


class Mutant:
    """The adapter of one mistake; the right one has the name ""."""

    version = "0"

    def __init__(self, name: str) -> None:
        self.name = name

    def supports(self, case: Case) -> str:
        """Say yes to attention and merging."""
        return "" if case.op in ("attention", "packed", "rotary", "merge") else "a mutant of attention alone"

    def compute(self, case: Case, dtype: str) -> dict[str, Any]:
        """Return what this wrong attention gives."""
        inputs = case.inputs_as(dtype)
        refuse(case, inputs, self.name)
        try:
            with np.errstate(all="ignore"):
                return self._answer(case, inputs, case.cotangents_as(dtype))
        except Exception:
            if self.name.startswith("check="):  # who does not look gives something
                return {"out": next(iter(inputs.values()))}
            raise

    def _answer(self, case: Case, inputs: Arrays, cotangents: Arrays) -> dict[str, Any]:
        if case.op == "merge":
            return merge(inputs, self.name)
        if case.op == "rotary":
            return rotary(case, inputs, cotangents, self.name)
        asked = as_attention(case, self.name) if case.op == "packed" else case
        return attend(asked, inputs, cotangents, self.name)


def attend(case: Case, inputs: Arrays, cotangents: Arrays, w: str) -> dict[str, np.ndarray]:
    """Return out, lse, weights and gradients of an attention case, wrong by `w`."""
    out_dtype = np.result_type(*(inputs[name].dtype for name in ("query", "key", "value")))
    s = settle(case, inputs, w)
    raw = np.swapaxes(s.key, -1, -2)
    scores, tanh = stages(s, s.query @ raw, w)
    lse, p, sink = softmax(s, scores, w)
    kept = p * s.keep
    if w == "dropout=renormalised":
        kept = p * (s.keep > 0) / np.maximum((p * (s.keep > 0)).sum(-1, keepdims=True), 1e-300)
    value = s.value if w == "masked=value_leaks" else np.nan_to_num(s.value, nan=0, posinf=0, neginf=0)
    out = kept @ value
    if w != "masked=value_leaks" and not np.isfinite(s.value).all():
        out = out + visible_poison(s)
    plain = inputs["query"].ndim == 2
    found = {
        "out": back(case, out, plain).astype(out_dtype),
        "lse": lse,
        "weights": kept if w == "weights=after_dropout" else p,
    }
    if plain:
        found |= {name: found[name][0] for name in ("lse", "weights")}
    return found | gradients(case, inputs, s, (p, sink, tanh, value), cotangents, w)


def settle(case: Case, inputs: Arrays, w: str) -> Settled:
    """Return the call with everything broadcast."""
    p = case.parameters
    wide = np.result_type(np.float32, *(inputs[n].dtype for n in ("query", "key", "value")))
    wide = np.dtype(ROUNDED.get(w, wide))
    inputs = {n: in_memory(x) if w == "memory=ignored" and n in case.memory else x for n, x in inputs.items()}
    q, k, v = (first_heads(case, inputs[n]).astype(wide) for n in ("query", "key", "value"))
    q, k = (k, q) if w == "roles=query_key_swapped" and q.shape == k.shape else (q, k)
    heads, shared = q.shape[-3], k.shape[-3]
    order = np.arange(heads) // (heads // shared if shared else 1)
    order = {"heads=tiled": np.arange(heads) % max(shared, 1), "heads=first": 0 * order}.get(w, order)
    k = k[..., ::-1, :, :] if w == "heads=key_reversed" else k
    v = v[..., ::-1, :, :] if w == "heads=value_reversed" else v
    k, v = k[..., order, :, :], v[..., order, :, :]
    batch = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    shape = (*batch, heads, q.shape[-2], k.shape[-2])
    pairs = pairs_at(case, w)
    bias = bias_of(p["bias"], pairs, inputs, w, p["scale"]).astype(wide)
    seen = np.ones(shape, bool) if p["mask"] is None else np.broadcast_to(sees(p["mask"], pairs, w), shape)
    if w != "bias=inf_is_finite":
        seen = seen & (np.broadcast_to(bias, shape) != -np.inf)
    if w == "bias=large_is_masked":
        seen = seen & (np.broadcast_to(bias, shape) > -1000)
    if w == "mask=causal" and p["mask"] is None:
        seen = seen & np.tri(shape[-2], shape[-1], dtype=bool)
    seen = ~seen if w == "mask=inverted" and p["mask"] is not None else seen
    seen = np.ones(shape, bool) if w == "mask=none" else seen
    bias = np.broadcast_to(np.where(bias == -np.inf, 0, bias), shape)
    sink = None if p["sinks"] is None or w == "sink=none" else inputs[p["sinks"]].astype(wide)[:, None]
    sink = sink[::-1] if sink is not None and w == "sink=reversed_heads" else sink
    k = np.broadcast_to(k[:1], k.shape) if w == "batch=first_item" and k.ndim > 3 else k
    q, k, v = (np.broadcast_to(x, (*batch, *x.shape[-3:])) for x in (q, k, v))
    return Settled(q, k, v, seen, bias, sink, factors(p["dropout"], inputs, shape, w), scale_of(case, w), p["softcap"])


def pairs_at(case: Case, w: str) -> Pairs:
    """Return the positions, some of them ignored."""
    pairs, ignored = pairs_of(case), {"positions=ignored": "qk", "query_positions=ignored": "q"}.get(w, "")
    query = pairs.query_indices if "q" in ignored else pairs.query_positions
    query = query[..., :1, :] + pairs.query_indices if w == "query_positions=first_only" else query
    query = query[:1] if w == "query_positions=first_item" and query.ndim > 2 else query
    query = query + 1 if w == "query_positions=one_more" and case.parameters["query_positions"] != 0 else query
    key = pairs.key_indices[None, :] if "k" in ignored else pairs.key_positions
    return Pairs(query, key, pairs.query_indices, pairs.key_indices[None, :], pairs.inputs)


def scale_of(case: Case, w: str) -> float:
    """Return the scale."""
    scale, depth = float(case.parameters["scale"]), case.inputs["query"].shape[-1] or 1
    value_depth = case.inputs["value"].shape[-1] or 1
    default = depth**-0.5
    wrong = {"scale=1": 1.0, "scale=1/D": 1 / depth, "scale=default": default, "scale=absolute": abs(scale)}
    wrong |= {"scale=squared": scale**2, "out=mean_of_v": 0.0, "softmax=base_2": scale * math.log(2)}
    heads = first_heads(case, case.inputs["query"]).shape[-3]
    wrong |= {"scale=by_all_heads": (heads * depth) ** -0.5}
    wrong |= {"scale=by_value_depth": value_depth**-0.5 if scale == default else scale}
    return wrong.get(w, scale)


def stages(s: Settled, raw: np.ndarray, w: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores before masking, and the cap's tanh."""
    scores = s.scale * raw
    scores = s.cap * np.tanh(raw / s.cap) * s.scale if w == "cap=before_scale" and s.cap else scores
    if w == "cap=after_bias":
        scores = scores + s.bias
    if w == "cap=softsign" and s.cap is not None:
        return scores / (1 + np.abs(scores) / s.cap) + s.bias, np.zeros_like(scores)
    tanh = np.zeros_like(scores)
    if s.cap is not None and w not in ("cap=none", "cap=before_scale"):
        tanh = scores / s.cap if w == "cap=clipped" else np.tanh(scores / s.cap)
        tanh = np.clip(tanh, -1, 1)
        scores = tanh if w == "cap=not_multiplied" else s.cap * tanh
    return (scores if w == "cap=after_bias" else scores + s.bias), tanh


def softmax(s: Settled, scores: np.ndarray, w: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lse, weights and the sink's weight."""
    if w in ("softmax=none", "softmax=sigmoid"):
        p = np.where(s.seen, scores if w == "softmax=none" else 1 / (1 + np.exp(-scores)), 0)
        return p.sum(-1), p, p.sum(-1)
    if w == "out=mean_of_v":
        return scores.sum(-1), np.ones_like(scores) / max(scores.shape[-1], 1), scores.sum(-1)
    fill = {"masked=zero_fill": 0.0, "masked=minus_100": -100.0, "cap=after_mask": -(s.cap or np.inf)}.get(w, -np.inf)
    masked = scores + np.where(s.seen, 0, -np.inf) if w == "masked=key_leaks" else np.where(s.seen, scores, fill)
    sink = np.full(masked.shape[:-1], -np.inf) if s.sink is None else np.broadcast_to(s.sink, masked.shape[:-1])
    sink = s.scale * sink if w == "sink=scaled" else sink
    sink = s.cap * np.tanh(sink / s.cap) if w == "sink=capped" and s.cap else sink
    axis = {"softmax=over_queries": -2, "softmax=over_heads": -3}.get(w, -1)
    if axis != -1:
        top = np.max(masked, axis=axis, keepdims=True, initial=-1e300)
        return masked.sum(-1), np.nan_to_num(np.exp(masked - top) / np.exp(masked - top).sum(axis, keepdims=True)), sink
    top = np.maximum(np.max(masked, axis=-1, initial=-np.inf), sink)
    safe = np.where(np.isneginf(top), 0, top)
    powers = np.exp(masked - safe[..., None])
    extra = (
        np.exp(sink - safe)
        if w != "sink=one_after_shift" or s.sink is None
        else np.exp(np.max(masked, axis=-1, initial=-np.inf) - safe)
    )
    total = powers.sum(-1) + (0 if w in ("sink=lse_only", "sink=gate") else extra)
    p = np.where(np.isneginf(masked), 0, powers / np.where(total == 0, 1, total)[..., None])
    if w == "sink=gate" and s.sink is not None:
        p = p / (1 + np.exp(-sink))[..., None]
    if w == "masked=without_renormalising":
        free = np.exp(scores - np.max(scores, axis=-1, keepdims=True, initial=-1e300))
        p = np.where(
            s.seen,
            free / free.sum(-1, keepdims=True),
            0,
        )
    p = empty(s, p, masked, w)
    return (
        lse_of(s, (sink, top, safe, powers), w),
        p,
        np.where(total == 0, 0, extra / np.where(total == 0, 1, total)),
    )


def empty(s: Settled, p: np.ndarray, masked: np.ndarray, w: str) -> np.ndarray:
    """Fill the rows that see nothing."""
    dead = np.isneginf(masked).all(-1, keepdims=True) & np.any(~s.seen, axis=-1, keepdims=True)
    fill = {"empty=mean_of_value": 1 / max(p.shape[-1], 1), "empty=nan": np.nan, "empty=sum_of_value": 1.0}.get(w)
    return p if fill is None or s.sink is not None else np.where(dead, fill, p)


def lse_of(s: Settled, parts: tuple[np.ndarray, ...], w: str) -> np.ndarray:
    """Return the logarithm of the denominator."""
    sink, top, safe, powers = parts
    extra = 0 if w == "lse=without_sink" else np.exp(sink - safe)
    lse = safe + np.log(powers.sum(-1) + extra)
    if w == "lse=of_scaled_scores":
        raw = s.scale * (s.query @ np.swapaxes(s.key, -1, -2))
        lse = np.log(np.exp(raw - safe[..., None]).sum(-1)) + safe
    no_key = {"lse=empty_is_plus_inf": np.inf, "lse=empty_is_zero": 0.0}.get(w, -np.inf)
    lse = np.where(np.isneginf(top), no_key, lse)
    lse = lse - safe if w == "lse=maximum_forgotten" else lse
    return lse / math.log(2) if w == "lse=base_2" else lse


def visible_poison(s: Settled) -> np.ndarray:
    """Return NaN or infinity where a row sees one in value, else 0."""
    bad = np.where(np.isfinite(s.value), 0, s.value)
    return np.where(s.seen[..., None], bad[..., None, :, :], 0).sum(-2)


def merge(inputs: Arrays, w: str) -> dict[str, np.ndarray]:
    """Merge parts."""
    parts = range(len(inputs) // 2)
    outs = np.stack([inputs[f"outs.{n}"] for n in parts]).astype(np.float64)
    lses = np.stack([inputs[f"lses.{n}"] for n in parts]).astype(np.float64)
    lses = np.where(np.isneginf(lses), np.inf, lses) if w == "merge=empty_is_plus_inf" else lses
    top = np.where(np.isneginf(lses.max(0)), np.nan if w == "merge=empty_is_nan" else 0, lses.max(0))
    powers = (2.0 if w == "merge=base_2" else math.e) ** (lses - top)
    outs = outs if w == "merge=empty_is_nan" else np.where(np.isneginf(lses)[..., None], 0, outs)
    total = powers.sum(0)
    weights = powers / np.where(total == 0, 1, total)
    out = {"merge=mean": outs.mean(0), "merge=sum": outs.sum(0), "merge=last": outs[-1]}.get(
        w, (weights[..., None] * outs).sum(0)
    )
    lse = {"merge=lses_added": lses.sum(0), "merge=lse_is_maximum": lses.max(0)}.get(w, top + np.log(total))
    return {"out": out, "lse": lse}
