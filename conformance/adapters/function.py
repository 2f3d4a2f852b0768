"""A user's own attention, `module:function`, or a whole adapter of the user's, `module:object`.

A function is called as `fn(query, key, value)` with fresh NumPy arrays, plus, by keyword, only what the case needs:
`mask` (boolean, True = may attend) where there is one, `scale` where it is not `1/sqrt(D)`. It returns `out`, or a
mapping of output names (`out`, `lse`, `weights`, `gradient.query`, ...). It is asked the cases of the op `attention`:
the article's self-, multi-head, cross- and causal attention from query, key and value. An object with `supports` and
`compute` is taken as an adapter and asked everything.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conformance.adapters.base import Adapter
from conformance.cases import Case
from conformance.errors import UsageError

ONLY_ATTENTION = "a function of query, key and value is asked the `attention` cases only"
KNOWN_PARAMETERS = ("mask", "scale")


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
        needed = _needed(case)
        unknown = [name for name in needed if name not in KNOWN_PARAMETERS]
        if unknown:
            return f"the case needs `{unknown[0]}`, which is not passed to functions"
        refused = [name for name in needed if self.accepted is not None and name not in self.accepted]
        return f"the function takes no `{refused[0]}`" if refused else ""

    def compute(self, case: Case, dtype: str) -> Mapping[str, Any]:
        """Call the function; what is no mapping is `out`."""
        inputs = case.inputs_as(dtype)
        given = {"mask": inputs.get("mask"), "scale": case.parameters["scale"]}
        keywords = {name: given[name] for name in _needed(case)}
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
    """The parameters without which the case is another question."""
    parameters = case.parameters
    plain = {
        "layout": "BHLD",
        "query_positions": 0,
        "key_positions": 0,
        "scale": case.inputs["query"].shape[-1] ** -0.5,
    }
    needed = [name for name, value in parameters.items() if value != plain.get(name)]
    # Positions act through a rule; the mask that is passed is the rule's table.
    return [name for name in needed if name not in ("query_positions", "key_positions")]


def _keywords(function: Callable[..., Any]) -> set[str] | None:
    """The names of the keywords that a function takes; None where it takes any, or does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
