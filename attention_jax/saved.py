"""Masks, biases, dropout and layers in what ``jax.export`` saves: their Python values, as JSON.

Arrays are arguments of the exported function; what stands here is only the structure of its arguments. A function that
a rule holds is saved by its name, and its module must be imported before the file is read: nothing is imported by it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any

from jax import export

from attention_core.values import Value

__all__ = ["Kept", "let_export"]


@dataclass(frozen=True)
class Kept:
    """A Python value in its place among arrays; its type tells ``True`` from ``1``."""

    kind: type
    value: Any


def let_export(cls: type[Any]) -> None:
    """Let ``jax.export`` save functions that take or return a ``cls``."""
    name = ":".join(_name_of(cls))
    export.register_pytree_node_serialization(
        cls, serialized_name=name, serialize_auxdata=_to_bytes, deserialize_auxdata=_from_bytes
    )


def _to_bytes(auxiliary: Any) -> bytes:
    return json.dumps(_encode(auxiliary)).encode()


def _from_bytes(text: bytes | bytearray) -> Any:
    return _decode(json.loads(text))


def _encode(x: Any) -> Any:
    """Return what JSON holds: all but numbers, strings and ``None`` as a list that begins with its kind."""
    if isinstance(x, tuple):
        return ["tuple", *map(_encode, x)]
    if isinstance(x, Kept):
        return ["kept", _encode(x.value)]
    if isinstance(x, Value):
        return ["value", *_name_of(type(x)), {f.name: _encode(getattr(x, f.name)) for f in fields(x)}]
    return ["function", *_name_of(x)] if callable(x) else x


def _decode(x: Any) -> Any:
    if not isinstance(x, list):
        return x
    kind, *rest = x
    if kind == "tuple":
        return tuple(map(_decode, rest))
    if kind == "kept":
        value = _decode(*rest)
        return Kept(type(value), value)
    if kind == "value":
        return _find(*rest[:2])(**{name: _decode(part) for name, part in rest[2].items()})
    return _find(*rest)


def _name_of(x: Callable[..., Any]) -> tuple[str, str]:
    module, name = x.__module__, x.__qualname__
    if "<" in name:
        raise ValueError(f"jax.export saves functions by name, and {name} of {module} has none: define it by `def`")
    return module, name


def _find(module: str, name: str) -> Any:
    if module not in sys.modules:
        raise ValueError(f"what jax.export saved holds {name} of {module}: import {module} before reading it")
    return reduce(getattr, name.split("."), sys.modules[module])
