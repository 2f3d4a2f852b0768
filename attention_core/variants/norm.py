"""Root-mean-square normalisation (Zhang and Sennrich 2019), which recent models apply to queries and keys too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ..arrays import Array, array_namespace, cast, common_dtype, compute_dtype
from ..checks import check_dtypes
from .layer import Layer, Parameter, Uniform, option
from .named import check_named, named_arrays, shape_of
from .options import finite, not_negative

__all__ = ["RMSNorm"]


@dataclass(frozen=True, eq=False)
class RMSNorm(Layer):
    """``x / sqrt(mean(x ** 2) + eps) * (offset + weight)`` over the last axis, ``weight (d,)``.

    ``offset`` is 0, and 1 in Gemma, whose weights are saved as the difference from 1. In float32 at least, rounded
    once, to ``result_type(x, weight)``.

    >>> import numpy as np
    >>> from attention_np import variants
    >>> variants.RMSNorm(np.array([1.0, 2.0]), eps=0.0)(np.array([3.0, -3.0]))
    array([ 1., -2.])
    """

    weight: Array
    eps: float = option(not_negative, default=1e-6)
    offset: float = option(finite, default=0.0)

    size_names: ClassVar[tuple[str, ...]] = ("d_in",)

    @classmethod
    def parameters(cls, *, eps: float = 1e-6, offset: float = 0.0, **sizes: Any) -> dict[str, Parameter]:
        """Return a weight that changes nothing: ``1 - offset``."""
        nothing = 1 - finite("offset", offset)
        return {"weight": Parameter((cls.check_sizes(sizes)["d_in"],), Uniform(nothing, nothing))}

    @classmethod
    def from_state_dict(cls, weights: Mapping[str, Array], *, eps: float = 1e-6, offset: float = 0.0) -> Self:
        check_named(weights, {"weight": Parameter(shape_of(weights, "weight", ndim=1))})
        return cls(weights["weight"], eps, offset)

    def state_dict(self) -> dict[str, Array]:
        return named_arrays(self)

    def __call__(self, x: Array) -> Array:
        """Return ``x`` normalised, ``(..., d)``."""
        named = {"x": x, **self.state_dict()}
        xp = array_namespace(*named.items())
        check_dtypes(xp, **named)
        if x.ndim < 1 or x.shape[-1:] != self.weight.shape:
            raise ValueError(f"`x` has shape {tuple(x.shape)}; its last axis must be d = {self.weight.shape[-1]}")
        dtype = common_dtype(xp, x.dtype, self.weight.dtype)
        wide = compute_dtype(xp, dtype)
        x, weight = cast(xp, x, wide), cast(xp, self.weight, wide)
        size = xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + self.eps)
        return cast(xp, x / size * (weight + self.offset if self.offset else weight), dtype)
