"""Rotary embedding of the mutants: NumPy, wrong by a switch. The frequencies of each scaling are those of its paper."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.cases import Case

Arrays = Mapping[str, np.ndarray]


def rotary(case: Case, inputs: Arrays, cotangents: Arrays, w: str) -> dict[str, np.ndarray]:
    """Return `out` and the gradient of `x`, wrong by `w`."""
    found = {"out": _rotated(case, inputs["x"], 1, w)}
    return found | ({"gradient.x": _rotated(case, cotangents["out"], -1, w)} if "out" in cotangents else {})


def _rotated(case: Case, x: np.ndarray, way: int, w: str) -> np.ndarray:
    p = case.parameters
    wide = np.result_type(x.dtype, np.float32)
    heads_first = np.swapaxes(x, -2, -3) if p["layout"] == "BLHD" and x.ndim > 2 else x
    angles, factor = _angles(p, heads_first.shape, w)
    dim = 2 * angles.shape[-1]
    low = x.shape[-1] - dim if w == "rotary=last_features" else 0
    part = heads_first[..., low : low + dim].astype(wide)
    neighbours = p["interleaved"] != (w == "rotary=other_style")
    first = np.arange(0, dim, 2) if neighbours else np.arange(dim // 2)
    second = first + (1 if neighbours else dim // 2)
    kind = np.float16 if w == "rotary=tables_in_float16" else wide
    turning = way * (-1 if w == "rotary=backwards" else 1) * angles
    cos, sin = ((factor * f(turning)).astype(kind).astype(wide) for f in (np.cos, np.sin))
    cos_other, sin_other = cos, sin
    if w == "rotary=pairwise_tables" and not neighbours:
        # The halves read the angles 0 0 1 1 ... in a row.
        both = np.repeat(np.arange(dim // 2), 2)
        cos_other, sin_other = cos[..., both[dim // 2 :]], sin[..., both[dim // 2 :]]
        cos, sin = cos[..., both[: dim // 2]], sin[..., both[: dim // 2]]
    a, b = part[..., first], part[..., second]
    turned = (a * cos - b * sin, b * cos_other + a * sin_other)
    out = heads_first.astype(wide)
    if w == "rotary=concatenated":
        first, second = np.arange(dim // 2), np.arange(dim // 2, dim)
    if w != "rotary=none":
        out[..., low + first], out[..., low + second] = turned
    out = out.astype(x.dtype)
    return np.swapaxes(out, -2, -3) if p["layout"] == "BLHD" and x.ndim > 2 else out


def _angles(p: Mapping[str, Any], shape: tuple[int, ...], w: str) -> tuple[np.ndarray, float]:
    rows, given = np.arange(shape[-2]), p["positions"]
    places = rows + given if isinstance(given, int) else np.asarray(given)
    if w == "rotary=positions_ignored":
        places = rows
    if places.ndim > 1:
        places = (places[:1] if w == "rotary=first_item" else places)[..., None, :]
    if w == "rotary=over_heads" and len(shape) > 2:
        places = np.arange(shape[-3])[:, None] + 0 * rows
    places = places + 1 if w == "rotary=one_later" else places
    f, factor = _frequencies(p, shape[-1], w)
    if w == "rotary=positions_in_bfloat16":
        import ml_dtypes

        places = places.astype(ml_dtypes.bfloat16).astype(np.float64)
    if w == "rotary=angles_in_float32":
        return (places[..., None].astype(np.float32) * f.astype(np.float32)).astype(np.float64), factor
    return places[..., None] * f, factor


def _frequencies(p: Mapping[str, Any], depth: int, w: str) -> tuple[np.ndarray, float]:
    dim, rule = p["dim"] or depth, p["scaling"]
    base = 10000.0 if w == "rotary=default_base" else p["base"]
    index = np.arange(dim // 2, dtype=np.float64)
    f = base ** (-2 * index / (depth if w == "rotary=whole_depth" else dim))
    if rule is None or w == "rotary=scaling_ignored":
        return f, 1.0
    f, factor = _scaled(rule, f, index, base, dim)
    return f, 1.0 if w == "rotary=factor_forgotten" else factor


def _scaled(
    rule: Mapping[str, Any], f: np.ndarray, index: np.ndarray, base: float, dim: int
) -> tuple[np.ndarray, float]:
    if rule["rule"] == "linear":
        return f / rule["factor"], 1.0
    if rule["rule"] == "ntk":
        return f * rule["alpha"] ** (-2 * index / (dim - 2)), 1.0
    length = rule["original_length"]
    if rule["rule"] == "longrope":
        return f / np.asarray(rule["factors"]), math.sqrt(1 + math.log(rule["factor"]) / math.log(length))
    if rule["rule"] == "llama3":
        low, high = rule["low_frequency_factor"], rule["high_frequency_factor"]
        kept = np.clip((length * f / (2 * np.pi) - low) / (high - low), 0, 1)
        return kept * f + (1 - kept) * f / rule["factor"], 1.0
    ends = [math.log(length / (2 * math.pi * rule[n]), base) * dim / 2 for n in ("beta_fast", "beta_slow")]
    first, last = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), dim - 1)
    kept = 1 - np.clip((index - first) / max(last - first, 0.001), 0, 1)
    return kept * f + (1 - kept) * f / rule["factor"], 1 + 0.1 * math.log(rule["factor"])
