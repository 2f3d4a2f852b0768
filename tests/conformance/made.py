"""Cases made on the spot for what reads cases: small, with unequal sizes, expected by the plain formula in float64.

They test adapters, tables and diagnosis; what is right is tested by the recorded vectors.
"""

import numpy as np

from conformance import plain, rules
from conformance.cases import Case, Expected, Group, Stamp, Variant

CALL = {
    "mask": None,
    "bias": None,
    "scale": None,
    "softcap": None,
    "sinks": None,
    "dropout": None,
    "query_positions": 0,
    "key_positions": 0,
    "layout": "BHLD",
}
OUTPUTS = ("out", "lse", "weights", "stage.scaled", "stage.capped", "stage.biased", "stage.masked")


def arrays(query=(2, 4, 3, 5), key_heads=2, keys=7, value_depth=5, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {
        "query": query,
        "key": (*query[:-3], key_heads, keys, query[-1]),
        "value": (*query[:-3], key_heads, keys, value_depth),
    }
    if len(query) == 2:
        shapes = {"query": query, "key": (keys, query[-1]), "value": (keys, value_depth)}
    # Eighths are exact in every dtype.
    return {name: (rng.integers(-16, 17, shape) / 8).astype(np.float32) for name, shape in shapes.items()}


def made(name="made", inputs=None, dtypes=("float64", "float32"), variants=None, outputs=OUTPUTS, **parameters):
    """Return a case and its group; `variants` maps names to switches of `conformance.plain`."""
    inputs = dict(inputs if inputs is not None else arrays())
    call = {**CALL, "scale": inputs["query"].shape[-1] ** -0.5, **parameters}
    case = Case(
        id=name,
        name=name,
        group="made",
        section=None,
        why="a test",
        failure="a test fails",
        since="0.1.0",
        op="attention",
        inputs=inputs,
        parameters=call,
        dtypes=dtypes,
        expected={},
    )
    found = answers(case)
    expected = {each: Expected(found[each]) for each in outputs}
    wrong = tuple(
        Variant(each, f"the other side of {each}", {"out": answers(case, plain.Switches(**switches))["out"]})
        for each, switches in (variants or {}).items()
    )
    case = Case(**{**vars(case), "expected": expected, "variants": wrong})
    worst = {"float64": 1e-15, "float32": 5e-7, "float16": 2e-3, "bfloat16": 2e-2}
    return Group("made", "Made", Stamp(1, "none", "3", "any"), worst, (case,)), case


def answers(case, switches=None):
    layout = case.parameters["layout"]
    swap = layout == "BLHD" and case.inputs["query"].ndim > 2
    query, key, value = (case.inputs[name].astype(np.float64) for name in ("query", "key", "value"))
    if swap:
        query, key, value = (np.swapaxes(x, -2, -3) for x in (query, key, value))
    parameters = case.parameters
    call = plain.Call(
        query,
        key,
        value,
        parameters["scale"],
        rules.mask_table(case),
        rules.bias_table(case),
        parameters["softcap"],
        rules.array_of(case, "sinks"),
    )
    found = plain.attend(call, switches)
    stages = {f"stage.{name}": found[name] for name in ("scaled", "capped", "biased", "masked")}
    out = np.swapaxes(found["out"], -2, -3) if swap else found["out"]
    return {"out": out, "lse": found["lse"], "weights": found["weights"], **stages}
