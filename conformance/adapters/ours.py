"""From a case's inputs to its outputs by the public names that all our packages share."""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from conformance import rules
from conformance.adapters import packs, rotation
from conformance.cases import Case

Arrays = Mapping[str, Any]
Convert = Callable[[np.ndarray], Any]
LAYERS = ("SelfAttention", "MultiHeadAttentionWrapper", "CrossAttention", "CausalSelfAttention")
OPS = ("embedding", "projections", "attention_scores", "attention", "packed", "rotary", "merge", *LAYERS)
GATES = {"and": "__and__", "or": "__or__"}
STAGES = ("scaled", "capped", "biased", "masked")


def unsupported(case: Case) -> str:
    """Return an empty string where `forward` can ask this case."""
    return "" if case.op in OPS else f"the adapter has no op `{case.op}`"


def forward(library: ModuleType, case: Case, asarray: Convert = np.asarray) -> Callable[[Arrays], dict[str, Any]]:
    """Return the function from the case's inputs to all outputs but the gradients."""
    if case.op in LAYERS:
        return lambda inputs: _layer(library, case, inputs)
    ops = {"embedding": _embedding, "projections": _projections}
    if case.op in ops:
        return ops[case.op]
    if case.op == "merge":
        return lambda inputs: _merge(library, case, inputs)
    if case.op == "rotary":
        return lambda inputs: rotation.forward(library, case, inputs, asarray)
    asked = {"attention_scores": _scores, "packed": packs.forward}.get(case.op, _attention)
    return lambda inputs: asked(library, case, inputs, asarray)


def differentiable(
    library: ModuleType, case: Case, asarray: Convert = np.asarray
) -> Callable[[Arrays], dict[str, Any]]:
    """Return the function from the case's inputs to the outputs that have cotangents, and nothing else."""
    if case.op == "rotary":
        return lambda inputs: rotation.forward(library, case, inputs, asarray)
    if case.op == "packed":
        return lambda inputs: packs.attend(library, case, inputs, asarray, return_lse=True)
    if case.op not in LAYERS:
        return lambda inputs: _attention_call(library, inputs, call(case, inputs, asarray), return_lse=True)

    def out(inputs: Arrays) -> dict[str, Any]:
        layer, called_with = make_layer(library, case, inputs)
        return {"out": layer(*called_with)}

    return out


def call(case: Case, inputs: Arrays, asarray: Convert = np.asarray) -> dict[str, Any]:
    """Return the keyword arguments of a case's attention call, every parameter spelled out.

    `asarray` takes the integers of rules and positions to the library.
    """
    parameters = case.parameters
    positions = ("query_positions", "key_positions")
    given = {"mask": _mask(parameters["mask"], inputs, asarray), "bias": _bias(parameters["bias"], inputs, asarray)}
    given |= {"scale": _scale(parameters["scale"], inputs["query"].shape[-1])}
    given |= {name: parameters[name] for name in ("softcap", "layout")}
    given |= {name: _integers(parameters[name], inputs, asarray) for name in positions}
    if case.op in ("attention", "packed"):
        name, dropped = parameters["sinks"], parameters["dropout"]
        given |= {"sinks": None if name is None else inputs[name], "dropout": _dropout(dropped, inputs, asarray)}
    if rules.sets_positions(parameters["mask"]):
        # The rule sets the positions of the call, which then gives none.
        given = {name: value for name, value in given.items() if name not in positions or parameters[name] != 0}
    return given


def gradients(
    library: ModuleType, case: Case, inputs: Arrays, cotangents: Arrays, asarray: Convert = np.asarray
) -> dict[str, Any]:
    """Return the gradients of a case by the names of its inputs, by the package's own `vjp` where it has one."""
    if case.op == "rotary":
        return rotation.gradients(library, case, cotangents, asarray)
    ways = {"packed": packs.as_one_call}
    arguments = ways[case.op](library, case, inputs, asarray) if case.op in ways else call(case, inputs, asarray)
    result, pullback = library.vjp(inputs["query"], inputs["key"], inputs["value"], **arguments)
    out = cotangents["out"] if "out" in cotangents else 0 * result.out
    found = pullback(out, cotangents.get("lse"))
    named = {name: getattr(found, name) for name in ("query", "key", "value")}
    if case.parameters["sinks"] is not None:
        named[case.parameters["sinks"]] = found.sinks
    return named | _bias_parts(case.parameters["bias"], found.bias)


def tangents(
    library: ModuleType, case: Case, inputs: Arrays, moved: Arrays, asarray: Convert = np.asarray
) -> dict[str, Any]:
    """Return `tangent.out` and `tangent.lse` along the tangents of the inputs, by the package's own `jvp`."""
    from attention_core import Gradients

    names = {"query": "query", "key": "key", "value": "value", "sinks": case.parameters["sinks"]}
    rule = case.parameters["bias"]
    names["bias"] = rule.get("input", "bias") if rule is not None and rule["rule"] == "dense" else None
    along = Gradients(**{slot: moved.get(name) for slot, name in names.items()})
    _, found = library.jvp(inputs["query"], inputs["key"], inputs["value"], along, **call(case, inputs, asarray))
    return {f"tangent.{name}": array for name, array in found._asdict().items() if array is not None}


def make_layer(library: ModuleType, case: Case, inputs: Arrays) -> tuple[Any, tuple[Any, ...]]:
    """Return the layer with the case's weights, and the inputs that it is called with."""
    names = [name for name in ("x", "x_1", "x_2") if name in inputs]
    state = {name: array for name, array in inputs.items() if name not in names}
    return getattr(library, case.op).from_state_dict(state), tuple(inputs[name] for name in names)


