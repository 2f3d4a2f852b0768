"""Dropout on attention weights: which pairs are kept is a value of the call, never hidden state."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

from .arrays import Array
from .checks import fits
from .pairs import Pairs
from .sizes import Sizes
from .values import Value

__all__ = ["Dropout", "dropout"]


@dataclass(frozen=True, eq=False, repr=False)
class Dropout(Value):
    """Which weights are kept; those are divided by ``1 - rate`` (inverted dropout), the others are 0."""

    rate: float
    keep: Array

    def kept(self, pairs: Pairs) -> Array:
        """Return booleans that broadcast to ``pairs.shape``: is this weight kept?"""
        return pairs.per_pair(self.keep)

    def check(self, sizes: Sizes) -> None:
        """Raise if this does not fit a call of these sizes."""
        if not fits(tuple(self.keep.shape), sizes.scores):
            raise ValueError(
                f"`keep` has shape {tuple(self.keep.shape)}, "
                f"which does not broadcast to (..., Hq, Lq, Lk) = {sizes.scores}"
            )

    def _call(self) -> str:
        return "dropout"


def dropout(rate: float, *, keep: Array) -> Dropout:
    """Drop the weights where booleans ``keep (..., Hq, Lq, Lk)`` are ``False``, and divide the others by ``1 - rate``.

    The weights and lse that a call returns are those before dropout.

    >>> import numpy as np
    >>> from attention_np import dot_product_attention, dropout
    >>> x = np.eye(2)
    >>> dot_product_attention(x, x, x, scale=0.0, dropout=dropout(0.5, keep=np.eye(2, dtype=bool)))
    array([[1., 0.],
           [0., 1.]])
    """
    if not isinstance(rate, Real) or isinstance(rate, bool):
        raise TypeError(f"`rate` must be a Python number; got a {type(rate).__qualname__}")
    if not 0 <= rate < 1:
        raise ValueError(f"`rate` must be at least 0 and below 1; got {rate}")
    return Dropout(float(rate), _boolean("keep", keep))


def _boolean(name: str, x: Any) -> Array:
    if "bool" not in str(getattr(x, "dtype", None)):
        raise TypeError(
            f"`{name}` must be a boolean array, True = kept; got {getattr(x, 'dtype', type(x).__qualname__)}"
        )
    return x
