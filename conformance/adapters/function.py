"""A user's own attention, `module:function`, or a whole adapter of the user's, `module:object`.

A function is called as `fn(query, key, value)` with fresh NumPy arrays, plus, by keyword, only what the case needs:

- `mask`: booleans, True = may attend, that broadcast to `(..., Hq, Lq, Lk)`; the table of every rule and position;
- `bias`, a table likewise; `scale` where it is not `1/sqrt(D)`; `softcap`; `sinks (Hq,)`;
- `layout="BLHD"` where the case's arrays are `(..., L, H, D)`.

It returns `out`, or a mapping of output names (`out`, `lse`, `weights`, `gradient.query`, ...). It is asked the cases
of the op `attention` whose parameters it takes. An object with `supports` and `compute` is taken as an adapter and
asked everything.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conformance import rules
from conformance.adapters.base import Adapter
from conformance.cases import Case
from conformance.errors import UsageError
from conformance.tensors import dtype_named

ONLY_ATTENTION = "a function of query, key and value is asked the `attention` cases only"
INVALID = "a function that is not this project's call need not refuse what that refuses"
DROPOUT = "the case needs `dropout`, which is not passed to functions"


class UserFunction:
    """The adapter of one attention function."""

    version = "yours"

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function
        self.accepted = _keywords(function)

    def supports(self, case: Case) -> str:
        """Say yes to attention cases whose parameters the function takes."""
        if case.op != "attention":
            return ONLY_ATTENTION
        if not case.valid:
            return INVALID
        if case.parameters["dropout"] is not None:
            return DROPOUT
        refused = [name for name in _needed(case) if self.accepted is not None and name not in self.accepted]
        return f"the function takes no `{refused[0]}`" if refused else ""

    def compute(self, case: Case, dtype: str) -> Mapping[str, Any]:
        """Call the function; what is no mapping is `out`."""
        inputs = case.inputs_as(dtype)
        keywords = {name: _given(case, inputs, dtype, name) for name in _needed(case)}
        result = self.function(inputs["query"], inputs["key"], inputs["value"], **keywords)
        return result if isinstance(result, Mapping) else {"out": result}


def make(name: str) -> Adapter:
    """Import `module:attribute`, the working directory included."""
    module_name, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(f"`{name}`: no module `{error.name}` here or installed") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"`{name}`: `{module_name}` has no `{attribute}`")
        found = getattr(found, part)
    if hasattr(found, "supports") and hasattr(found, "compute"):
        adapter: Adapter = found() if isinstance(found, type) else found
        return adapter
    if not callable(found):
        raise UsageError(f"`{name}` is neither a function nor an adapter (an object with `supports` and `compute`)")
    return UserFunction(name, found)


def _needed(case: Case) -> list[str]:
    """The keywords without which the case is another question. Positions act through the tables."""
    parameters = case.parameters
    depth = case.inputs["query"].shape[-1]
    plain = {"layout": "BHLD", "scale": depth**-0.5 if depth else 1.0}
    names = ("mask", "bias", "scale", "softcap", "sinks", "layout")
    return [name for name in names if parameters[name] != plain.get(name)]


def _given(case: Case, inputs: Mapping[str, Any], dtype: str, name: str) -> Any:
    """The value of one keyword."""
    if name == "mask":
        return rules.mask_table(case)
    if name == "bias":
        rule = case.parameters["bias"]
        if rule["rule"] == "dense":
            return inputs[rule.get("input", "bias")]
        table = rules.bias_table(case)
        return None if table is None else table.astype(dtype_named(dtype))
    return inputs[case.parameters["sinks"]] if name == "sinks" else case.parameters[name]


def _keywords(function: Callable[..., Any]) -> set[str] | None:
    """The names of the keywords that a function takes; None where it takes any, or does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
