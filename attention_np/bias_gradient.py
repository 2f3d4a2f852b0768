"""The gradient of a bias, summed from the gradients of its tiles, in its own size."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_core.arrays import is_real_floating
from attention_core.biases import Bias
from attention_core.biases.algebra import Sum
from attention_core.biases.given import Dense
from attention_core.pairs import Pairs, Span
from attention_core.problem import Problem

from .call import Call
from .scores import distance_pairs

if TYPE_CHECKING:
    from .tile_gradient import TileGradient

__all__ = ["BiasGradient", "bias_gradient"]


class BiasGradient(ABC):
    """What the tiles have given to a bias so far."""

    @abstractmethod
    def add(self, state: TileGradient, rows: Span, keys: Span, ds: Any) -> None:
        """Add the gradient of a tile's scores, ``(G, rows, keys)``."""

    @abstractmethod
    def result(self) -> Bias:
        """Return the bias with its arrays replaced by their cotangents."""

    @abstractmethod
    def is_shared(self) -> bool:
        """Say whether tiles add to the same numbers, so that they must come in order."""


def bias_gradient(call: Call) -> BiasGradient | None:
    """Return the sums for a call's bias, ``None`` where it holds no array."""
    bias = call.problem.bias
    if bias is None or not bias.arrays():
        return None
    return ByPair(call.problem) if call.distances is None else ByDistance(call.problem)


class ByDistance(BiasGradient):
    """A bias of the distance: a sum for each distance, head, batch item and part, pulled back to its arrays at last."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.sums: dict[tuple[tuple[int, ...], Span, int], Any] = {}
        self.lock = threading.Lock()

    def add(self, state: TileGradient, rows: Span, keys: Span, ds: Any) -> None:
        sizes, place = self.problem.sizes, state.place
        key = (place.item, place.heads, state.part)
        with self.lock:
            if key not in self.sums:
                self.sums[key] = np.zeros((ds.shape[0], sizes.queries + sizes.keys - 1), ds.dtype)
        first = keys[0] - place.tile.rows[0] - rows[1] + sizes.queries
        self.sums[key][:, first : first + ds.shape[1] + ds.shape[2] - 1] += diagonal_sums(ds)

    def result(self) -> Bias:
        p, sizes = self.problem, self.problem.sizes
        whole = np.zeros((sizes.heads, 1, sizes.queries + sizes.keys - 1), p.dtype)
        for key in sorted(self.sums):
            whole[slice(*key[1]), 0] += self.sums[key]
        assert p.bias is not None
        return p.bias.vjp(distance_pairs(p), whole)

    def is_shared(self) -> bool:
        return False


def diagonal_sums(x: Any) -> Any:
    """Sum ``x (G, rows, keys)`` over each diagonal ``key - row``: ``(G, rows + keys - 1)``, the lowest one first.

    >>> import numpy as np
    >>> diagonal_sums(np.array([[[1, 2, 3], [4, 5, 6]]]))
    array([[4, 6, 8, 3]])
    """
    group, rows, keys = x.shape
    wide = np.zeros((group, rows, rows + keys), x.dtype)
    wide[:, :, :keys] = x[:, ::-1]
    shifted = wide.reshape(group, -1)[:, : rows * (rows + keys - 1)]  # each row begins one column further
    return shifted.reshape(group, rows, rows + keys - 1).sum(axis=1)


class ByPair(BiasGradient):
    """Any other bias: its own pullback of each tile, added tile after tile."""

    def __init__(self, problem: Problem) -> None:
        assert problem.bias is not None
        self.problem = problem
        self.total = _zeros(problem.bias, problem.dtype)

    def add(self, state: TileGradient, rows: Span, keys: Span, ds: Any) -> None:
        assert self.problem.bias is not None
        pairs = state.place.pairs(rows, keys)
        self.total = _added(self.total, self.problem.bias.vjp(pairs, ds), pairs)

    def result(self) -> Bias:
        assert self.problem.bias is not None
        return _cast(self.total, self.problem.bias)

    def is_shared(self) -> bool:
        return True


def _zeros(bias: Bias, dtype: Any) -> Bias:
    return bias.map_arrays(lambda x: np.zeros(x.shape, np.result_type(x.dtype, dtype)) if _moves(x) else x)


def _cast(total: Bias, like: Bias) -> Bias:
    return like.map_arrays(lambda x, y: y.astype(x.dtype) if _moves(x) else y, total)


def _moves(x: Any) -> bool:
    """Say whether an array is real, and so has a cotangent."""
    return is_real_floating(np, x.dtype)


def _added(total: Bias, part: Bias, pairs: Pairs) -> Bias:
    if isinstance(total, Sum) and isinstance(part, Sum):
        return Sum(_added(total.left, part.left, pairs), _added(total.right, part.right, pairs))
    if isinstance(total, Dense) and isinstance(part, Dense):
        view = pairs.per_pair(total.array)
        view[...] += part.array.reshape(view.shape)
        return total
    return total.map_arrays(lambda x, y: x + y if _moves(x) else y, part)