def _mask(rule: Any, inputs: Arrays, asarray: Convert) -> Any:
    """The rule as a value of `masks`."""
    from attention_core import masks

    if rule is None:
        return None
    name, parts = rule["rule"], [_mask(part, inputs, asarray) for part in rule.get("of", ())]
    if name == "not":
        return ~parts[0]
    if name in GATES:
        found = parts[0]
        for part in parts[1:]:
            found = getattr(found, GATES[name])(part)
        return found
    if name == "dense":
        return masks.dense(inputs[rule.get("input", "mask")])
    arguments = {key: value for key, value in rule.items() if key != "rule"}
    made = {key: value if value is None else _integers(value, inputs, asarray) for key, value in arguments.items()}
    return getattr(masks, name)(**made)


def _bias(rule: Any, inputs: Arrays, asarray: Convert) -> Any:
    """The rule as a value of `biases`."""
    from attention_core import Bias, biases

    if rule is None:
        return None
    name = rule["rule"]
    if name == "sum":
        parts = (_bias(part, inputs, asarray) for part in rule["of"])
        first, *others = (biases.dense(part) if not isinstance(part, Bias) else part for part in parts)
        return sum(others, start=first)
    if name == "dense":
        return inputs[rule.get("input", "bias")]
    if name == "alibi":
        slopes = rule["slopes"]
        if isinstance(slopes, list):
            return biases.alibi(asarray(np.asarray(slopes, np.float64)))
        return biases.alibi(inputs[slopes] if isinstance(slopes, str) else slopes)
    arguments = {key: value for key, value in rule.items() if key not in ("rule", "table")}
    return biases.relative(inputs[rule["table"]], **arguments)


def _bias_parts(rule: Any, cotangent: Any) -> dict[str, Any]:
    """The arrays that a bias's cotangent holds, by the names of the inputs that its rule reads."""
    if rule is None or cotangent is None:
        return {}
    name = rule["rule"]
    if name == "sum":
        # `a + b + c` is `(a + b) + c`.
        *before, last = rule["of"]
        if not before:
            return _bias_parts(last, cotangent)
        return _bias_parts({**rule, "of": before}, cotangent.left) | _bias_parts(last, cotangent.right)
    if name == "dense":
        return {rule.get("input", "bias"): getattr(cotangent, "array", cotangent)}
    if name == "alibi":
        return {rule["slopes"]: cotangent.slopes} if isinstance(rule["slopes"], str) else {}
    return {rule["table"]: cotangent.table}


def _dropout(given: Any, inputs: Arrays, asarray: Convert) -> Any:
    from attention_core import dropout

    if given is None:
        return None
    if "seed" in given:
        return dropout(given["rate"], _integers(given["seed"], inputs, asarray), origin=tuple(given["origin"]))
    return dropout(given["rate"], keep=inputs[given["keep"]])


def _scale(scale: Any, depth: int) -> Any:
    """None where it is the default, which is then what the case asks."""
    return None if scale == (depth**-0.5 if depth else 1.0) else scale


def _merge(library: ModuleType, case: Case, inputs: Arrays) -> dict[str, Any]:
    parts = range(len(inputs) // 2)
    outs, lses = [inputs[f"outs.{n}"] for n in parts], [inputs[f"lses.{n}"] for n in parts]
    return dict(zip(("out", "lse"), library.merge(outs, lses, layout=case.parameters["layout"]), strict=True))


def _integers(value: Any, inputs: Arrays, asarray: Convert) -> Any:
    if isinstance(value, int):
        return value
    return inputs[value] if isinstance(value, str) else asarray(np.asarray(value))


def _embedding(inputs: Arrays) -> dict[str, Any]:
    from attention_core.arrays import array_namespace

    weight, indices = inputs["weight"], inputs["indices"]
    return {"out": array_namespace(("weight", weight)).take(weight, indices, axis=0)}


def _projections(inputs: Arrays) -> dict[str, Any]:
    return {name: inputs["x"] @ inputs[f"W_{name}"] for name in ("query", "key", "value")}


def _scores(library: ModuleType, case: Case, inputs: Arrays, asarray: Convert) -> dict[str, Any]:
    arguments = {**call(case, inputs, asarray), "stage": case.parameters["stage"]}
    return {"scores": library.attention_scores(inputs["query"], inputs["key"], **arguments)}


def _attention(library: ModuleType, case: Case, inputs: Arrays, asarray: Convert) -> dict[str, Any]:
    arguments = call(case, inputs, asarray)
    # What is not asked for is not returned: weights would choose another kernel.
    asked = {f"return_{name}": name in case.expected for name in ("lse", "weights")}
    found = _attention_call(library, inputs, arguments, **asked)
    for stage in STAGES:
        if f"stage.{stage}" in case.expected:
            arguments = {name: value for name, value in arguments.items() if name not in ("sinks", "dropout")}
            arguments["stage"] = stage
            found[f"stage.{stage}"] = library.attention_scores(inputs["query"], inputs["key"], **arguments)
    return found


def _attention_call(library: ModuleType, inputs: Arrays, arguments: Any, **returned: bool) -> dict[str, Any]:
    query, key, value = inputs["query"], inputs["key"], inputs["value"]
    result = library.dot_product_attention(query, key, value, **arguments, **returned)
    if not any(returned.values()):
        return {"out": result}
    return {name: array for name, array in result._asdict().items() if array is not None}


def _layer(library: ModuleType, case: Case, inputs: Arrays) -> dict[str, Any]:
    layer, called_with = make_layer(library, case, inputs)
    steps = {f"step.{name}": array for name, array in layer.steps(*called_with).items()}
    return {"out": layer(*called_with), **steps}
