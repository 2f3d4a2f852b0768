"""Softmax over keys where some or all pairs may be masked, with an optional sink, and the merging of partial results.

The maximum is subtracted before exponentiating (Milakov and Gimelshein 2018), where it is not near 0 anyway; ``-inf``
needs care in three places, and all three stand here: the maximum of a row without visible keys, ``-inf - -inf``, and a
denominator of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

from .arrays import Array, array_namespace, cast, compute_dtype, describe, is_traced, known_finite, scalar_like
from .checks import check_dtypes, check_layout
from .layout import from_heads_first, heads_first

__all__ = [
    "NEAR",
    "Online",
    "Softmax",
    "is_rounded",
    "masked_softmax",
    "merge",
    "online_step",
    "row_shift",
    "weights_from_lse",
]

NEAR = 40.0  # of scores up to this, exponentials do not overflow, and weights of 1e-20 keep their digits in float32

_ROUNDED = 2.0**-10  # the error of a weight, relative to it, that the rounding of its row's lse may cause


class Softmax(NamedTuple):
    """``weights`` and what their lse is made of: ``shift`` and ``total``, of shape ``(..., Hq, Lq, 1)``."""

    xp: ModuleType
    weights: Array
    shift: Array
    total: Array

    def lse(self) -> Array:
        """Return ``log(exp(sink_h) + sum_j exp(s_ij))``, ``(..., Hq, Lq)``; ``-inf`` where nothing is summed."""
        return _lse(self.xp, self.shift, self.total)


def masked_softmax(xp: ModuleType, scores: Array, sinks: Array | None) -> Softmax:
    """Return the softmax over keys of scores ``(..., Hq, Lq, Lk)`` in which ``-inf`` stands for a masked pair.

    ``p_ij = exp(s_ij) / (exp(sink_h) + sum_j exp(s_ij))``; a row without visible keys has weights 0.
    """
    sink = None if sinks is None else sinks[:, None, None]
    largest = _row_maximum(xp, scores, None)
    shift = row_shift(xp, largest)
    if sink is not None:  # a row of nothing else has its lse to the bit
        shift = xp.where(sink > largest, sink, shift)
    exponentials, total = _exponentials(xp, scores, shift)
    if sink is not None:
        total = total + xp.exp(sink - shift)
    weights = exponentials / xp.where(total == 0, 1.0, total)
    if not known_finite(xp, total):  # a visible NaN spoils its row, but no masked pair of it
        weights = xp.where(scores == -xp.inf, scalar_like(xp, 0.0, weights), weights)
    return Softmax(xp, weights, shift, total)


def row_shift(xp: ModuleType, largest: Array) -> Array:
    """Return what is subtracted from the scores of rows before exponentiating: their largest, and 0 where it is near 0.

    A row's shift is its own, so that its weights do not depend on the other rows of a call; and where no score at all
    is far from 0, nobody need look for the largest.
    """
    return xp.where(abs(largest) < NEAR, 0.0, _finite_shift(xp, largest))


class Online(NamedTuple):
    """A softmax over the keys met so far: ``total`` sums ``exp(s_ij - shift_i)``, both ``(..., Hq, Lq, 1)``."""

    xp: ModuleType
    shift: Array
    total: Array

    @classmethod
    def start(cls, xp: ModuleType, first: Array) -> Online:
        """Return the state that has met one score a row, ``first (..., Hq, Lq, 1)``: the sink, or ``-inf`` for none."""
        shift = _finite_shift(xp, _row_maximum(xp, first, None))
        return cls(xp, shift, _exponentials(xp, first, shift)[1])

    def lse(self) -> Array:
        """Return the lse of all keys met, ``(..., Hq, Lq)``; ``-inf`` where none was visible."""
        return _lse(self.xp, self.shift, self.total)

    def normalise(self, x: Array) -> Array:
        """Divide sums over the keys met by the sum of their exponentials, and by 1 where that is 0."""
        return x / self.xp.where(self.total == 0, 1.0, self.total)

    def weights(self, scores: Array) -> Array:
        """Return the softmax's weights of scores that have been met; a masked pair has 0, whatever its row holds."""
        weights = self.normalise(self.xp.exp(scores - self.shift))
        return self.xp.where(scores == -self.xp.inf, scalar_like(self.xp, 0.0, weights), weights)


def online_step(state: Online, scores: Array) -> tuple[Array, Array, Online]:
    """Meet more keys: return their exponentials, the factor for earlier sums, and the state (Milakov, Gimelshein 2018).

    ``sums = factor * sums + exponentials @ value`` keeps sums over the keys right.
    """
    xp = state.xp
    shift = _finite_shift(xp, _row_maximum(xp, scores, state.shift))
    exponentials, total = _exponentials(xp, scores, shift)
    factor = xp.exp(state.shift - shift)
    return exponentials, factor, Online(xp, shift, state.total * factor + total)


def is_rounded(xp: ModuleType, lse: Array) -> bool:
    """Say whether some lse, too large for its dtype's digits, may not give the weights back; traced ones may not."""
    finite = xp.where(xp.isfinite(lse), lse, scalar_like(xp, 0.0, lse))
    rounded = xp.any(abs(finite) * float(xp.finfo(lse.dtype).eps) >= _ROUNDED)
    return True if is_traced(rounded) else bool(rounded)


