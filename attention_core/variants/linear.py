"""A linear map by PyTorch's names and orientation, and the heads that its outputs are cut into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from types import ModuleType
from typing import Any, ClassVar, Self

from ..arrays import Array, array_namespace, cast, common_dtype, compute_dtype, matmul, transpose
from ..checks import check_dtypes
from .layer import Layer, Parameter, Uniform
from .named import check_named, named_arrays, shape_of

__all__ = ["Linear", "join_heads", "split_heads"]


@dataclass(frozen=True, eq=False)
class Linear(Layer):
    """``x weight^T + bias``: ``(..., d_in)`` to ``(..., d_out)``, ``weight (d_out, d_in)`` as in ``nn.Linear``.

    Sums in float32 at least, and rounds once, to ``result_type(x, weight)``.

    >>> import numpy as np
    >>> from attention_core.variants.linear import Linear
    >>> Linear(np.ones((2, 3)), np.asarray([0.0, 1.0]))(np.ones((4, 3)))[0]
    array([3., 4.])
    """

    weight: Array
    bias: Array | None = None

    size_names: ClassVar[tuple[str, ...]] = ("d_in", "d_out")

    @classmethod
    def parameters(cls, *, bias: bool = True, **sizes: Any) -> dict[str, Parameter]:
        """Return the laws of ``nn.Linear``: both uniform within ``1 / sqrt(d_in)`` of 0."""
        sizes = cls.check_sizes(sizes)
        law = Uniform(-1 / sqrt(sizes["d_in"]), 1 / sqrt(sizes["d_in"]))
        weight = {"weight": Parameter((sizes["d_out"], sizes["d_in"]), law)}
        return weight | ({"bias": Parameter((sizes["d_out"],), law)} if bias else {})

    @classmethod
    def from_state_dict(cls, weights: Mapping[str, Array]) -> Self:
        shape = shape_of(weights, "weight")
        expected = {"weight": Parameter(shape)} | ({"bias": Parameter(shape[:1])} if "bias" in weights else {})
        check_named(weights, expected)
        return cls(**weights)

    def state_dict(self) -> dict[str, Array]:
        return named_arrays(self)

    def __call__(self, x: Array) -> Array:
        """Return ``(..., d_out)``."""
        named = {"x": x, **self.state_dict()}
        xp = array_namespace(*named.items())
        check_dtypes(xp, **named)
        if x.ndim < 1 or x.shape[-1] != self.weight.shape[-1]:
            raise ValueError(f"`x` has shape {tuple(x.shape)}; its last axis must be d_in = {self.weight.shape[-1]}")
        dtype = common_dtype(xp, *(array.dtype for array in named.values()))
        wide = compute_dtype(xp, dtype)
        out = matmul(xp, cast(xp, x, wide), transpose(xp, cast(xp, self.weight, wide)))
        return cast(xp, out if self.bias is None else out + cast(xp, self.bias, wide), dtype)


def split_heads(xp: ModuleType, x: Array, heads: int) -> Array:
    """Cut ``(..., L, heads * d)`` into ``(..., heads, L, d)``, head by head as every published checkpoint does."""
    *batch, length, width = x.shape
    return xp.moveaxis(xp.reshape(x, (*batch, length, heads, width // heads)), -2, -3)


def join_heads(xp: ModuleType, x: Array) -> Array:
    """Put ``(..., heads, L, d)`` side by side: ``(..., L, heads * d)``."""
    *batch, heads, length, depth = x.shape
    return xp.reshape(xp.moveaxis(x, -3, -2), (*batch, length, heads * depth))
