"""The second source of every truth: attention in plain loops over numbers of 40 digits.

It shares no code with PyTorch, with the recording's PyTorch functions or with the attention under test: no matrix
product, no shift by the row's maximum, no closed-form gradient. Arrays are NumPy object arrays, used as boxes only.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.record.tape import Number, derivatives, number, total

Boxes = Mapping[str, Any]
Parameters = Mapping[str, Any]
NEVER = number("-inf")


def box(array: np.ndarray) -> np.ndarray:
    """Take an array of floats into numbers, exactly; masks and indices stay."""
    if array.dtype.kind in "biu":
        return array
    boxed = np.empty(array.shape, dtype=object)
    for index in np.ndindex(array.shape):
        boxed[index] = number(float(array[index]))
    return boxed


def unbox(boxed: np.ndarray) -> np.ndarray:
    """Round every number to float64, once."""
    plain = np.empty(boxed.shape, dtype=np.float64)
    for index in np.ndindex(boxed.shape):
        plain[index] = float(getattr(boxed[index], "value", boxed[index]))
    return plain


def gradients(
    outputs: Boxes, cotangents: Mapping[str, np.ndarray], inputs: Boxes, names: tuple[str, ...]
) -> dict[str, Any]:
    """Return `gradient.NAME` of `sum(cotangent * output)`, each entry by walking the tape back."""
    terms = []
    for name, cotangent in cotangents.items():
        terms += [outputs[name][i] * number(float(cotangent[i])) for i in np.ndindex(cotangent.shape)]
    slopes = derivatives(total(terms))
    return {f"gradient.{name}": _collect(inputs[name], slopes) for name in names}


def embedding(inputs: Boxes, parameters: Parameters) -> dict[str, Any]:
    """One row a word."""
    rows = [[inputs["weight"][int(word), j] for j in range(inputs["weight"].shape[1])] for word in inputs["indices"]]
    return {"out": np.array(rows, dtype=object)}


def projections(inputs: Boxes, parameters: Parameters) -> dict[str, Any]:
    """Query, key and value of every word."""
    return {name: _product(inputs["x"], inputs[f"W_{name}"]) for name in ("query", "key", "value")}


def attention_scores(inputs: Boxes, parameters: Parameters) -> dict[str, Any]:
    """Every query with every key."""
    return {"scores": _times(_pairs(inputs["query"], inputs["key"]), number(parameters["scale"]))}


def attention(inputs: Boxes, parameters: Parameters) -> dict[str, Any]:
    """One head, or heads with as many keys and values, one after the other."""
    query, mask = inputs["query"], inputs.get("mask")
    if query.ndim == 2:
        scale = _default_scale(query) if parameters["scale"] == query.shape[-1] ** -0.5 else number(parameters["scale"])
        return _one_head(query, inputs["key"], inputs["value"], mask, scale)
    parts = [attention(_item(inputs, h), parameters) for h in range(query.shape[0])]
    return {name: np.array([part[name] for part in parts], dtype=object) for name in parts[0]}


def self_attention(inputs: Boxes, parameters: Parameters) -> dict[str, Any]:
    """Project one input, attend."""
    return _layer(inputs["x"], inputs["x"], inputs, None)


def cross_attention(inputs: Boxes, parameters: Parameters) -> dict[str, Any]:
    """Project two inputs, attend from the first to the second."""
    return _layer(inputs["x_1"], inputs["x_2"], inputs, None)


def multi_head(inputs: Boxes, parameters: Parameters) -> dict[str, Any]:
    """Write each head's columns beside those of the head before."""
    parts = []
    for h in range(parameters["num_heads"]):
        weights = {name: inputs[f"heads.{h}.{name}"] for name in ("W_query", "W_key", "W_value")}
        parts.append(_layer(inputs["x"], inputs["x"], weights, None))
    steps = {name: np.array([part[name] for part in parts], dtype=object) for name in parts[0] if name != "out"}
    rows = [[entry for part in parts for entry in part["out"][i]] for i in range(inputs["x"].shape[0])]
    out = np.array(rows, dtype=object)
    return {"out": out, **steps, "step.context_vec": out}