def weights_from_lse(xp: ModuleType, scores: Array, lse: Array) -> Array:
    """Return the softmax's weights ``exp(s_ij - lse_i)`` again; a masked pair has 0, whatever its row holds."""
    shift = _finite_shift(xp, lse[..., None])
    weights = xp.exp(scores - shift)
    if not known_finite(xp, shift):
        weights = xp.where(scores == -xp.inf, scalar_like(xp, 0.0, weights), weights)
    return weights


def _exponentials(xp: ModuleType, scores: Array, shift: Array) -> tuple[Array, Array]:
    """Return ``exp(s_ij - shift_i)`` and the rows' sums of it."""
    exponentials = xp.exp(scores - shift)
    return exponentials, xp.sum(exponentials, axis=-1, keepdims=True)


def _finite_shift(xp: ModuleType, largest: Array) -> Array:
    return xp.maximum(largest, float(xp.finfo(largest.dtype).min))  # -inf - -inf would be NaN


def _lse(xp: ModuleType, shift: Array, total: Array) -> Array:
    empty = total == 0
    lse = xp.where(empty, -xp.inf, shift + xp.log(xp.where(empty, 1.0, total)))
    return lse[..., 0]


def _row_maximum(xp: ModuleType, scores: Array, sink: Array | None) -> Array:
    if scores.shape[-1] == 0:  # the standard's max refuses an empty axis
        largest = xp.full_like(xp.sum(scores, axis=-1, keepdims=True), -xp.inf)
    else:
        largest = xp.max(scores, axis=-1, keepdims=True)
    return largest if sink is None else xp.maximum(largest, sink)


def merge(outs: Sequence[Array], lses: Sequence[Array], *, layout: str = "BHLD") -> tuple[Array, Array]:
    """Merge attention over disjoint sets of keys into attention over their union.

    ``lse = log(sum_n exp(lse_n))`` and ``out = sum_n exp(lse_n - lse) * out_n``, with ``outs[n] (..., Lq, Dv)`` and the
    natural ``lses[n] (..., Lq)``; for ``layout="BLHD"`` ``outs[n] (..., Lq, Hq, Dv)`` and ``lses[n] (..., Hq, Lq)``, as
    a call in that layout gives them. A part without visible keys (``lse = -inf``) changes nothing, whatever its
    ``out`` holds; a sink belongs to exactly one part.

    >>> import numpy as np
    >>> from attention_np import dot_product_attention, merge
    >>> q, k, v = np.eye(2), np.array([[1.0, 0], [0, 1], [1, 1]]), np.array([[1.0, 2], [3, 4], [5, 6]])
    >>> parts = [dot_product_attention(q, k[s], v[s], return_lse=True) for s in (slice(0, 2), slice(2, 3))]
    >>> out, lse = merge([p.out for p in parts], [p.lse for p in parts])
    >>> np.allclose(out, dot_product_attention(q, k, v))
    True
    """
    check_layout(layout)
    for name, parts in (("outs", outs), ("lses", lses)):
        if not isinstance(parts, (list, tuple)):
            raise TypeError(f"`{name}` must be a list of arrays, one a part; got {describe(parts)}")
    if not outs or len(outs) != len(lses):
        raise ValueError(f"`outs` and `lses` must be as many, and at least one; got {len(outs)} and {len(lses)}")
    xp = array_namespace(
        *((f"{name}[{n}]", x) for name, xs in (("outs", outs), ("lses", lses)) for n, x in enumerate(xs))
    )
    for name, parts in (("outs", outs), ("lses", lses)):
        check_dtypes(xp, **{f"{name}[{n}]": x for n, x in enumerate(parts)})
    dtype = xp.result_type(*(x.dtype for x in outs))
    outs = [x if x.ndim < 3 else heads_first(xp, x, layout) for x in outs]
    _check_parts(outs, lses, layout)
    softmax = masked_softmax(xp, xp.stack(_of_one_dtype(xp, lses), axis=-1)[..., None, :], None)
    shares = [_share(xp, out, lses[n], softmax.weights[..., n]) for n, out in enumerate(outs)]
    out = xp.astype(sum(shares[1:], start=shares[0]), dtype)
    return out if out.ndim < 3 else from_heads_first(xp, out, layout, False), softmax.lse()[..., 0]


def _check_parts(outs: Sequence[Array], lses: Sequence[Array], layout: str) -> None:
    first, of_out = tuple(outs[0].shape), "" if layout == "BHLD" else ", heads before lengths"
    for n, (out, lse) in enumerate(zip(outs, lses, strict=True)):
        if tuple(out.shape) != first:
            raise ValueError(f"`outs[{n}]` has not the shape of `outs[0]`: all parts have the same queries")
        if first[:-1] != tuple(lse.shape):
            raise ValueError(
                f"`lses[{n}]` has shape {tuple(lse.shape)}; "
                f"it must be that of `outs[{n}]` without its last axis{of_out}, {first[:-1]}"
            )


def _of_one_dtype(xp: ModuleType, arrays: Sequence[Array]) -> list[Array]:
    dtype = compute_dtype(xp, *(x.dtype for x in arrays))
    return [cast(xp, x, dtype) for x in arrays]


def _share(xp: ModuleType, out: Array, lse: Array, weight: Array) -> Array:
    """One part's weighted output; whatever stands in the output of an empty part, it counts as 0."""
    counted = xp.where(lse[..., None] == -xp.inf, scalar_like(xp, 0.0, out), out)
    return weight * xp.astype(counted, weight.dtype)
