"""A bias is a small frozen value that is added to the scores; biases are added with ``+``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..arrays import Array
from ..pairs import Pairs
from ..sizes import Sizes
from ..values import Value

__all__ = ["Bias", "Sum"]


class Bias(Value):
    """Real numbers added to the scores, after scale and soft cap and before the mask; ``-inf`` masks its pair.

    >>> from attention_np import biases
    >>> biases.alibi(2)
    alibi((0.0625, 0.00390625))
    """

    __array_ufunc__ = None  # lets `array + bias` reach __radd__ instead of being tried element by element

    def values(self, pairs: Pairs, dtype: Any) -> Array:
        """Return values of ``dtype`` that broadcast to ``pairs.shape``."""
        raise NotImplementedError(f"{type(self).__qualname__} must define values(pairs, dtype)")

    def vjp(self, pairs: Pairs, cotangent: Array) -> Bias:
        """Return this bias with its arrays replaced by their cotangents, for a cotangent of these pairs' values."""
        raise NotImplementedError(f"{type(self).__qualname__} must define vjp(pairs, cotangent)")

    def jvp(self, pairs: Pairs, tangent: Bias, dtype: Any) -> Array:
        """Return the tangent of the values; ``tangent`` is this bias with its arrays replaced by tangents."""
        return tangent.values(pairs, dtype)  # every bias but a rule is linear in its arrays

    def may_mask(self) -> bool:
        """Say whether some value may be ``-inf``."""
        return False

    def check(self, xp: Any, sizes: Sizes) -> None:
        """Raise if this bias does not fit a call of these sizes."""

    def __add__(self, other: Any) -> Bias:
        return Sum(self, _as_bias(other))

    def __radd__(self, other: Any) -> Bias:
        return Sum(_as_bias(other), self)


def _as_bias(other: Any) -> Bias:
    if isinstance(other, Bias):
        return other
    from .given import dense

    return dense(other)


@dataclass(frozen=True, eq=False, repr=False)
class Sum(Bias):
    """The sum of two biases."""

    left: Bias
    right: Bias

    def values(self, pairs: Pairs, dtype: Any) -> Array:
        return self.left.values(pairs, dtype) + self.right.values(pairs, dtype)

    def vjp(self, pairs: Pairs, cotangent: Array) -> Bias:
        return Sum(self.left.vjp(pairs, cotangent), self.right.vjp(pairs, cotangent))

    def jvp(self, pairs: Pairs, tangent: Bias, dtype: Any) -> Array:
        assert isinstance(tangent, Sum)
        return self.left.jvp(pairs, tangent.left, dtype) + self.right.jvp(pairs, tangent.right, dtype)

    def may_mask(self) -> bool:
        return self.left.may_mask() or self.right.may_mask()

    def check(self, xp: Any, sizes: Sizes) -> None:
        self.left.check(xp, sizes)
        self.right.check(xp, sizes)

    def __repr__(self) -> str:
        return f"{self.left!r} + {self.right!r}"
