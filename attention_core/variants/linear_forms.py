"""The forms of linear attention, for queries and keys whose features are taken already."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

from ..arrays import Array, array_namespace, device_of, matmul, transpose
from ..cache.rows import row_index, take_rows
from ..values import shown

__all__ = ["LinearState", "attend", "causal_chunks", "causal_full"]


class LinearState(NamedTuple):
    """What is left of the tokens so far: ``sum_j phi(k_j) v_j^T (..., H, d, d_v)`` and ``sum_j phi(k_j) (..., H, d)``.

    In the compute dtype, float32 at least; its size does not grow.

    >>> import numpy as np
    >>> from attention_core.variants import LinearState
    >>> LinearState(np.zeros((2, 3, 4)), np.zeros((2, 3))).keys.shape
    (2, 3)
    """

    products: Array
    keys: Array

    def __repr__(self) -> str:
        return shown(self, self._fields)

    def take(self, rows: Array) -> LinearState:
        """Return the state of the sequences ``rows (..., n)`` of the last batch axis, each as often as it is named."""
        xp = array_namespace(("keys", self.keys), ("rows", rows))
        batch = tuple(self.keys.shape[:-2])
        index = row_index(xp, rows, batch, self.keys)
        return LinearState(*(take_rows(xp, x, batch, index) for x in self))


def attend(
    xp: ModuleType, queries: Array, keys: Array, values: Array, state: LinearState | None
) -> tuple[Array, LinearState]:
    """Every query sees every key, and what the state holds."""
    after = _sums(xp, keys, values, state)
    return _ratio(xp, *_read(xp, queries, after)), after


def causal_full(
    xp: ModuleType, queries: Array, keys: Array, values: Array, state: LinearState | None
) -> tuple[Array, LinearState]:
    """Query ``i`` sees the state and keys ``0 ... i``, by all the weights ``(L, L)``."""
    weights = xp.tril(matmul(xp, queries, transpose(xp, keys)))
    above, below = _of_earlier(xp, weights, values), xp.sum(weights, axis=-1)
    if state is not None:
        more = _read(xp, queries, state)
        above, below = above + more[0], below + more[1]
    return _ratio(xp, above, below), _sums(xp, keys, values, state)


def causal_chunks(
    xp: ModuleType, queries: Array, keys: Array, values: Array, state: LinearState | None, chunk: int
) -> tuple[Array, LinearState]:
    """The same by chunks: within each, all its weights; between them, the sums of the chunks before.

    All chunks at once, their sums cumulated: linear in ``L``, and no loop that a compiler would unroll.
    """
    length = queries.shape[-2]
    if length <= chunk:
        return causal_full(xp, queries, keys, values, state)
    queries, keys, values = (_in_chunks(xp, x, chunk) for x in (queries, keys, values))
    of_chunk = _sums(xp, keys, values, None)
    products, total = (
        xp.cumulative_sum(x, axis=axis, include_initial=True) for x, axis in zip(of_chunk, (-3, -2), strict=True)
    )
    if state is not None:
        products, total = products + state.products[..., None, :, :], total + state.keys[..., None, :]
    out, _ = causal_full(xp, queries, keys, values, LinearState(products[..., :-1, :, :], total[..., :-1, :]))
    last = LinearState(products[..., -1, :, :], total[..., -1, :])
    *batch, count, size, depth = out.shape
    return xp.reshape(out, (*batch, count * size, depth))[..., :length, :], last


def _of_earlier(xp: ModuleType, weights: Array, values: Array) -> Array:
    """Return ``weights @ values`` of a lower triangle, where ``0 * NaN`` of a later token is 0.

    Weights are positive, so that what is not finite counts as itself, from its own row on.
    """
    finite = xp.isfinite(values)
    zero = xp.zeros_like(values)
    others = xp.cumulative_sum(xp.where(finite, zero, values), axis=-2)
    return matmul(xp, weights, xp.where(finite, values, zero)) + others


def _in_chunks(xp: ModuleType, x: Array, chunk: int) -> Array:
    """``(..., L, d)`` as ``(..., chunks, chunk, d)``, the last filled with features of 0, which count nothing."""
    *batch, length, depth = x.shape
    rest = -length % chunk
    if rest:
        x = xp.concat([x, xp.zeros((*batch, rest, depth), dtype=x.dtype, device=device_of(xp, x))], axis=-2)
    return xp.reshape(x, (*batch, (length + rest) // chunk, chunk, depth))


def _sums(xp: ModuleType, keys: Array, values: Array, state: LinearState | None) -> LinearState:
    products, total = matmul(xp, transpose(xp, keys), values), xp.sum(keys, axis=-2)
    return LinearState(products, total) if state is None else LinearState(products + state[0], total + state[1])


def _read(xp: ModuleType, queries: Array, state: LinearState) -> tuple[Array, Array]:
    """Numerator and denominator that a state gives to queries."""
    below = matmul(xp, queries, state.keys[..., :, None])[..., 0]
    return matmul(xp, queries, state.products), below


def _ratio(xp: ModuleType, above: Array, below: Array) -> Array:
    """Nothing seen is 0 over 0, and gives 0."""
    seen = below != 0  # NaN is not nothing
    return xp.where(
        seen[..., None], above / xp.where(seen, below, xp.ones_like(below))[..., None], xp.zeros_like(above)
    )
