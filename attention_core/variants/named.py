"""Weights by name: a layer of layers is saved by the dotted names of its fields, as PyTorch's modules are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..arrays import Array, array_namespace, describe
from ..checks import check_dtypes
from .layer import Layer, Parameter

__all__ = ["check_named", "named_arrays", "shape_of", "under", "without"]


def named_arrays(layer: Any, prefix: str = "") -> dict[str, Array]:
    """Return the arrays of a layer by dotted names, ``out_proj.weight``; what is ``None`` has no name."""
    options = layer.option_names()
    found: dict[str, Array] = {}
    for f in fields(layer):
        part = getattr(layer, f.name)
        if f.name in options or part is None:
            continue
        found |= named_arrays(part, f"{prefix}{f.name}.") if isinstance(part, Layer) else {prefix + f.name: part}
    return found


def under(prefix: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands below a prefix, without it: ``under("q_proj", ...)`` holds ``weight`` and ``bias``."""
    start = f"{prefix}."
    return {name.removeprefix(start): x for name, x in weights.items() if str(name).startswith(start)}


def shape_of(weights: Mapping[str, Array], name: str, ndim: int = 2) -> tuple[int, ...]:
    """Return the shape of a weight that tells the layer's sizes, or raise if it is missing or no such array."""
    if not isinstance(weights, Mapping):
        raise TypeError(f"`weights` must be a mapping of names to arrays; got a {type(weights).__qualname__}")
    if name not in weights:
        raise ValueError(f"`weights` must hold `{name}`; it holds {', '.join(map(str, weights)) or 'nothing'}")
    array_namespace((name, weights[name]))
    shape = tuple(weights[name].shape)
    if len(shape) != ndim:
        raise ValueError(f"`{name}` must have {ndim} {'axis' if ndim == 1 else 'axes'}; got shape {shape}")
    return shape


def without(weights: Mapping[str, Array], *buffers: str) -> Mapping[str, Array]:
    """Leave out constants that a checkpoint holds beside its weights, as a causal mask."""
    if not isinstance(weights, Mapping):
        return weights  # for check_named to refuse
    return {name: x for name, x in weights.items() if name not in buffers}


def check_named(weights: Mapping[str, Array], expected: Mapping[str, Parameter]) -> None:
    """Raise for a name that is missing or not expected, for what is no real array, and for another shape."""
    if not isinstance(weights, Mapping):
        raise TypeError(f"`weights` must be a mapping of names to arrays; got {describe(weights)}")
    missing, unexpected = [n for n in expected if n not in weights], [n for n in weights if n not in expected]
    if missing or unexpected:
        raise ValueError(f"`weights` must hold {', '.join(expected)}; missing: {missing}, not expected: {unexpected}")
    check_dtypes(array_namespace(*weights.items()), **weights)
    for name, parameter in expected.items():
        if tuple(weights[name].shape) != parameter.shape:
            raise ValueError(f"`{name}` must have shape {parameter.shape}; got {tuple(weights[name].shape)}")
