"""The second source for packed sequences: each sequence asked alone, row by row, gradients added where they meet."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.record import loops_call
from conformance.record.loops import Arrays, Loops


def run(inputs: Arrays, parameters: Mapping[str, Any], cotangents: Arrays, wrt: tuple[str, ...]) -> dict[str, Any]:
    """Return outputs and gradients of a packed case."""
    queries, keys = inputs["query"].shape, inputs["key"].shape
    found = {
        "out": np.zeros((*queries[:2], inputs["value"].shape[-1])),
        "lse": np.full((queries[1], queries[0]), -np.inf),
        "weights": np.zeros((queries[1], queries[0], keys[0])),
    }
    if parameters["sinks"] is not None:
        found["lse"][...] = inputs[parameters["sinks"]][:, None]
    slopes = {f"gradient.{name}": np.zeros(inputs[name].shape) for name in wrt}
    if "gradient.sinks" in slopes and "lse" in cotangents:
        # A row that belongs to nobody has its sink as lse.
        slopes["gradient.sinks"] += cotangents["lse"][:, parameters["query_offsets"][-1] :].sum(-1)
    for n in range(len(parameters["query_offsets"]) - 1):
        _add_sequence(n, inputs, parameters, cotangents, found, slopes)
    return {**found, **slopes}


def _add_sequence(
    n: int, inputs: Arrays, parameters: Mapping[str, Any], cotangents: Arrays, found: Any, slopes: Any
) -> None:
    rows, columns = (slice(*parameters[f"{name}_offsets"][n : n + 2]) for name in ("query", "key"))
    own = dict(inputs)
    own |= {"query": inputs["query"][rows], "key": inputs["key"][columns], "value": inputs["value"][columns]}
    own |= {name: inputs[name][..., rows, columns] for name in ("mask", "bias", "keep") if name in inputs}
    first = parameters["query_positions"]
    case = Loops(own, {**parameters, "query_positions": first if isinstance(first, int) else first[n]})
    outputs = loops_call.outputs(case)
    found["out"][rows], found["lse"][:, rows] = outputs["out"], outputs["lse"]
    found["weights"][:, rows, columns] = outputs["weights"]
    if not slopes:
        return
    seeds = {"out": cotangents["out"][rows]}
    seeds |= {"lse": cotangents["lse"][:, rows]} if "lse" in cotangents else {}
    names = tuple(name.removeprefix("gradient.") for name in slopes)
    for name, slope in loops_call.gradients(case, seeds, names).items():
        where: Any = {"gradient.query": rows, "gradient.key": columns, "gradient.value": columns}.get(name, ...)
        where = (..., rows, columns) if name == "gradient.bias" else where
        slopes[name][where] += slope
