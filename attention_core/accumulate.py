"""The cotangents of a bias, summed over the tiles of a call: each array of its own size, nothing of ``Lq x Lk``."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

from .arrays import Array, cast, is_real_floating
from .biases import Bias
from .biases.algebra import Sum
from .biases.given import Dense
from .pairs import Pairs

__all__ = ["Accumulator", "accumulator"]

Place = tuple[int, int]
"""The number of a tile along queries and along keys."""


class Accumulator(Protocol):
    """Takes the cotangents that ``bias.vjp`` gives of tiles, and adds them up."""

    def add(self, place: Place, part: Any) -> None:
        """Add the cotangent of one tile; a tile that gives none need not be added."""

    def total(self, grid: list[list[Pairs]]) -> Any:
        """Return the cotangent of the whole call, cut into the tiles of ``grid``."""


def accumulator(xp: ModuleType, bias: Bias, dtype: Any) -> Accumulator:
    """Return what adds up the cotangents of ``bias``, in ``dtype``."""
    if isinstance(bias, Sum):
        return _Both(accumulator(xp, bias.left, dtype), accumulator(xp, bias.right, dtype))
    return _OfArray(xp, bias, dtype) if isinstance(bias, Dense) else _OfParameters(xp, bias, dtype)


@dataclass
class _Both:
    left: Accumulator
    right: Accumulator

    def add(self, place: Place, part: Sum) -> None:
        self.left.add(place, part.left)
        self.right.add(place, part.right)

    def total(self, grid: list[list[Pairs]]) -> Bias:
        return Sum(self.left.total(grid), self.right.total(grid))


@dataclass
class _OfParameters:
    """Of a bias whose arrays every tile reads whole."""

    xp: ModuleType
    bias: Bias
    dtype: Any
    sum: Bias | None = None

    def add(self, place: Place, part: Bias) -> None:
        self.sum = part if self.sum is None else self.bias.map_arrays(self._plus, self.sum, part)

    def _plus(self, parameter: Array, a: Array, b: Array) -> Array:
        if not is_real_floating(self.xp, parameter.dtype):
            return a  # integers have no cotangent; what stands for it does not add
        return cast(self.xp, a, self.dtype) + cast(self.xp, b, self.dtype)

    def total(self, grid: list[list[Pairs]]) -> Bias:
        if self.sum is None:
            return self.bias.map_arrays(self.xp.zeros_like)
        return self.bias.map_arrays(self._in_dtype, self.sum)

    def _in_dtype(self, parameter: Array, total: Array) -> Array:
        if not is_real_floating(self.xp, parameter.dtype):
            return total
        return _like(self.xp, total, parameter)


@dataclass
class _OfArray:
    """Of a dense bias: one sum a block, and one block along an axis of size 1, which all tiles share."""

    xp: ModuleType
    bias: Dense
    dtype: Any
    sums: dict[Place, Array] = field(default_factory=dict)

    def add(self, place: Place, part: Dense) -> None:
        block, array = self._block(place), cast(self.xp, part.array, self.dtype)
        self.sums[block] = self.sums[block] + array if block in self.sums else array

    def _block(self, place: Place) -> Place:
        row, column = (n if self._is_cut(axis) else 0 for n, axis in zip(place, (-2, -1), strict=True))
        return row, column

    def _is_cut(self, axis: int) -> bool:
        return self.bias.array.ndim >= -axis and self.bias.array.shape[axis] != 1

    def total(self, grid: list[list[Pairs]]) -> Bias:
        rows = [self._join(-1, [self._sum((i, j), pairs) for j, pairs in enumerate(row)]) for i, row in enumerate(grid)]
        return Dense(_like(self.xp, self._join(-2, rows), self.bias.array))

    def _sum(self, place: Place, pairs: Pairs) -> Array:
        block = self._block(place)
        if block not in self.sums:
            self.sums[block] = cast(self.xp, self.xp.zeros_like(pairs.per_pair(self.bias.array)), self.dtype)
        return self.sums[block]

    def _join(self, axis: int, blocks: list[Array]) -> Array:
        return self.xp.concat(blocks, axis=axis) if self._is_cut(axis) else blocks[0]


def _like(xp: ModuleType, x: Array, array: Array) -> Array:
    return xp.reshape(cast(xp, xp.asarray(x), array.dtype), tuple(array.shape))  # NumPy's 0-d sums are no arrays
