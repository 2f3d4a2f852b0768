"""Softmax over keys where some or all pairs may be masked, with an optional sink, and the merging of partial results.

The maximum is subtracted before exponentiating (Milakov and Gimelshein 2018); ``-inf`` needs care in three places, and
all three stand here: the maximum of a row without visible keys, ``-inf - -inf``, and a denominator of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

from .arrays import Array, array_namespace, known_finite, scalar_like

__all__ = ["Softmax", "masked_softmax", "merge"]


class Softmax(NamedTuple):
    """``weights`` and what their lse is made of: ``shift`` and ``total``, of shape ``(..., Hq, Lq, 1)``."""

    xp: ModuleType
    weights: Array
    shift: Array
    total: Array

    def lse(self) -> Array:
        """Return ``log(exp(sink_h) + sum_j exp(s_ij))``, ``(..., Hq, Lq)``; ``-inf`` where nothing is summed."""
        xp = self.xp
        empty = self.total == 0
        lse = xp.where(empty, -xp.inf, self.shift + xp.log(xp.where(empty, 1.0, self.total)))
        return lse[..., 0]


def masked_softmax(xp: ModuleType, scores: Array, sinks: Array | None) -> Softmax:
    """Return the softmax over keys of scores ``(..., Hq, Lq, Lk)`` in which ``-inf`` stands for a masked pair.

    ``p_ij = exp(s_ij) / (exp(sink_h) + sum_j exp(s_ij))``; a row without visible keys has weights 0.
    """
    sink = None if sinks is None else sinks[:, None, None]
    largest = _row_maximum(xp, scores, sink)
    shift = xp.maximum(largest, float(xp.finfo(scores.dtype).min))  # -inf - -inf would be NaN
    exponentials = xp.exp(scores - shift)
    total = xp.sum(exponentials, axis=-1, keepdims=True)
    if sink is not None:
        total = total + xp.exp(sink - shift)
    weights = exponentials / xp.where(total == 0, 1.0, total)
    if not known_finite(xp, total):  # a visible NaN spoils its row, but no masked pair of it
        weights = xp.where(scores == -xp.inf, scalar_like(xp, 0.0, weights), weights)
    return Softmax(xp, weights, shift, total)


def _row_maximum(xp: ModuleType, scores: Array, sink: Array | None) -> Array:
    if scores.shape[-1] == 0:  # the standard's max refuses an empty axis
        largest = xp.full_like(xp.sum(scores, axis=-1, keepdims=True), -xp.inf)
    else:
        largest = xp.max(scores, axis=-1, keepdims=True)
    return largest if sink is None else xp.maximum(largest, sink)


def merge(outs: Sequence[Array], lses: Sequence[Array]) -> tuple[Array, Array]:
    """Merge attention over disjoint sets of keys into attention over their union.

    ``lse = log(sum_n exp(lse_n))`` and ``out = sum_n exp(lse_n - lse) * out_n``, with ``outs[n] (..., Lq, Dv)`` and the
    natural ``lses[n] (..., Lq)``. A part without visible keys (``lse = -inf``) changes nothing, whatever its ``out``
    holds; a sink belongs to exactly one part.

    >>> import numpy as np
    >>> from attention_np import dot_product_attention, merge
    >>> q, k, v = np.eye(2), np.array([[1.0, 0], [0, 1], [1, 1]]), np.array([[1.0, 2], [3, 4], [5, 6]])
    >>> parts = [dot_product_attention(q, k[s], v[s], return_lse=True) for s in (slice(0, 2), slice(2, 3))]
    >>> out, lse = merge([p.out for p in parts], [p.lse for p in parts])
    >>> np.allclose(out, dot_product_attention(q, k, v))
    True
    """
    if not outs or len(outs) != len(lses):
        raise ValueError(f"`outs` and `lses` must be as many, and at least one; got {len(outs)} and {len(lses)}")
    xp = array_namespace(
        *((f"{name}[{n}]", x) for name, xs in (("outs", outs), ("lses", lses)) for n, x in enumerate(xs))
    )
    for n, (out, lse) in enumerate(zip(outs, lses, strict=True)):
        if tuple(out.shape[:-1]) != tuple(lse.shape):
            raise ValueError(
                f"`lses[{n}]` has shape {tuple(lse.shape)}; it must be that of `outs[{n}]` without its last axis"
            )
    stacked = xp.stack(list(lses), axis=-1)[..., None, :]
    softmax = masked_softmax(xp, stacked, None)
    weights, lse = softmax.weights, softmax.lse()
    total = _share(xp, outs[0], lses[0], weights[..., 0])
    for n in range(1, len(outs)):
        total = total + _share(xp, outs[n], lses[n], weights[..., n])
    return xp.astype(total, outs[0].dtype), lse[..., 0]


def _share(xp: ModuleType, out: Array, lse: Array, weight: Array) -> Array:
    """One part's weighted output; whatever stands in the output of an empty part, it counts as 0."""
    counted = xp.where(lse[..., None] == -xp.inf, scalar_like(xp, 0.0, out), out)
    return weight * xp.astype(counted, weight.dtype)
