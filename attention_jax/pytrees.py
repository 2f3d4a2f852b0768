"""Masks, biases and layers as pytrees: arrays are children, Python values are static.

Which fields are which is decided by the instance, not by its class: ``key_lengths(3)`` is all static and may steer
a static schedule, ``key_lengths(array)`` may be traced, differentiated past, and mapped over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import jax

from attention_core.values import Value
from attention_core.variants import Layer

__all__ = ["register_all"]

Static = tuple[tuple[str, Any], ...]


def register_all() -> None:
    """Register every mask, bias, dropout and layer class of the core."""
    for cls in _subclasses(Value):
        jax.tree_util.register_pytree_with_keys(cls, _flatten_value_with_keys, _unflattener(cls), _flatten_value)
    for cls in _subclasses(Layer):
        names = [field.name for field in fields(cls)]
        jax.tree_util.register_dataclass(cls, data_fields=names, meta_fields=[])


def _subclasses(base: type[Any]) -> Iterator[type[Any]]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)


def _flatten_value(value: Any) -> tuple[tuple[Any, ...], tuple[tuple[str, ...], Static]]:
    names = value.data_names()
    static = tuple((f.name, getattr(value, f.name)) for f in fields(value) if f.name not in names)
    return tuple(getattr(value, name) for name in names), (names, static)


def _flatten_value_with_keys(value: Any) -> tuple[tuple[Any, ...], tuple[tuple[str, ...], Static]]:
    children, auxiliary = _flatten_value(value)
    keys = map(jax.tree_util.GetAttrKey, auxiliary[0])
    return tuple(zip(keys, children, strict=True)), auxiliary


def _unflattener(cls: type) -> Any:
    def unflatten(auxiliary: tuple[tuple[str, ...], Static], children: tuple[Any, ...]) -> Any:
        names, static = auxiliary
        return cls(**dict(zip(names, children, strict=True)), **dict(static))

    return unflatten
