"""Rotary position embedding in PyTorch: angles in float64, tables and products in the compute dtype, rounded once."""

import math
from collections.abc import Mapping
from typing import Any

Tensor = Any
Tensors = Mapping[str, Tensor]
Parameters = Mapping[str, Any]
MEANS = {
    "rotary=other_style": "Neighbours are paired where halves are, or halves where neighbours are.",
    "rotary=one_later": "Positions are counted from 1.",
    "rotary=backwards": "The pairs turn the other way.",
    "rotary=positions_ignored": "The given positions are ignored: rows count from 0.",
    "rotary=none": "Nothing is rotated.",
    "rotary=whole_depth": "The frequencies are those of the whole depth, not of the part that turns.",
    "rotary=last_features": "The last features turn, not the first.",
    "rotary=concatenated": "The rotated neighbours are put one half after the other, not between each other.",
    "rotary=pairwise_tables": "Each angle stands twice in a row, where halves are paired: a pair turns by two angles.",
    "rotary=default_base": "The base is 10000.",
    "rotary=over_heads": "Heads are counted, not rows.",
    "rotary=first_item": "All batch items take the positions of the first.",
    "rotary=tables_in_float16": "Cosines and sines are rounded to float16.",
    "rotary=positions_in_bfloat16": "Positions are rounded to bfloat16, which has every integer only up to 256.",
    "rotary=angles_in_float32": "Position times frequency is rounded to float32 before the cosine.",
    "rotary=scaling_ignored": "The frequencies are not scaled.",
    "rotary=factor_forgotten": "Cosines and sines are not multiplied with the scaling's attention factor.",
}


def rotary(inputs: Tensors, parameters: Parameters, wrong: str = "") -> dict[str, Tensor]:
    """Return `out`: the pairs `(a, b)` of `x` turned to `(a cos - b sin, b cos + a sin)`."""
    import torch

    x, kind = inputs["x"], inputs["x"].dtype
    swapped = parameters["layout"] == "BLHD" and x.ndim > 2
    whole = (x.movedim(-2, -3) if swapped else x).to(torch.promote_types(kind, torch.float32))
    cos, sin = _tables(whole, parameters, wrong)
    turning = 2 * cos.shape[-1]
    part = whole[..., -turning:] if wrong == "rotary=last_features" else whole[..., :turning]
    rest = whole[..., :-turning] if wrong == "rotary=last_features" else whole[..., turning:]
    neighbours = parameters["interleaved"] != (wrong == "rotary=other_style")
    turned = part if wrong == "rotary=none" else _turned(part, cos, sin, neighbours, wrong)
    out = torch.cat([rest, turned] if wrong == "rotary=last_features" else [turned, rest], -1)
    return {"out": (out.movedim(-3, -2) if swapped else out).to(kind)}


def _turned(x: Tensor, cos: Tensor, sin: Tensor, neighbours: bool, wrong: str) -> Tensor:
    import torch

    if wrong == "rotary=pairwise_tables" and not neighbours:
        cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1) if neighbours else x.chunk(2, -1)
    pairs = a * cos - b * sin, b * cos + a * sin
    together = neighbours and wrong != "rotary=concatenated"
    return torch.stack(pairs, -1).flatten(-2) if together else torch.cat(pairs, -1)


def _tables(x: Tensor, parameters: Parameters, wrong: str) -> tuple[Tensor, Tensor]:
    """Cosines and sines, `(..., 1, L, pairs)`."""
    import torch

    places = _positions(x, parameters, wrong)[..., None]
    f, factor = frequencies(parameters, x.shape[-1], wrong)
    if wrong == "rotary=positions_in_bfloat16":
        places = places.bfloat16()
    angles = places.double() * f
    if wrong == "rotary=angles_in_float32":
        angles = (places.float() * f.float()).double()
    angles = -angles if wrong == "rotary=backwards" else angles
    kinds = (torch.float16, x.dtype) if wrong == "rotary=tables_in_float16" else (x.dtype,)
    tables = angles.cos() * factor, angles.sin() * factor
    for kind in kinds:
        tables = tables[0].to(kind), tables[1].to(kind)
    return tables


def _positions(x: Tensor, parameters: Parameters, wrong: str) -> Tensor:
    import torch

    given, rows = parameters["positions"], torch.arange(x.shape[-2])
    if wrong == "rotary=over_heads" and x.ndim > 2:
        return torch.arange(x.shape[-3])[:, None].expand(-1, x.shape[-2])
    if wrong == "rotary=positions_ignored":
        return rows
    places = rows + given if isinstance(given, int) else torch.tensor(given)
    if places.ndim > 1:
        places = places[:1] if wrong == "rotary=first_item" else places
        places = places[..., None, :]
    return places + 1 if wrong == "rotary=one_later" else places


def frequencies(parameters: Parameters, depth: int, wrong: str = "") -> tuple[Tensor, float]:
    """Return the radians a position of each pair, and the factor of cosines and sines."""
    import torch

    dim = parameters["dim"] or depth
    base = 10000.0 if wrong == "rotary=default_base" else parameters["base"]
    part = depth if wrong == "rotary=whole_depth" else dim
    steps = torch.arange(0, dim, 2, dtype=torch.float64)
    f, rule = base ** (-steps / part), parameters["scaling"]
    if rule is None or wrong == "rotary=scaling_ignored":
        return f, 1.0
    scaled, factor = SCALINGS[rule["rule"]](rule, f, base, dim)
    return scaled, 1.0 if wrong == "rotary=factor_forgotten" else factor


def _yarn(rule: Parameters, f: Tensor, base: float, dim: int) -> tuple[Tensor, float]:
    """By parts: pairs that turn often within the original length keep their frequency."""
    import torch

    ends = [rule["original_length"] / (2 * math.pi * rule[name]) for name in ("beta_fast", "beta_slow")]
    low, high = (dim / 2 * math.log(end) / math.log(base) for end in ends)
    low, high = (math.floor(low), math.ceil(high)) if rule["truncate"] else (low, high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(len(f), dtype=torch.float64) - low) / max(high - low, 0.001)).clip(0, 1)
    return ramp * f / rule["factor"] + (1 - ramp) * f, 0.1 * math.log(rule["factor"]) + 1


def _llama3(rule: Parameters, f: Tensor, base: float, dim: int) -> tuple[Tensor, float]:
    low, high = rule["low_frequency_factor"], rule["high_frequency_factor"]
    smooth = ((rule["original_length"] * f / (2 * math.pi) - low) / (high - low)).clip(0, 1)
    return ((1 - smooth) / rule["factor"] + smooth) * f, 1.0


def _longrope(rule: Parameters, f: Tensor, base: float, dim: int) -> tuple[Tensor, float]:
    import torch

    factor = math.sqrt(1 + math.log(rule["factor"]) / math.log(rule["original_length"]))
    return f / torch.tensor(rule["factors"], dtype=torch.float64), factor


def _ntk(rule: Parameters, f: Tensor, base: float, dim: int) -> tuple[Tensor, float]:
    import torch

    return (base * rule["alpha"] ** (dim / (dim - 2))) ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim), 1.0


SCALINGS: dict[str, Any] = {
    "linear": lambda rule, f, base, dim: (f / rule["factor"], 1.0),
    "ntk": _ntk,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
