"""attention_np: forward by its public calls, gradients by `vjp` and the layers' own `vjp`."""

import importlib
from collections.abc import Mapping
from importlib import metadata
from types import ModuleType
from typing import Any

from conformance.adapters import ours
from conformance.adapters.base import Adapter, Lacking
from conformance.cases import Case

NO_LAYER_VJP = "the layer has no `vjp`"


class AttentionNumPy:
    """The adapter of attention_np."""

    name = "numpy"

    def __init__(self, library: ModuleType) -> None:
        self.library = library
        self.version = _version("array-attention")

    def supports(self, case: Case) -> str:
        """Say yes to every op of the article."""
        return ours.unsupported(case)

    def compute(self, case: Case, dtype: str) -> Mapping[str, Any]:
        """Call attention_np with NumPy arrays."""
        inputs = case.inputs_as(dtype)
        outputs = ours.forward(self.library, case)(inputs)
        return {**outputs, **self._gradients(case, inputs, case.cotangents_as(dtype))}

    def _gradients(self, case: Case, inputs: dict[str, Any], cotangents: dict[str, Any]) -> dict[str, Any]:
        wanted = case.gradients()
        if not wanted:
            return {}
        if case.op not in ours.LAYERS:
            return self._attention_gradients(case, inputs, cotangents)
        layer, called_with = ours.make_layer(self.library, case, inputs)
        if not hasattr(layer, "vjp"):
            return {f"gradient.{name}": Lacking(NO_LAYER_VJP) for name in wanted}
        _, pullback = layer.vjp(*called_with)
        return {f"gradient.{name}": array for name, array in _flat(pullback(cotangents["out"]), case).items()}

    def _attention_gradients(self, case: Case, inputs: dict[str, Any], cotangents: dict[str, Any]) -> dict[str, Any]:
        query, key, value = inputs["query"], inputs["key"], inputs["value"]
        _, pullback = self.library.vjp(query, key, value, **ours.call(case, inputs))
        found = pullback(cotangents["out"], cotangents.get("lse"))
        return {f"gradient.{name}": getattr(found, name) for name in case.gradients()}


def _flat(gradients: Any, case: Case) -> dict[str, Any]:
    """The layer's gradients, `(inputs..., layer)`, by the names of the inputs and of the `state_dict`."""
    *inputs, layer = gradients
    names = [name for name in ("x", "x_1", "x_2") if name in case.inputs]
    return {**dict(zip(names, inputs, strict=True)), **layer.state_dict()}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "checkout"


def make() -> Adapter:
    """Import attention_np."""
    return AttentionNumPy(importlib.import_module("attention_np"))
