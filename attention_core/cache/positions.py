"""Where the tokens of a call stand in their sequences: after what is cached, and behind or before padding."""

from __future__ import annotations

from numbers import Integral
from types import ModuleType
from typing import Any

from ..arrays import Array, array_namespace, as_array, device_of
from ..checks import fits
from ..masks import Mask, global_tokens
from ..pairs import as_index
from ..values import integer_or_array

__all__ = ["PADDING", "check_padding", "real", "real_tokens", "token_positions"]

PADDING = -1  # the position of a token that is none


def real() -> Mask:
    """Pairs of tokens that are no padding: both positions are at least 0."""
    return ~global_tokens(0)


def check_padding(lengths: Any, padding: Any, batch: tuple[int, ...]) -> None:
    """``lengths`` are integers that broadcast to ``batch``, ``padding`` is one of two words."""
    if padding not in ("right", "left"):
        raise ValueError(f'`padding` must be "right" or "left"; got {padding!r}')
    if lengths is None:
        if padding == "left":
            raise ValueError("`padding` says on which side of the tokens padding stands: give their `lengths` too")
        return
    if not isinstance(integer_or_array("lengths", lengths), int) and not fits(tuple(lengths.shape), batch):
        raise ValueError(f"`lengths` has shape {tuple(lengths.shape)}, which does not broadcast to (...) = {batch}")


def token_positions(xp: ModuleType, start: Any, count: int, lengths: Any, padding: str, like: Array) -> Array:
    """Return the positions ``(..., count)`` of new tokens, ``-1`` for padding.

    ``start (...)`` tokens came before. Of the new ones ``lengths (...)`` are real, between 0 and ``count``: the first
    of them, or with ``padding="left"`` the last.
    """
    rows = xp.arange(count, device=device_of(xp, like))
    start = as_index(xp, start[..., None]) if hasattr(start, "ndim") else start
    if lengths is None:
        return start + rows
    lengths = real_tokens(xp, lengths, count, like)[..., None]
    row = rows - (count - lengths) if padding == "left" else rows + 0 * lengths
    return xp.where((row >= 0) & (row < lengths), start + row, PADDING + 0 * row)


def real_tokens(xp: ModuleType, lengths: Any, count: int, like: Array) -> Array:
    """Return how many of ``count`` tokens are real, between 0 and ``count``, ``(...)`` or ``()``."""
    if isinstance(lengths, Integral):
        return xp.asarray(min(max(int(lengths), 0), count), device=device_of(xp, like))
    array_namespace(("lengths", lengths), ("x", like))
    return xp.clip(as_index(xp, as_array(xp, lengths)), 0, count)
