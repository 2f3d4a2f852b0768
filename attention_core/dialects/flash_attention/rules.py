"""What all of FlashAttention's calls say in the same way: windows, soft cap, ALiBi, dropout."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ... import biases, masks
from ...arrays import Array, array_namespace, as_array
from ...biases import Bias
from ...masks import Mask
from ..shared import dropout_of, unbounded

__all__ = ["alibi", "alibi_of_rows", "cap", "checked_slopes", "dropout_to", "window"]


def window(causal: bool, window_size: tuple[int, int]) -> Mask | None:
    """Return ``[i + Lk - Lq - left, i + Lk - Lq + right]``, the call's positions being lower-right; -1 is no bound."""
    left, right = unbounded(window_size[0]), 0 if causal else unbounded(window_size[1])
    return None if left is None and right is None else masks.sliding_window(left, right)


def cap(softcap: float) -> float | None:
    """Return the cap: "anything > 0 activates softcapping attention"."""
    return softcap if softcap > 0 else None


def dropout_to(rate: float, seed: Any, probs: bool) -> Any:
    """Return the dropout, refusing what FlashAttention returns of it for its own tests."""
    if probs and rate > 0:
        raise NotImplementedError(
            "`return_attn_probs` with `dropout_p` marks dropped pairs by a minus sign, for FlashAttention's own tests"
        )
    return dropout_of(rate, seed)


def alibi(xp: ModuleType, slopes: Any, items: int, heads: int) -> Bias | None:
    """Return ``-slope * |i + Lk - Lq - j|`` for slopes ``(Hq,)`` or ``(B, Hq)``."""
    slopes = checked_slopes(xp, slopes, items, heads)
    if slopes is None:
        return None
    return biases.alibi(slopes) if slopes.ndim == 1 else biases.rule(_alibi_of_items, slopes)


def checked_slopes(xp: ModuleType, slopes: Any, items: int, heads: int) -> Any:
    """Return ``alibi_slopes`` in ``xp``, of one of the two shapes that they may have, or ``None``."""
    if slopes is None:
        return None
    slopes = as_array(xp, slopes)
    if tuple(slopes.shape) not in ((heads,), (items, heads)):
        raise ValueError(
            f"`alibi_slopes` has shape {tuple(slopes.shape)}; it must be (Hq,) = ({heads},) or ({items}, {heads})"
        )
    return slopes


def alibi_of_rows(slopes: Array) -> Bias:
    """Return the same for slopes ``(rows, Hq)``, where a key's position is its row."""
    return biases.rule(_alibi_of_rows, slopes)


def _alibi_of_items(batch: Array, head: Array, query: Array, key: Array, slopes: Array) -> Array:
    return _slope_times_distance(slopes, batch, head, query - key)


def _alibi_of_rows(batch: Array, head: Array, query: Array, key: Array, slopes: Array) -> Array:
    return _slope_times_distance(slopes, key, head, query - key)


def _slope_times_distance(slopes: Array, rows: Array, heads: Array, distance: Array) -> Array:
    """Return ``-slopes[rows, heads] * |distance|``; index arrays that broadcast are not in the standard, `take` is."""
    xp = array_namespace(("slopes", slopes))
    index = rows * slopes.shape[1] + heads
    picked = xp.take(xp.reshape(slopes, (-1,)), xp.reshape(index, (-1,)))
    return -xp.reshape(picked, index.shape) * xp.astype(abs(distance), slopes.dtype)
