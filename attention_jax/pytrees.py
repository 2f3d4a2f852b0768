"""Masks, biases, layers and caches as pytrees: arrays are children, Python values are static.

Which fields are which is decided by the instance, not by its class: ``key_lengths(3)`` is all static and may steer
a static schedule, ``key_lengths(array)`` may be traced, differentiated past, and mapped over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import jax

from attention_core.cache import Cache
from attention_core.values import Value, is_static
from attention_core.variants import Layer

from .saved import Kept, let_export

__all__ = ["register_all", "register_layer"]

Frames = tuple[tuple[str, Any], ...]


def register_all() -> None:
    """Register every mask, bias, dropout, layer and cache class of the core."""
    for cls in _subclasses(Value):
        jax.tree_util.register_pytree_with_keys(cls, _flatten_value_with_keys, _unflattener(cls), _flatten_value)
        let_export(cls)
    for holder in (*_subclasses(Layer), *_subclasses(Cache)):
        if is_dataclass(holder):
            register_layer(holder)


def register_layer(cls: type[Any]) -> None:
    """Register a layer or cache class: its options are static; arrays, layers within it, and ``None`` are children.

    Your own layers, made after ``attention_jax`` was imported, are registered by this call. ``jax.export`` saves layers
    by their class's name, and so not those of a class that was made inside a function.
    """
    options = cls.option_names()
    arrays = [f.name for f in fields(cls) if f.name not in options]
    jax.tree_util.register_dataclass(cls, data_fields=arrays, meta_fields=list(options))
    if "<" not in cls.__qualname__:
        let_export(cls)


def _subclasses(base: type[Any]) -> Iterator[type[Any]]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)


def _take_apart(x: Any) -> tuple[tuple[Any, ...], Any]:
    """Return the arrays of a field, and what puts them back among its Python values."""
    if not isinstance(x, tuple):
        return ((), Kept(type(x), x)) if is_static(x) else ((x,), None)
    parts = [_take_apart(part) for part in x]
    return tuple(child for children, _ in parts for child in children), tuple(frame for _, frame in parts)


def _put_together(frame: Any, children: Iterator[Any]) -> Any:
    if isinstance(frame, Kept):
        return frame.value
    return next(children) if frame is None else tuple(_put_together(part, children) for part in frame)


def _flatten_value(value: Any) -> tuple[tuple[Any, ...], Frames]:
    parts = [(f.name, *_take_apart(getattr(value, f.name))) for f in fields(value)]
    return tuple(child for _, children, _ in parts for child in children), tuple((n, frame) for n, _, frame in parts)


def _flatten_value_with_keys(value: Any) -> tuple[tuple[Any, ...], Frames]:
    children, frames = _flatten_value(value)
    counts = [(f.name, len(_take_apart(getattr(value, f.name))[0])) for f in fields(value)]
    names = (name if count == 1 else f"{name}[{n}]" for name, count in counts for n in range(count))
    return tuple(zip(map(jax.tree_util.GetAttrKey, names), children, strict=True)), frames


def _unflattener(cls: type) -> Any:
    def unflatten(frames: Frames, children: Any) -> Any:
        rest = iter(children)
        return cls(**{name: _put_together(frame, rest) for name, frame in frames})

    return unflatten
