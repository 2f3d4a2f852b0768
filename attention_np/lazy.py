"""Tiles whose scores no bound keeps small: each row has a reference, raised only when a score exceeds it by far."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .call import Call
from .plan import Segment
from .scores import HUGE, Seen, bias_tile, seen_tile
from .tile import Tile, cap, hide

__all__ = ["lazy_tile"]


def lazy_tile(call: Call, tile: Tile) -> bool:
    """Sum a tile's exponentials and weighted values; ``False`` where a score is not finite.

    The last keys that all rows see come first: one look gives every row a reference, a good one under a bias by
    distance too.
    """
    tile.reset()
    unset = np.ones(len(tile.totals), bool)
    segments = sorted(tile.place.tile.segments, key=lambda each: (each.masked[1] > 0, -each.keys[0]))
    return all(_lazy_segment(call, tile, segment, unset) for segment in segments)


def _is_negligible(call: Call, tile: Tile, segment: Segment, unset: Any) -> bool:
    """Say whether a bias by distance leaves no score here within ``floor`` of its row's reference."""
    rows = tile.flat(segment)
    if call.distances is None or not math.isfinite(tile.bound) or unset[rows].any():
        return False
    largest = call.distances.largest_in(tile.place, segment)
    far = tile.bound + largest - float(tile.reference[rows].min()) < call.exponential.floor
    return far and math.isfinite(tile.head.largest_value(segment.keys))


def _lazy_segment(call: Call, tile: Tile, segment: Segment, unset: Any) -> bool:
    if _is_negligible(call, tile, segment, unset):
        return True
    exp, hidden = call.exponential, None
    if call.problem.bias is not None:
        bias, hidden = bias_tile(tile.place, segment, call.distances, exp.unit)
    else:
        bias = None
    seen = seen_tile(tile.place, tile.plan, segment, hidden)
    scores = _shifted_scores(call, tile, segment, bias)
    highest = float(scores.max())
    if not highest < math.inf or (not tile.bound < HUGE and not float(scores.min()) > -math.inf):
        return False
    if (highest > exp.ceiling or unset[tile.flat(segment)].any()) and _raise_references(
        call, tile, segment, scores, seen, unset
    ):
        scores = _shifted_scores(call, tile, segment, bias)  # far from the old reference they were rounded
    exp.clamped(scores)  # above only masked pairs, whose weights become 0
    hide(scores, tile.group, segment, seen)
    tile.add(scores, segment)
    return True


def _shifted_scores(call: Call, tile: Tile, segment: Segment, bias: Any) -> Any:
    """Return the scores of a segment minus their rows' references, capped and biased."""
    capped = call.problem.softcap
    extended = capped is None and not call.few  # else the product has no column for the reference
    scores = tile.scores(tile.factors(extended=extended), segment)
    if capped is not None:
        if not math.isfinite(float(scores.sum())):
            scores[0, 0] = np.nan  # the cap would hide an infinity
        cap(scores, capped * call.exponential.unit)
    if not extended:
        scores -= tile.reference[tile.flat(segment), None]
    if bias is not None:
        by_head = scores.reshape(tile.group, -1, scores.shape[1])
        np.add(by_head, bias, out=by_head)
    return scores


def _raise_references(call: Call, tile: Tile, segment: Segment, scores: Any, seen: Seen | None, unset: Any) -> bool:
    """Move the reference of rows that have none yet, or that a score exceeds by far, to their largest score.

    Return whether a row that had one has moved; else the scores have been shifted in place.
    """
    exp, rows = call.exponential, tile.flat(segment)
    top = _largest_seen(tile, segment, scores, seen)
    first = unset[rows] & (top > -np.inf)
    rise = np.where(first | (top > exp.ceiling), top, 0)
    shrink = np.where(rise < -exp.floor, exp.function(np.clip(-rise, exp.floor, 0)), 0)
    shrink = np.where(first, 0, shrink).astype(scores.dtype)  # nothing is summed there yet
    tile.totals[rows] *= shrink
    tile.values[rows] *= shrink[:, None]
    tile.reference[rows] += rise
    tile.queries[rows, -1] = -tile.reference[rows]
    unset[rows] &= ~first
    if bool(((rise != 0) & ~first).any()):
        return True
    scores -= rise[:, None]
    return False


def _largest_seen(tile: Tile, segment: Segment, scores: Any, seen: Seen | None) -> Any:
    top = scores.max(axis=-1)
    if seen is None:
        return top
    first = segment.rows[0]
    part = slice(seen.rows[0] - first, seen.rows[1] - first)
    visible = np.where(seen.values != 0, scores.reshape(tile.group, -1, scores.shape[1])[:, part], -np.inf)
    top.reshape(tile.group, -1)[:, part] = visible.max(axis=-1)
    return top
