"""Attention as the formula says it, in plain NumPy, with a switch for every convention that implementations differ in.

Nothing is fused or clever here: `diagnose` and the wrong implementations turn the switches. `Switches()` is the meaning
of `docs/conventions.md`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Switches:
    """The conventions of one attention; each field's first value is this project's."""

    heads: str = "repeat"  # tile: query head h reads key head h % Hkv; reversed: the last key head first
    cap: str = "before_bias"  # after_bias, after_mask
    fill: str = "-inf"  # zero: masked scores are 0; after_softmax: masked weights are 0, rows do not sum to 1
    empty_row: str = "zero"  # mean_of_v, nan
    softmax: str = "e"  # base_2, over_queries, sigmoid, none
    sink: str = "denominator"  # ignored


@dataclass(frozen=True, eq=False)
class Call:
    """One call: `query (..., Hq, Lq, D)`, `key (..., Hkv, Lk, D)`, `value (..., Hkv, Lk, Dv)`; tables broadcast."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    scale: float
    mask: np.ndarray | None = None
    bias: np.ndarray | None = None
    softcap: float | None = None
    sinks: np.ndarray | None = None


STAGES = ("scaled", "capped", "biased", "masked", "weights", "out")


def attend(call: Call, switches: Switches | None = None, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    """Return the stages `scaled`, `capped`, `biased`, `masked` and `weights`, `out` and `lse`, computed in `dtype`."""
    switches = switches or Switches()
    query, key, value = (np.asarray(x).astype(dtype) for x in (call.query, call.key, call.value))
    key, value = (_spread(x, query, switches.heads) for x in (key, value))
    with np.errstate(invalid="ignore", over="ignore", under="ignore", divide="ignore"):
        scaled = (query @ np.swapaxes(key, -1, -2)) * np.asarray(call.scale, dtype)
        stages = scores(scaled, call, switches)
        weights, lse = normalised(stages["masked"], call, switches)
        out = _product(weights, value)
    return {**stages, "weights": weights, "out": out, "lse": lse}


def scores(scaled: np.ndarray, call: Call, switches: Switches) -> dict[str, np.ndarray]:
    """Return the stages from `scaled` to `masked`."""
    capped = _capped(scaled, call) if switches.cap == "before_bias" else scaled
    biased = capped if call.bias is None else capped + np.asarray(call.bias).astype(scaled.dtype)
    if switches.cap == "after_bias":
        biased = _capped(biased, call)
    visible = True if call.mask is None else call.mask
    if call.bias is not None:
        visible = visible & ~np.isneginf(call.bias)
    masked = np.where(visible, biased, np.asarray(-np.inf, scaled.dtype))
    if switches.cap == "after_mask":
        masked = _capped(masked, call)
    return {"scaled": scaled, "capped": capped, "biased": biased, "masked": masked}


def normalised(masked: np.ndarray, call: Call, switches: Switches) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and lse of masked scores."""
    if switches.softmax in ("sigmoid", "none"):
        return _unnormalised(masked, switches.softmax), np.full(masked.shape[:-1], np.nan)
    axis = -2 if switches.softmax == "over_queries" else -1
    if call.mask is not None and switches.fill == "zero":
        masked = np.where(call.mask, masked, np.asarray(0, masked.dtype))
    if call.mask is not None and switches.fill == "after_softmax":
        weights, lse = normalised(np.where(np.isneginf(masked), 0, masked), call, Switches(softmax=switches.softmax))
        return np.where(call.mask, weights, 0).astype(masked.dtype), lse
    top = np.max(masked, axis=axis, keepdims=True, initial=-np.inf)
    sink = _sink(call, masked) if switches.sink != "ignored" else None
    if sink is not None:
        top = np.maximum(top, sink)
    shift = np.where(np.isneginf(top), np.asarray(0, masked.dtype), top)
    log_base = np.log(2.0) if switches.softmax == "base_2" else 1.0
    powers = np.exp(((masked - shift) * log_base).astype(masked.dtype))
    total = powers.sum(axis=axis, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - shift)
    # 0/0 where a row sees nothing; what then stands there is a convention.
    weights = _settled(powers / total, total, switches.empty_row, masked.shape[-1])
    lse = (np.log(total) + shift)[..., 0] if axis == -1 else np.full(masked.shape[:-1], np.nan)
    return weights, lse


def _settled(weights: np.ndarray, total: np.ndarray, empty_row: str, keys: int) -> np.ndarray:
    fills = {"zero": 0.0, "nan": np.nan, "mean_of_v": 1.0 / max(keys, 1)}
    return np.where(total == 0, np.asarray(fills[empty_row], weights.dtype), weights)


def _unnormalised(masked: np.ndarray, kind: str) -> np.ndarray:
    if kind == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-masked)))
    return np.where(np.isneginf(masked), np.asarray(0, masked.dtype), masked)


def _sink(call: Call, masked: np.ndarray) -> np.ndarray | None:
    return None if call.sinks is None else np.asarray(call.sinks).astype(masked.dtype)[:, None, None]


def _capped(x: np.ndarray, call: Call) -> np.ndarray:
    return x if not call.softcap else np.asarray(call.softcap * np.tanh(x / call.softcap)).astype(x.dtype)


def _product(weights: np.ndarray, value: np.ndarray) -> np.ndarray:
    """`weights @ value`, where a weight of 0 takes nothing, whatever stands in the value."""
    plain = weights @ np.where(np.isfinite(value), value, 0)
    if np.isfinite(value).all():
        return plain
    odd = ~np.isfinite(value)
    for i in np.unique(np.argwhere(odd)[:, -2]):
        plain = plain + np.where(
            weights[..., i, None] == 0, 0, weights[..., i, None] * np.where(odd, value, 0)[..., i, None, :]
        )
    return plain


def _spread(array: np.ndarray, query: np.ndarray, heads: str) -> np.ndarray:
    """Give every query head its key head."""
    if array.ndim < 3 or array.shape[-3] == 0:
        return array
    groups = query.shape[-3] // array.shape[-3]
    if heads == "tile":
        return np.concatenate([array] * groups, axis=-3)
    if heads == "reversed":
        array = np.flip(array, axis=-3)
    return np.repeat(array, groups, axis=-3)
