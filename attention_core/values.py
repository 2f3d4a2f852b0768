"""The base of masks and biases: frozen dataclasses whose fields are Python values (static) or arrays (data)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cache
from numbers import Integral
from typing import Any, Self

from .arrays import describe, dtype_name

__all__ = ["Shown", "Value", "integer_or_array", "is_static", "shown", "static_int"]


@dataclass(frozen=True, eq=False, repr=False)
class Value:
    """A frozen dataclass that compares, hashes and prints by its fields, and knows which of them hold arrays.

    Python values are compared by value and make up the hash; arrays are compared by identity, and a value that holds
    one is not hashable, since what it holds may change.
    """

    def is_static(self) -> bool:
        """Say whether no field holds an array, so that equal values mean equal pairs for ever."""
        return not self.data_names()

    @classmethod
    @cache
    def _names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))

    def data_names(self) -> tuple[str, ...]:
        """Names of the fields that hold arrays, or other values that do."""
        return tuple(name for name in self._names() if not is_static(getattr(self, name)))

    def arrays(self) -> tuple[Any, ...]:
        """All arrays within, in the order of the fields."""
        return tuple(x for name in self.data_names() for x in _arrays_in(getattr(self, name)))

    def map_arrays(self, fn: Callable[..., Any], *others: Any) -> Self:
        """Return this value with each array replaced by ``fn`` of it, and of those in its place in the ``others``."""
        mapped = {name: _mapped(fn, *(getattr(x, name) for x in (self, *others))) for name in self.data_names()}
        return replace(self, **mapped)

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._names())

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, Value)
        return all(map(_same, self._fields(), other._fields()))

    def __hash__(self) -> int:
        if not self.is_static():
            raise TypeError(
                f"{self!r} holds arrays and is not hashable: "
                "under jax.jit pass it as an ordinary argument, not a static one"
            )
        return hash((type(self), self._fields()))

    def __repr__(self) -> str:
        return f"{self._call()}({', '.join(map(_show, self._fields()))})"

    def _call(self) -> str:
        return type(self).__name__


class Shown:
    """A dataclass that prints in a line: of arrays their dtype and shape, and nothing of fields that are ``None``.

    >>> from dataclasses import dataclass
    >>> from attention_core.values import Shown
    >>> import numpy as np
    >>> @dataclass
    ... class Weights(Shown):
    ...     weight: object
    ...     bias: object = None
    >>> Weights(np.ones((2, 3)))
    Weights(weight=<float64 (2, 3)>)
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        type.__setattr__(cls, "__repr__", cls.__repr__)  # where dataclass looks before it writes one of all numbers

    def __repr__(self) -> str:
        return shown(self, [f.name for f in fields(self)])  # type: ignore[arg-type]  # a dataclass


def shown(x: Any, names: Iterable[str]) -> str:
    """Return the class of ``x`` and its fields in a line, of arrays their dtype and shape."""
    parts = ((name, getattr(x, name)) for name in names)
    return f"{type(x).__name__}({', '.join(f'{name}={_show(part)}' for name, part in parts if part is not None)})"


def is_static(x: Any) -> bool:
    """Say whether ``x`` is a Python value; what is not is an array, or holds one."""
    if isinstance(x, tuple):
        return all(map(is_static, x))
    if isinstance(x, Value):
        return x.is_static()
    return x is None or isinstance(x, (bool, int, float, str)) or (callable(x) and not hasattr(x, "shape"))


def _mapped(fn: Callable[..., Any], x: Any, *others: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(_mapped(fn, *parts) for parts in zip(x, *others, strict=True))
    if isinstance(x, dict):
        return {name: _mapped(fn, part, *(other[name] for other in others)) for name, part in x.items()}
    if isinstance(x, Value):
        return x.map_arrays(fn, *others)
    return x if is_static(x) else fn(x, *others)


def _arrays_in(x: Any) -> tuple[Any, ...]:
    if isinstance(x, (tuple, list, dict)):
        return tuple(a for part in (x.values() if isinstance(x, dict) else x) for a in _arrays_in(part))
    if isinstance(x, Value):
        return x.arrays()
    return () if is_static(x) else (x,)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b or (is_static(a) and is_static(b) and type(a) is type(b) and bool(a == b)) or _equal_values(a, b)


def _equal_values(a: Any, b: Any) -> bool:
    return isinstance(a, Value) and isinstance(b, Value) and a == b


def _show(x: Any) -> str:
    if isinstance(x, tuple):
        return f"({', '.join(map(_show, x))}{',' if len(x) == 1 else ''})"
    if callable(x) and not hasattr(x, "shape"):
        return getattr(x, "__qualname__", repr(x))
    return f"<{dtype_name(x.dtype)} {tuple(x.shape)}>" if hasattr(x, "shape") and hasattr(x, "dtype") else repr(x)


def integer_or_array(name: str, x: Any) -> Any:
    """Return a Python ``int`` or an integer array of any library; ``TypeError`` for anything else."""
    if isinstance(x, Integral) and not isinstance(x, bool):
        return int(x)
    dtype = dtype_name(getattr(x, "dtype", ""))
    if "int" not in dtype:
        raise TypeError(f"`{name}` must be an integer or an integer array; got {describe(x)}")
    return x


def static_int(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a Python integer from ``least`` to ``most``; never an array, so that what holds it stays static."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"`{name}` must be a Python integer; got {describe(value)}")
    number = int(value)
    if number < least:
        raise ValueError(f"`{name}` must be at least {least}; got {number}")
    if most is not None and number > most:
        raise ValueError(f"`{name}` must be at most {most}; got {number}")
    return number