def causal_self_attention(inputs: Boxes, parameters: Parameters) -> dict[str, Any]:
    """Attend to no later word; and the article's first way, a triangle over finished weights."""
    length = inputs["x"].shape[0]
    seen = np.array([[j <= i for j in range(length)] for i in range(length)])
    full = _layer(inputs["x"], inputs["x"], inputs, None)
    layer = _layer(inputs["x"], inputs["x"], inputs, seen)
    triangle = box(seen.astype(float))
    kept = full["step.attn_weights"] * triangle
    sums = np.array([[total(row)] for row in kept], dtype=object)
    first = {"mask_simple": triangle, "masked_simple": kept, "row_sums": sums, "masked_simple_norm": kept / sums}
    masked = _hidden(full["step.attn_scores"], seen)
    return {**layer, **{f"step.{name}": boxed for name, boxed in first.items()}, "step.masked": masked}


def _layer(x: Any, other: Any, weights: Boxes, seen: Any) -> dict[str, Any]:
    queries, keys = _product(x, weights["W_query"]), _product(other, weights["W_key"])
    values = _product(other, weights["W_value"])
    head = _one_head(queries, keys, values, seen, _default_scale(queries))
    steps = {
        "queries": queries,
        "keys": keys,
        "values": values,
        "attn_scores": _pairs(queries, keys),
        "scaled_scores": head["stage.scaled"],
        "attn_weights": head["weights"],
        "context_vec": head["out"],
    }
    return {"out": head["out"], **{f"step.{name}": boxed for name, boxed in steps.items()}}


def _one_head(query: Any, key: Any, value: Any, seen: Any, scale: Number) -> dict[str, Any]:
    scaled = _times(_pairs(query, key), scale)
    powers = [
        [scaled[i, j].exp() if seen is None or seen[i, j] else number(0) for j in range(key.shape[0])]
        for i in range(query.shape[0])
    ]
    sums = [total(row) for row in powers]
    weights = np.array([[power / sums[i] for power in row] for i, row in enumerate(powers)], dtype=object)
    lse = np.array([each.log() for each in sums], dtype=object)
    found = {"out": _product(weights, value), "lse": lse, "weights": weights, "stage.scaled": scaled}
    return found if seen is None else {**found, "stage.masked": _hidden(scaled, seen)}


def _pairs(query: Any, key: Any) -> Any:
    dots = [[total(a * b for a, b in zip(one, other, strict=True)) for other in key] for one in query]
    return np.array(dots, dtype=object)


def _product(left: Any, right: Any) -> Any:
    columns = [[right[k, j] for k in range(right.shape[0])] for j in range(right.shape[1])]
    return np.array(
        [[total(a * b for a, b in zip(row, c, strict=True)) for c in columns] for row in left], dtype=object
    )


def _times(boxed: Any, factor: Number) -> Any:
    return np.array([[entry * factor for entry in row] for row in boxed], dtype=object)


def _hidden(boxed: Any, seen: Any) -> Any:
    return np.array(
        [[e if seen[i, j] else NEVER for j, e in enumerate(row)] for i, row in enumerate(boxed)], dtype=object
    )


def _default_scale(query: Any) -> Number:
    return number(1) / number(number(query.shape[-1]).value ** number("0.5").value)


def _item(inputs: Boxes, h: int) -> dict[str, Any]:
    return {name: boxed if name == "mask" and boxed.ndim == 2 else boxed[h] for name, boxed in inputs.items()}


def _collect(boxed: Any, slopes: Mapping[int, Any]) -> Any:
    found = np.empty(boxed.shape, dtype=object)
    for index in np.ndindex(boxed.shape):
        found[index] = number(slopes.get(id(boxed[index]), 0))
    return found


OPS = {
    "embedding": embedding,
    "projections": projections,
    "attention_scores": attention_scores,
    "attention": attention,
    "SelfAttention": self_attention,
    "MultiHeadAttentionWrapper": multi_head,
    "CrossAttention": cross_attention,
    "CausalSelfAttention": causal_self_attention,
}
