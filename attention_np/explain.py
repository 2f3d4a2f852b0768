"""Which way the kernel goes for a call, in words, for :func:`which_kernel`."""

from __future__ import annotations

from collections import Counter

import numpy as np

from attention_core.problem import Problem

from .call import Call
from .decode import can_decode
from .forward import ways

__all__ = ["explain"]

_WORDS = {
    "bounded": "without a maximum",
    "lazy": "with a reference that rises only when it must",
    "exact": "by the definition, for what is not finite or too large",
}


@np.errstate(all="ignore")
def explain(problem: Problem) -> str:
    """Return the way of a call, and of how many of its tiles; queries and keys are read, nothing else is done."""
    if 0 in problem.sizes.scores:
        return "by the definition, since an axis is empty"
    if can_decode(problem):
        return "decode: few queries, all heads at once"
    call = Call.of(problem)
    counts = Counter(ways(call))
    what = "decode: few queries, a head at a time" if call.few else "tiles"
    parts = [f"{counts[way]} {words}" for way, words in _WORDS.items() if counts[way]]
    return f"{what}: {', '.join(parts)}" if parts else f"{what}: none is visible"
