"""Merging parts of attention in PyTorch, and the wrong ways of it."""

import math
from collections.abc import Mapping
from typing import Any

Tensor = Any
Tensors = Mapping[str, Tensor]


def merge(inputs: Tensors, parameters: Mapping[str, Any], wrong: str = "") -> dict[str, Tensor]:
    """`lse = log(sum exp(lse_n))`, `out = sum exp(lse_n - lse) out_n`; an empty part changes nothing."""
    import torch

    count = len(inputs) // 2
    outs = torch.stack([inputs[f"outs.{n}"] for n in range(count)])
    lses = torch.stack([inputs[f"lses.{n}"] for n in range(count)])
    kind = outs.dtype
    outs, lses = outs.to(torch.promote_types(kind, torch.float32)), lses.to(torch.promote_types(kind, torch.float32))
    weights = torch.softmax(lses * (math.log(2.0) if wrong == "merge=base_2" else 1.0), 0)
    if wrong == "merge=empty_is_plus_inf":
        weights = torch.softmax(lses.masked_fill(lses == -torch.inf, torch.inf), 0)
    elif wrong == "merge=empty_is_nan":
        pass
    else:
        weights = weights.nan_to_num(0.0)
        outs = outs.masked_fill((lses == -torch.inf)[..., None], 0.0)
    out, lse = (weights[..., None] * outs).sum(0), torch.logsumexp(lses, 0)
    wrongs = {"merge=mean": outs.mean(0), "merge=sum": outs.sum(0), "merge=last": outs[-1]}
    lse_wrongs = {"merge=lses_added": lses.sum(0), "merge=lse_is_maximum": lses.amax(0)}
    return {"out": wrongs.get(wrong, out).to(kind), "lse": lse_wrongs.get(wrong, lse)}


MEANS = {
    "merge=mean": "The parts' outputs are averaged.",
    "merge=sum": "The parts' outputs are added.",
    "merge=last": "The last part is taken.",
    "merge=base_2": "The natural lses are read as base-2 logarithms.",
    "merge=empty_is_plus_inf": "The lse of an empty part is read as +inf.",
    "merge=empty_is_nan": "-inf - -inf, or 0 times the NaN of an empty part, is NaN.",
    "merge=lses_added": "The lses are added.",
    "merge=lse_is_maximum": "The largest lse is taken.",
}
