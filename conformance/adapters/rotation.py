"""Rotary embedding by our public names."""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from conformance.cases import Case

Arrays = Mapping[str, Any]
Convert = Callable[[np.ndarray], Any]


def forward(library: ModuleType, case: Case, inputs: Arrays, asarray: Convert) -> dict[str, Any]:
    """Call `rotate`."""
    places = case.parameters["positions"]
    positions = places if isinstance(places, int) else asarray(np.asarray(places))
    return {"out": library.rotate(inputs["x"], positions, _rotary(library, case), layout=case.parameters["layout"])}


def gradients(library: ModuleType, case: Case, cotangents: Arrays, asarray: Convert) -> dict[str, Any]:
    """Return the gradient of `x` as documented: the cotangent rotated by minus the positions."""
    layout, places = case.parameters["layout"], case.parameters["positions"]
    axis = -3 if layout == "BLHD" and cotangents["out"].ndim > 2 else -2
    rows = np.arange(cotangents["out"].shape[axis]) + places if isinstance(places, int) else np.asarray(places)
    return {"x": library.rotate(cotangents["out"], asarray(-rows), _rotary(library, case), layout=layout)}


def _rotary(library: ModuleType, case: Case) -> Any:
    p = case.parameters
    return library.Rotary(p["base"], p["dim"], p["interleaved"], _scaling(library, p["scaling"]))


def _scaling(library: ModuleType, rule: Mapping[str, Any] | None) -> Any:
    if rule is None:
        return None
    arguments = {name: value for name, value in rule.items() if name != "rule"}
    return getattr(library.rotary, rule["rule"])(**arguments)
