"""The dense definition for small calls: the same steps on arrays that they may overwrite, and nothing in between."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attention_core.dense import group_rows, ungroup_rows
from attention_core.problem import Problem, Result

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
    if p.mask is not None and not _hide(p, ungroup_rows(p, scores)):
        return None
    shift: Any = np.maximum.reduce(scores, axis=-1, keepdims=True)
    np.subtract(scores, shift, out=scores)
    np.exp(scores, out=scores)
    total: Any = np.add.reduce(scores, axis=-1, keepdims=True)
    np.divide(scores, total, out=scores)
    out = np.matmul(scores, p.value)
    out = ungroup_rows(p, out) if grouped else out
    if not math.isfinite(np.vdot(out, out)):
        return None
    logs = ungroup_rows(p, shift + np.log(total))[..., 0] if lse else None
    return Result(out, logs) if logs is None or logs.shape == out.shape[:-1] else None


def is_plain(problem: Problem) -> bool:
    """Say whether a call has keys, one dtype to compute in, and nothing but a mask."""
    p = problem
    if p.bias is not None or p.softcap is not None or p.sinks is not None or p.dropout is not None:
        return False
    return p.sizes.keys > 0 and p.query.dtype is p.key.dtype is p.value.dtype is p.dtype


def _hide(problem: Problem, scores: Any) -> bool:
    """Set the scores of masked pairs to ``-inf`` in place; ``False`` where that takes more than a place for each."""
    assert problem.mask is not None
    visible = problem.mask.visible(problem.pairs())
    if not math.isfinite(np.add.reduce(scores, axis=None)) or scores.shape != problem.sizes.scores:
        return False
    np.copyto(scores, -np.inf, where=~visible)
    return True
