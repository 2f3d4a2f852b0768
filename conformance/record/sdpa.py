"""PyTorch's own attention, where it can say a case: its error is part of what an implementation is measured against."""

from collections.abc import Mapping
from typing import Any

from conformance.record.formula import bias_values
from conformance.record.visible import places, visible

Tensor = Any


def outputs(op: str, inputs: Mapping[str, Tensor], parameters: Mapping[str, Any], plain: Tensor) -> dict[str, Tensor]:
    """Return `out` of `scaled_dot_product_attention`, or nothing where it cannot do the case or gives NaN."""
    import torch

    real = [tensor for tensor in inputs.values() if tensor.is_floating_point()]
    beyond = any(parameters.get(name) is not None for name in ("softcap", "sinks", "dropout"))
    if op != "attention" or beyond or len({tensor.dtype for tensor in real}) != 1 or 0 in plain.shape:
        return {}
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    if not all(bool(torch.isfinite(tensor).all()) for tensor in (query, key, value)) or 0 in key.shape:
        return {}
    if swapped := parameters["layout"] == "BLHD" and query.ndim > 2:
        query, key, value = (tensor.movedim(-2, -3) for tensor in (query, key, value))
    mask = _additive_or_boolean(inputs, parameters, query, key)
    mask = mask[None] if mask is not None and mask.ndim == 1 else mask
    if query.ndim > 2:
        group = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=parameters["scale"])
    return {"out": out.movedim(-3, -2) if swapped else out} if bool(torch.isfinite(out).all()) else {}


def _additive_or_boolean(
    inputs: Mapping[str, Tensor], parameters: Mapping[str, Any], query: Tensor, key: Tensor
) -> Tensor | None:
    import torch

    at = places(inputs, parameters, query.shape[-2], key.shape[-2])
    seen = None if parameters["mask"] is None else visible(parameters["mask"], at)
    if parameters["bias"] is None:
        return seen
    bias = bias_values(parameters["bias"], inputs, at, query.dtype)
    return bias if seen is None else torch.where(seen, bias, -torch.inf)
