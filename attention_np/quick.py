"""The dense definition for small calls: the same steps on arrays that they may overwrite, and nothing in between."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attention_core.dense import group_rows, ungroup_rows, visible_pairs
from attention_core.problem import Problem, Result
from attention_core.softmax import NEAR, row_shift

__all__ = ["is_plain", "quick_attention"]


def quick_attention(problem: Problem, *, lse: bool) -> Result | None:
    """Return what the definition gives, or ``None`` where it has to be asked itself.

    That is where something is not finite, where a row sees no key, and for a bias, a soft cap, sinks or dropout.
    """
    p = problem
    if not is_plain(p):
        return None
    grouped = p.sizes.heads != p.sizes.kv_heads
    rows = p.scale * p.query
    scores: Any = np.matmul(group_rows(p, rows) if grouped else rows, p.key.mT)
    near = _are_near(scores)
    if p.mask is not None and not _hide(p, ungroup_rows(p, scores), near):
        return None
    shift = None if near else _subtract_shift(scores)
    np.exp(scores, out=scores)
    total: Any = np.add.reduce(scores, axis=-1, keepdims=True)
    np.divide(scores, total, out=scores)
    out = np.matmul(scores, p.value)
    out = ungroup_rows(p, out) if grouped else out
    settled = near and p.mask is None  # where NaN in value is seen by all
    if not settled and not math.isfinite(np.vdot(out, out)):
        return None
    if not lse:
        return Result(out)
    logs = np.log(total) if shift is None else shift + np.log(total)
    logs = ungroup_rows(p, logs)[..., 0]
    return Result(out, logs) if logs.shape == out.shape[:-1] else None


def is_plain(problem: Problem) -> bool:
    """Say whether a call has keys, one dtype to compute in, and nothing but a mask."""
    p = problem
    if p.bias is not None or p.softcap is not None or p.sinks is not None or p.dropout is not None:
        return False
    return p.sizes.keys > 0 and p.query.dtype is p.key.dtype is p.value.dtype is p.dtype


def _are_near(scores: Any) -> bool:
    """Say whether no row's shift can be other than 0; the sum of the squares settles that for the smallest calls."""
    if np.vdot(scores, scores) < NEAR * NEAR:
        return True
    return bool(np.maximum.reduce(scores, axis=None) < NEAR and np.minimum.reduce(scores, axis=None) > -NEAR)


def _subtract_shift(scores: Any) -> Any:
    shift = row_shift(np, np.maximum.reduce(scores, axis=-1, keepdims=True))
    np.subtract(scores, shift, out=scores)
    return shift


def _hide(problem: Problem, scores: Any, finite: bool) -> bool:
    """Set the scores of masked pairs to ``-inf`` in place; ``False`` where that takes more than a place for each."""
    visible: Any = visible_pairs(problem)
    if not (finite or math.isfinite(np.add.reduce(scores, axis=None))) or scores.shape != problem.sizes.scores:
        return False
    np.copyto(scores, -np.inf, where=~visible)
    return True
