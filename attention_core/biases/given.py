"""The biases that the caller's own arrays and functions say: an array, an additive rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..arrays import Array, as_array, describe, dtype_name, is_real_floating, jvp_of, sum_to_shape, vjp_of
from ..checks import fits
from ..pairs import Pairs
from ..sizes import Sizes
from ..values import is_static
from .algebra import Bias

__all__ = ["dense", "rule"]


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Bias):
    """The caller's own array."""

    array: Array

    def values(self, pairs: Pairs, dtype: Any) -> Array:
        return pairs.xp.astype(pairs.per_pair(self.array), dtype)

    def vjp(self, pairs: Pairs, cotangent: Array) -> Bias:
        shape = tuple(pairs.per_pair(self.array).shape)
        return Dense(pairs.xp.astype(sum_to_shape(pairs.xp, cotangent, shape), self.array.dtype))

    def may_mask(self) -> bool:
        return True

    def check(self, xp: Any, sizes: Sizes) -> None:
        if not is_real_floating(xp, as_array(xp, self.array).dtype):
            raise TypeError(
                f"`bias` has dtype {dtype_name(self.array.dtype)}; "
                "it must be real floating-point, and booleans are a `mask`"
            )
        if not fits(tuple(self.array.shape), sizes.scores):
            raise ValueError(
                f"`bias` has shape {tuple(self.array.shape)}, "
                f"which does not broadcast to (..., Hq, Lq, Lk) = {sizes.scores}"
            )

    def _call(self) -> str:
        return "dense"


@dataclass(frozen=True, eq=False, repr=False)
class Rule(Bias):
    """An additive rule of the caller's own on index arrays."""

    fn: Callable[..., Array]
    params: tuple[Any, ...]
    pullback: Callable[..., tuple[Any, ...]] | None

    def values(self, pairs: Pairs, dtype: Any) -> Array:
        values = as_array(pairs.xp, self.fn(*_indices(pairs), *self.params))
        if not is_real_floating(pairs.xp, values.dtype):
            raise TypeError(
                f"the function of biases.rule must return real numbers; {self!r} returned {describe(values)}"
            )
        if not fits(tuple(values.shape), pairs.shape):
            raise ValueError(
                f"the function of biases.rule must return numbers that broadcast to {pairs.shape}; "
                f"{self!r} returned shape {tuple(values.shape)}"
            )
        return pairs.xp.astype(values, dtype)

    def vjp(self, pairs: Pairs, cotangent: Array) -> Bias:
        if not self.arrays():
            return self
        if self.pullback is None:
            of_held = self._of_held(pairs, cotangent.dtype)
            return self._with_held(vjp_of(pairs.xp, of_held, self._held(), cotangent))
        cotangents = self.pullback(*_indices(pairs), *self.params, cotangent)
        _check_count(cotangents, len(self.params))
        both = zip(cotangents, self.params, strict=True)
        return self._with_held([_like(pairs.xp, c, p) for c, p in both if not is_static(p)])

    def jvp(self, pairs: Pairs, tangent: Bias, dtype: Any) -> Array:
        if not self.arrays():
            return pairs.xp.zeros((1, 1, 1), dtype=dtype, device=pairs.device)
        assert isinstance(tangent, Rule)
        return jvp_of(pairs.xp, self._of_held(pairs, dtype), self._held(), tangent._held())

    def _held(self) -> tuple[Any, ...]:
        """The parameters that are arrays or hold some; the others are constants."""
        return tuple(p for p in self.params if not is_static(p))

    def _with_held(self, held: Iterable[Any]) -> Rule:
        rest = iter(held)
        return replace(self, params=tuple(p if is_static(p) else next(rest) for p in self.params))

    def _of_held(self, pairs: Pairs, dtype: Any) -> Callable[..., Array]:
        return lambda *held: pairs.xp.broadcast_to(self._with_held(held).values(pairs, dtype), pairs.shape)

    def may_mask(self) -> bool:
        return True

    def _call(self) -> str:
        return "rule"


def _check_count(cotangents: Any, count: int) -> None:
    if not isinstance(cotangents, (tuple, list)) or len(cotangents) != count:
        got = f"{len(cotangents)}" if isinstance(cotangents, (tuple, list)) else describe(cotangents)
        raise ValueError(f"the vjp of biases.rule must return a cotangent of each of the {count} parameters; got {got}")


def _like(xp: Any, cotangent: Any, parameter: Array) -> Any:
    """Check a caller's cotangent and cast it as its parameter; that of an array of integers means nothing."""
    if not hasattr(parameter, "dtype") or not is_real_floating(xp, parameter.dtype):
        return cotangent
    shape = tuple(getattr(cotangent, "shape", ()))
    if shape != tuple(parameter.shape):
        raise ValueError(
            f"the vjp of biases.rule returned a cotangent of shape {shape} "
            f"for a parameter of shape {tuple(parameter.shape)}"
        )
    return xp.astype(as_array(xp, cotangent), parameter.dtype)


def _indices(pairs: Pairs) -> tuple[Array, Array, Array, Array]:
    return pairs.batch, pairs.head, pairs.query_position, pairs.key_position


# The functions that make them


def dense(array: Array) -> Bias:
    """A real array that broadcasts to ``(..., Hq, Lq, Lk)``; where it is ``-inf`` the pair is masked.

    >>> import numpy as np
    >>> from attention_np import biases
    >>> biases.dense(np.zeros((2, 3))) + biases.alibi(2)
    dense(<float64 (2, 3)>) + alibi((0.0625, 0.00390625))
    """
    if not hasattr(array, "dtype") or not hasattr(array, "shape"):
        raise TypeError(f"`bias` must be a bias or a real array; got {describe(array)}")
    if "bool" in str(array.dtype):
        raise TypeError("`bias` is a boolean array: booleans are a `mask`, True = may attend")
    return Dense(array)


def rule(fn: Callable[..., Array], *params: Any, vjp: Callable[..., tuple[Any, ...]] | None = None) -> Bias:
    """A bias of your own: ``fn(batch, head, query_position, key_position, *params) -> real``, on index arrays.

    Gradients to ``params`` come from the library where it can (JAX); elsewhere give
    ``vjp(batch, head, query_position, key_position, *params, cotangent) -> (cotangent of each param, ...)``.

    >>> import numpy as np
    >>> from attention_np import biases
    >>> biases.rule(lambda batch, head, query, key, w: w[head] * (key - query), np.ones(4)).params[0].shape
    (4,)
    """
    for name, function in (("fn", fn), *((("vjp", vjp),) if vjp is not None else ())):
        if not callable(function):
            raise TypeError(f"`{name}` must be a function of index arrays; got {describe(function)}")
    return Rule(fn, params, vjp)
