"""From a case's inputs to its outputs by the public names that attention_np and attention_jax share."""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from conformance.cases import Case

Arrays = Mapping[str, Any]
LAYERS = ("SelfAttention", "MultiHeadAttentionWrapper", "CrossAttention", "CausalSelfAttention")
OPS = ("embedding", "projections", "attention_scores", "attention", *LAYERS)
MASK_RULES = ("causal", "dense")
STAGES = ("scaled", "capped", "biased", "masked")


def unsupported(case: Case) -> str:
    """Return an empty string where `forward` can ask this case."""
    if case.op not in OPS:
        return f"the adapter has no op `{case.op}`"
    rule = (case.parameters.get("mask") or {}).get("rule", "causal")
    return "" if rule in MASK_RULES else f"the adapter has no mask rule `{rule}`"


def forward(library: ModuleType, case: Case) -> Callable[[Arrays], dict[str, Any]]:
    """Return the function from the case's inputs to all outputs but the gradients."""
    if case.op in LAYERS:
        return lambda inputs: _layer(library, case, inputs)
    ops = {"embedding": _embedding, "projections": _projections}
    if case.op in ops:
        return ops[case.op]
    return lambda inputs: (_scores if case.op == "attention_scores" else _attention)(library, case, inputs)


def differentiable(library: ModuleType, case: Case) -> Callable[[Arrays], dict[str, Any]]:
    """Return the function from the case's inputs to the outputs that have cotangents, and nothing else."""
    if case.op not in LAYERS:
        return lambda inputs: _attention_call(library, case, inputs, return_lse=True)

    def out(inputs: Arrays) -> dict[str, Any]:
        layer, called_with = make_layer(library, case, inputs)
        return {"out": layer(*called_with)}

    return out


def call(case: Case, inputs: Arrays) -> dict[str, Any]:
    """Return the keyword arguments of a case's attention call, every parameter spelled out."""
    names = ("scale", "softcap", "query_positions", "key_positions", "layout")
    return {"mask": _mask(case, inputs), **{name: case.parameters[name] for name in names}}


def make_layer(library: ModuleType, case: Case, inputs: Arrays) -> tuple[Any, tuple[Any, ...]]:
    """Return the layer with the case's weights, and the inputs that it is called with."""
    names = [name for name in ("x", "x_1", "x_2") if name in inputs]
    state = {name: array for name, array in inputs.items() if name not in names}
    return getattr(library, case.op).from_state_dict(state), tuple(inputs[name] for name in names)


def _mask(case: Case, inputs: Arrays) -> Any:
    from attention_core import masks

    rule = case.parameters["mask"]
    if rule is None:
        return None
    return masks.causal() if rule["rule"] == "causal" else inputs["mask"]


def _embedding(inputs: Arrays) -> dict[str, Any]:
    return {"out": inputs["weight"][inputs["indices"]]}


def _projections(inputs: Arrays) -> dict[str, Any]:
    return {name: inputs["x"] @ inputs[f"W_{name}"] for name in ("query", "key", "value")}


def _scores(library: ModuleType, case: Case, inputs: Arrays) -> dict[str, Any]:
    arguments = {**call(case, inputs), "stage": case.parameters["stage"]}
    return {"scores": library.attention_scores(inputs["query"], inputs["key"], **arguments)}


def _attention(library: ModuleType, case: Case, inputs: Arrays) -> dict[str, Any]:
    found = _attention_call(library, case, inputs, return_lse=True, return_weights=True)
    for stage in STAGES:
        if f"stage.{stage}" in case.expected:
            arguments = {**call(case, inputs), "stage": stage}
            found[f"stage.{stage}"] = library.attention_scores(inputs["query"], inputs["key"], **arguments)
    return found


def _attention_call(library: ModuleType, case: Case, inputs: Arrays, **returned: bool) -> dict[str, Any]:
    query, key, value = inputs["query"], inputs["key"], inputs["value"]
    result = library.dot_product_attention(query, key, value, **call(case, inputs), **returned)
    return {name: array for name, array in result._asdict().items() if array is not None}


def _layer(library: ModuleType, case: Case, inputs: Arrays) -> dict[str, Any]:
    layer, called_with = make_layer(library, case, inputs)
    steps = {f"step.{name}": array for name, array in layer.steps(*called_with).items()}
    return {"out": layer(*called_with), **steps}
