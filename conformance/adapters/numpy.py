"""attention_np, and attention_core on other libraries' arrays: public calls, gradients by `vjp`, tangents by `jvp`."""

import importlib
from collections.abc import Mapping
from importlib import metadata
from types import ModuleType
from typing import Any

import numpy as np

from conformance.adapters import ours
from conformance.adapters.base import Adapter, Lacking
from conformance.cases import Case

NO_LAYER_VJP = "the layer has no `vjp`"


class AttentionOnArrays:
    """One of our packages on the arrays of one library; a subclass says how arrays go to the library and back."""

    def __init__(self, name: str, library: ModuleType, version: str) -> None:
        self.name = name
        self.library = library
        self.version = version

    def asarray(self, array: np.ndarray) -> Any:
        """Take a NumPy array to the library."""
        return array

    def asnumpy(self, array: Any) -> np.ndarray:
        """Take an array of the library back."""
        return np.asarray(array)

    def supports(self, case: Case) -> str:
        """Say yes to every op of the article."""
        return ours.unsupported(case)

    def compute(self, case: Case, dtype: str) -> Mapping[str, Any]:
        """Call the package with the library's arrays."""
        inputs, cotangents, tangents = (
            {name: self.asarray(array) for name, array in arrays.items()}
            for arrays in (case.inputs_as(dtype), case.cotangents_as(dtype), case.tangents_as(dtype))
        )
        outputs = ours.forward(self.library, case, self.asarray)(inputs)
        outputs |= self._gradients(case, inputs, cotangents)
        if tangents:
            outputs |= ours.tangents(self.library, case, inputs, tangents, self.asarray)
        return {name: x if isinstance(x, Lacking) else self.asnumpy(x) for name, x in outputs.items()}

    def _gradients(self, case: Case, inputs: dict[str, Any], cotangents: dict[str, Any]) -> dict[str, Any]:
        wanted = case.gradients()
        if not wanted:
            return {}
        if case.op not in ours.LAYERS:
            found = ours.gradients(self.library, case, inputs, cotangents, self.asarray)
            return {f"gradient.{name}": found[name] for name in wanted}
        layer, called_with = ours.make_layer(self.library, case, inputs)
        if not hasattr(layer, "vjp"):
            return {f"gradient.{name}": Lacking(NO_LAYER_VJP) for name in wanted}
        _, pullback = layer.vjp(*called_with)
        return {f"gradient.{name}": array for name, array in _flat(pullback(cotangents["out"]), case).items()}


def _flat(gradients: Any, case: Case) -> dict[str, Any]:
    """The layer's gradients, `(inputs..., layer)`, by the names of the inputs and of the `state_dict`."""
    *inputs, layer = gradients
    names = [name for name in ("x", "x_1", "x_2") if name in case.inputs]
    return {**dict(zip(names, inputs, strict=True)), **layer.state_dict()}


def version_of(distribution: str) -> str:
    """Return an installed distribution's version, or that it runs from a checkout."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "checkout"


def make() -> Adapter:
    """Import attention_np."""
    return AttentionOnArrays("numpy", importlib.import_module("attention_np"), version_of("array-attention"))
