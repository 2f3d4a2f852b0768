"""The gradients of the mutants, in closed form, and their settled calls."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.cases import Case

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Settled:
    """Arrays with heads before lengths in the compute dtype, the visible pairs, and the numbers of the call."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    seen: np.ndarray
    bias: np.ndarray
    sink: np.ndarray | None
    keep: np.ndarray
    scale: float
    cap: float | None


def gradients(case: Case, inputs: Arrays, s: Settled, parts: Any, cotangents: Arrays, w: str) -> dict[str, np.ndarray]:
    """Return the gradients that a case expects, in closed form."""
    if not case.gradients():
        return {}
    p, sink, tanh, value = parts
    dout = first_heads(case, cotangents["out"]).astype(p.dtype)
    dlse = (
        cotangents["lse"].astype(p.dtype)
        if "lse" in cotangents and w != "gradient=lse_stopped"
        else np.zeros(dout.shape[:-1])
    )
    dp = s.keep * (dout @ np.swapaxes(value, -1, -2))
    row = dlse - (0 if w == "gradient=row_term_forgotten" else (p * dp).sum(-1))
    ds = p * (dp + row[..., None])
    du = (
        ds
        * (1 if w == "gradient=cap_forgotten" else 1 - np.nan_to_num(tanh) ** 2)
        * (1 if w == "gradient=scale_forgotten" else s.scale)
    )
    query, key = (np.nan_to_num(x, posinf=0, neginf=0) for x in (s.query, s.key))
    found = {"query": du @ key, "key": np.swapaxes(du, -1, -2) @ query, "value": np.swapaxes(p * s.keep, -1, -2) @ dout}
    for name in ("key", "value"):
        found[name] = grouped(case, inputs, found[name], w)
    shaped = {name: fitted(back(case, x, inputs["query"].ndim == 2), inputs[name]) for name, x in found.items()}
    if case.parameters["sinks"] is not None:
        dsink = sink * (row if s.sink is not None else 0)
        axes = tuple(n for n in range(dsink.ndim) if n != dsink.ndim - 2)
        shaped["sinks"] = (0 if w == "gradient=sink_forgotten" else 1) * dsink.sum(axis=axes)
    if "bias" in case.gradients():
        shaped["bias"] = fitted(ds if inputs["query"].ndim > 2 else ds[0], inputs["bias"])
    return {f"gradient.{name}": shaped[name] for name in case.gradients() if name in shaped}


def grouped(case: Case, inputs: Arrays, x: np.ndarray, w: str) -> np.ndarray:
    """Sum the gradients of the query heads that share a key head."""
    shared = first_heads(case, inputs["key"]).shape[-3]
    parts = x.reshape(*x.shape[:-3], shared, x.shape[-3] // max(shared, 1), *x.shape[-2:])
    return parts[..., 0, :, :] if w == "gradient=first_of_group" else parts.sum(-3)


def fitted(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Sum over the axes along which an argument was broadcast."""
    x = x.sum(axis=tuple(range(x.ndim - like.ndim)))
    axes = tuple(n for n, size in enumerate(like.shape) if size == 1 and x.shape[n] != 1)
    return x.sum(axis=axes, keepdims=True) if axes else x


def first_heads(case: Case, x: np.ndarray) -> np.ndarray:
    """Return (..., H, L, D)."""
    return x[None] if x.ndim == 2 else np.swapaxes(x, -2, -3) if case.parameters["layout"] == "BLHD" else x


def back(case: Case, x: np.ndarray, plain: bool) -> np.ndarray:
    """Undo `first_heads`."""
    return x[0] if plain else np.swapaxes(x, -2, -3) if case.parameters["layout"] == "BLHD" else x
