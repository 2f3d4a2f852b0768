"""The weights of multi-head latent attention: which there are, and what sizes they tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..arrays import Array
from .headed import check_heads, shape_of
from .layer import Normal, Parameter, Uniform

__all__ = ["parameters_of", "sizes_of"]


def parameters_of(
    *,
    hidden_size: int,
    num_heads: int,
    qk_nope_head_dim: int,
    qk_rope_head_dim: int,
    v_head_dim: int,
    kv_lora_rank: int,
    q_lora_rank: int | None = None,
    bias: bool = False,
) -> dict[str, Parameter]:
    """Return shape and law of each weight; ``bias`` is that of the projections from and to ``hidden_size``."""
    queries = num_heads * (qk_nope_head_dim + qk_rope_head_dim)
    rows: dict[str, tuple[int, ...]] = {}
    if q_lora_rank is None:
        rows["q_proj"] = (queries, hidden_size)
    else:
        rows |= {"q_a_proj": (q_lora_rank, hidden_size), "q_a_layernorm": (q_lora_rank,)}
        rows["q_b_proj"] = (queries, q_lora_rank)
    rows |= {
        "kv_a_proj_with_mqa": (kv_lora_rank + qk_rope_head_dim, hidden_size),
        "kv_a_layernorm": (kv_lora_rank,),
        "kv_b_proj": (num_heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank),
        "o_proj": (hidden_size, num_heads * v_head_dim),
    }
    expected = {}
    for name, shape in rows.items():
        expected[f"{name}.weight"] = Parameter(shape, Normal(0.02) if len(shape) == 2 else Uniform(1.0, 1.0))
        if bias and name in ("q_a_proj", "kv_a_proj_with_mqa", "o_proj"):
            expected[f"{name}.bias"] = Parameter(shape[:1], Normal(0.0))
    return expected


def sizes_of(weights: Mapping[str, Array], num_heads: int) -> dict[str, Any]:
    """Return the arguments of ``parameters_of`` that these weights tell, or raise where they tell none."""
    width, values = shape_of(weights, "o_proj.weight")
    at_once = not any(name in weights for name in ("q_a_proj.weight", "q_b_proj.weight"))
    both, rank = shape_of(weights, "kv_b_proj.weight")
    queries, _ = shape_of(weights, "q_proj.weight" if at_once else "q_b_proj.weight")
    turning = shape_of(weights, "kv_a_proj_with_mqa.weight")[0] - rank
    for rows in (values, both, queries):
        check_heads(rows, num_heads)
    if not 0 < turning < queries // num_heads:
        raise ValueError(
            f"`kv_a_proj_with_mqa.weight` leaves {turning} rows beside the rank {rank} of `kv_b_proj.weight` for the "
            f"rotated key, whose queries have depth {queries // num_heads}"
        )
    return {
        "hidden_size": width,
        "num_heads": num_heads,
        "qk_nope_head_dim": queries // num_heads - turning,
        "qk_rope_head_dim": turning,
        "v_head_dim": values // num_heads,
        "kv_lora_rank": rank,
        "q_lora_rank": None if at_once else shape_of(weights, "q_a_proj.weight")[0],
        "bias": "o_proj.bias" in weights or "kv_a_proj_with_mqa.bias" in weights,
    }
