"""Attention in PyTorch as the article writes it: plain matrix products, a softmax, nothing fused.

Each function takes the inputs of a case by name and its parameters, in any dtype, and gives every expected tensor.
"""

from collections.abc import Mapping
from typing import Any

from conformance.record import merging, packing, rotation
from conformance.record.formula import attention

Tensor = Any
Tensors = Mapping[str, Tensor]
Parameters = Mapping[str, Any]


def embedding(inputs: Tensors, parameters: Parameters) -> dict[str, Tensor]:
    """Look the words up in the table of embeddings."""
    return {"out": inputs["weight"][inputs["indices"]]}


def projections(inputs: Tensors, parameters: Parameters) -> dict[str, Tensor]:
    """`x @ W` for query, key and value."""
    return {name: inputs["x"] @ inputs[f"W_{name}"] for name in ("query", "key", "value")}


def attention_scores(inputs: Tensors, parameters: Parameters) -> dict[str, Tensor]:
    """`scale * (query @ key^T)`."""
    return {"scores": _scaled(inputs["query"] @ inputs["key"].mT, parameters["scale"], inputs["query"].shape[-1])}


def self_attention(inputs: Tensors, parameters: Parameters) -> dict[str, Tensor]:
    """The article's `SelfAttention`, step by step."""
    return _layer(inputs["x"], inputs["x"], inputs)


def cross_attention(inputs: Tensors, parameters: Parameters) -> dict[str, Tensor]:
    """The article's `CrossAttention`: queries from `x_1`, keys and values from `x_2`."""
    return _layer(inputs["x_1"], inputs["x_2"], inputs)


def multi_head(inputs: Tensors, parameters: Parameters) -> dict[str, Tensor]:
    """The article's `MultiHeadAttentionWrapper`: heads one by one, concatenated on the last axis."""
    import torch

    heads = [_layer(inputs["x"], inputs["x"], head(inputs, h)) for h in range(parameters["num_heads"])]
    steps = {name: torch.stack([each[name] for each in heads]) for name in heads[0] if name.startswith("step.")}
    out = torch.cat([each["out"] for each in heads], dim=-1)
    return {"out": out, **steps, "step.context_vec": out}


def causal_self_attention(inputs: Tensors, parameters: Parameters) -> dict[str, Tensor]:
    """The article's last section as a layer, both ways: triangle and renormalising, and `-inf` before the softmax."""
    import torch

    steps = self_attention(inputs, parameters)
    scores, depth = steps["step.attn_scores"], inputs["W_query"].shape[-1]
    length = scores.shape[-1]
    mask_simple = torch.tril(torch.ones(length, length, dtype=scores.dtype))
    masked_simple = steps["step.attn_weights"] * mask_simple
    row_sums = masked_simple.sum(dim=-1, keepdim=True)
    above = torch.triu(torch.ones(length, length), diagonal=1).bool()
    masked = scores.masked_fill(above, -torch.inf)
    weights = torch.softmax(masked / depth**0.5, dim=-1)
    out = weights @ steps["step.values"]
    first = {"mask_simple": mask_simple, "masked_simple": masked_simple, "row_sums": row_sums}
    second = {
        "masked_simple_norm": masked_simple / row_sums,
        "masked": masked,
        "attn_weights": weights,
        "context_vec": out,
    }
    return {**steps, "out": out, **{f"step.{name}": tensor for name, tensor in {**first, **second}.items()}}


def head(inputs: Tensors, number: int) -> dict[str, Tensor]:
    """Return the weights of one head by their names without it."""
    prefix = f"heads.{number}."
    return {name.removeprefix(prefix): tensor for name, tensor in inputs.items() if name.startswith(prefix)}


def gradients(outputs: Tensors, cotangents: Tensors, inputs: Tensors, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return `gradient.NAME` of `sum(cotangent * output)` with respect to the named inputs."""
    import torch

    total = sum((outputs[name] * cotangent).sum() for name, cotangent in cotangents.items())
    found = torch.autograd.grad(total, [inputs[name] for name in names], allow_unused=True, materialize_grads=True)
    return {f"gradient.{name}": tensor for name, tensor in zip(names, found, strict=True)}


def tangents(op: str, inputs: Tensors, parameters: Parameters, directions: Tensors) -> dict[str, Tensor]:
    """Return `tangent.OUTPUT`, the derivative along the directions, by forward-mode differentiation."""
    import torch

    names = tuple(directions)

    def outputs(*moved: Tensor) -> tuple[Tensor, Tensor]:
        found = OPS[op]({**inputs, **dict(zip(names, moved, strict=True))}, parameters)
        return found["out"], found["lse"]

    moved: Any = torch.func.jvp(outputs, tuple(inputs[n] for n in names), tuple(directions[n] for n in names))
    return {"tangent.out": moved[1][0], "tangent.lse": moved[1][1]}


def _layer(x: Tensor, other: Tensor, weights: Tensors) -> dict[str, Tensor]:
    import torch

    queries, keys, values = x @ weights["W_query"], other @ weights["W_key"], other @ weights["W_value"]
    attn_scores = queries @ keys.mT
    scaled_scores = attn_scores / weights["W_query"].shape[-1] ** 0.5
    attn_weights = torch.softmax(scaled_scores, dim=-1)
    context_vec = attn_weights @ values
    steps = {
        "queries": queries,
        "keys": keys,
        "values": values,
        "attn_scores": attn_scores,
        "scaled_scores": scaled_scores,
        "attn_weights": attn_weights,
        "context_vec": context_vec,
    }
    return {"out": context_vec, **{f"step.{name}": tensor for name, tensor in steps.items()}}


def _scaled(scores: Tensor, scale: float, depth: int) -> Tensor:
    # The article divides by sqrt(D); a product with 1 / sqrt(D) rounds differently.
    return scores / depth**0.5 if scale == depth**-0.5 else scores * scale


OPS = {
    "embedding": embedding,
    "projections": projections,
    "attention_scores": attention_scores,
    "attention": attention,
    "merge": merging.merge,
    "packed": packing.packed,
    "rotary": rotation.rotary,
    "SelfAttention": self_attention,
    "MultiHeadAttentionWrapper": multi_head,
    "CrossAttention": cross_attention,
    "CausalSelfAttention": causal_self_attention,
}
