"""Names and shapes of the weights of grouped-query attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..arrays import Array, describe
from ..values import static_int
from .layer import Normal, Parameter
from .linear import Linear
from .named import check_named
from .norm import RMSNorm

__all__ = ["check_weights", "parameters_of"]

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def parameters_of(
    *,
    d_in: int,
    num_heads: int,
    num_kv_heads: int,
    d_head: int,
    bias: bool,
    out_bias: bool,
    qk_norm: bool,
    sinks: bool,
    gate: bool,
    query_gate: bool,
) -> dict[str, Parameter]:
    """Return shape and law of each weight; with ``query_gate``, ``q_proj`` gives a gate beside each query."""
    width, kv_width = num_heads * d_head, num_kv_heads * d_head
    sizes: dict[str, dict[str, Any]] = {
        "q_proj": {"d_in": d_in, "d_out": (2 if query_gate else 1) * width, "bias": bias},
        "k_proj": {"d_in": d_in, "d_out": kv_width, "bias": bias},
        "v_proj": {"d_in": d_in, "d_out": kv_width, "bias": bias},
        "o_proj": {"d_in": width, "d_out": d_in, "bias": out_bias},
    }
    if gate:
        sizes["gate_proj"] = {"d_in": d_in, "d_out": width, "bias": bias}
    found = {f"{part}.{name}": p for part, each in sizes.items() for name, p in Linear.parameters(**each).items()}
    if qk_norm:
        found |= {f"{part}.weight": RMSNorm.parameters(d_in=d_head)["weight"] for part in ("q_norm", "k_norm")}
    return found | ({"sinks": Parameter((num_heads,), Normal(0.02))} if sinks else {})


def check_weights(
    weights: Mapping[str, Array], num_heads: int, num_kv_heads: int, query_gate: bool
) -> Mapping[str, Array]:
    """Return the weights, or raise for a missing, unexpected or misshapen one, and for heads that do not divide."""
    heads = static_int("num_heads", num_heads, least=1)
    kv_heads = static_int("num_kv_heads", num_kv_heads, least=1)
    if heads % kv_heads:
        raise ValueError(f"`num_kv_heads` is {kv_heads}, which does not divide the {heads} of `num_heads`")
    if not isinstance(weights, Mapping):
        raise TypeError(f"`weights` must be a mapping of names to arrays; got {describe(weights)}")
    missing = {f"{name}.weight": Parameter((1, 1)) for name in PROJECTIONS}
    complete = all(name in weights for name in missing)
    check_named(weights, _expected(weights, heads, kv_heads, query_gate) if complete else missing)
    return weights


def _expected(weights: Mapping[str, Array], heads: int, kv_heads: int, query_gate: bool) -> dict[str, Parameter]:
    d_in = _matrix("k_proj.weight", weights)[1]
    depth, value_depth = (_per_head(name, weights, kv_heads) for name in ("k_proj.weight", "v_proj.weight"))
    if query_gate and depth != value_depth:
        raise ValueError(f"`query_gate` needs values as deep as queries; got depths {depth} and {value_depth}")
    rows = {"q_proj": heads * depth * (2 if query_gate else 1), "k_proj": kv_heads * depth}
    rows |= {"v_proj": kv_heads * value_depth, "o_proj": _matrix("o_proj.weight", weights)[0]}
    if "gate_proj.weight" in weights:
        if query_gate:
            raise ValueError("`gate_proj.weight` was given, but `query_gate` says that the gates are in `q_proj`")
        a_head = _matrix("gate_proj.weight", weights)[0] == heads
        rows["gate_proj"] = heads if a_head else heads * value_depth
    found: dict[str, Parameter] = {}
    for name, count in rows.items():
        found[f"{name}.weight"] = Parameter((count, heads * value_depth if name == "o_proj" else d_in))
        if f"{name}.bias" in weights:
            found[f"{name}.bias"] = Parameter((count,))
    norms = {"q_norm.weight": heads, "k_norm.weight": kv_heads}
    if not weights.keys().isdisjoint(norms):  # one without the other is no model's
        for name, count in norms.items():
            whole = tuple(getattr(weights.get(name), "shape", ())) == (count * depth,)
            found[name] = Parameter((count * depth if whole else depth,))
    return found | ({"sinks": Parameter((heads,))} if "sinks" in weights else {})


def _matrix(name: str, weights: Mapping[str, Array]) -> tuple[int, int]:
    shape = tuple(getattr(weights[name], "shape", ()))
    if len(shape) != 2:
        raise ValueError(f"`{name}` must be a matrix (d_out, d_in); got shape {shape}")
    return shape


def _per_head(name: str, weights: Mapping[str, Array], heads: int) -> int:
    rows, _ = _matrix(name, weights)
    if rows % heads:
        raise ValueError(f"`num_kv_heads` is {heads}, which does not divide the {rows} rows of `{name}`")
    return rows // heads
