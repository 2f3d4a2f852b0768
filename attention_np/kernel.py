"""``impl="tiled"``: which calls this package's own kernel can do, and which it should."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.dense import dense_attention
from attention_core.gradient import dense_vjp
from attention_core.kernels import DENSE, Kernel
from attention_core.problem import Gradients, Problem, Result

from .plan import has_few_queries
from .quick import quick_attention

__all__ = ["QUIET_DENSE", "TILED"]

_DENSE_SCORES = 2 * 256 * 256  # of one head, under which the definition is as fast and needs little memory
_DENSE_MASKED = 256 * 256  # the same with a mask, which the definition does not skip
_DENSE_FEW = 2048  # the same with few queries


def _forward(problem: Problem, *, lse: bool = True, weights: bool = False) -> Result:
    if 0 in problem.sizes.scores:
        return _dense_forward(problem, lse=lse, weights=weights)
    from .forward import tiled_forward  # with its threads it would double the time of `import attention_np`

    return tiled_forward(problem, lse=lse)


def _backward(problem: Problem, result: Result, out_cotangent: Any, lse_cotangent: Any) -> Gradients:
    if 0 in problem.sizes.scores:
        return _dense_backward(problem, result, out_cotangent, lse_cotangent)
    from .backward import tiled_backward

    return tiled_backward(problem, result, out_cotangent, lse_cotangent)


def _lacks(problem: Problem, weights: bool) -> str | None:
    if weights:
        return "it never forms the weights (`return_weights`)"
    if problem.dtype.char not in "fd":
        return f"it computes in float32 or float64, not in {problem.dtype}"
    return None


def _suits(problem: Problem) -> bool:
    scores = problem.sizes.queries * problem.sizes.keys
    if scores < _DENSE_FEW:
        return False
    return has_few_queries(problem) or scores >= (_DENSE_SCORES if problem.mask is None else _DENSE_MASKED)


def _explain(problem: Problem) -> str:
    from .explain import explain

    return explain(problem)


@np.errstate(all="ignore")  # an exponential that underflows is as it should be, and NaN is the caller's own
def _dense_forward(problem: Problem, *, lse: bool = True, weights: bool = True) -> Result:
    quick = None if weights else quick_attention(problem, lse=lse)
    return quick or dense_attention(problem, lse=lse, weights=weights)


def _dense_backward(problem: Problem, result: Result, out_cotangent: Any, lse_cotangent: Any) -> Gradients:
    with np.errstate(all="ignore"):
        return dense_vjp(problem, out_cotangent, lse_cotangent)


TILED = Kernel("tiled", _forward, _backward, _lacks, _suits, _explain)
QUIET_DENSE = Kernel("dense", _dense_forward, _dense_backward, DENSE.lacks, DENSE.suits)
