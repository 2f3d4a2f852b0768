"""Which exponential this machine computes fast, and the range in which its arguments are kept.

A weight that is a denormal number costs a hundred times an ordinary one, in ``exp`` and in the product after it, so
none is ever formed: arguments stay above ``floor``, and masked weights are set to 0 by a product with 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .gemm import chosen, has

__all__ = ["Exponential", "exponential"]

_FLOOR = -100.0  # 2^-100 of a row's reference is nothing to it, in float64 too, and far from the denormals
_CEILING = 60.0  # a row is rescaled before its weights pass 2^60
_BOUND = 80.0  # the largest |exponent| that needs no reference at all


@dataclass(frozen=True)
class Exponential:
    """``function(unit * x) = e^x``; the limits are in the function's own argument."""

    name: str
    function: Any
    unit: float
    floor: float
    ceiling: float
    bound: float
    takes_limits: bool = False

    def clamped(self, x: Any) -> Any:
        """Return the function of numbers kept within floor and ceiling, in place."""
        if self.takes_limits:
            return self.function(x, x, (self.floor, self.ceiling))
        np.clip(x, self.floor, self.ceiling, out=x)
        return self.function(x, out=x)


def exponential(dtype: np.dtype[Any]) -> Exponential:
    """Return the exponential to use now: whose was chosen, or else the fastest there is."""
    name = chosen()
    return _exponential(dtype, _fastest(dtype) if name == "auto" else name)


def _fastest(dtype: np.dtype[Any]) -> str:
    """Return NumPy where it has vector instructions for ``exp2`` (AVX-512), else numba, MKL or NumPy."""
    if _is_vectorised("exp2", dtype):
        return "numpy"
    return next((name for name in ("numba", "mkl") if has(name, dtype)), "numpy")


@cache
def _exponential(dtype: np.dtype[Any], whose: str) -> Exponential:
    """Return somebody's ``exp2``; NumPy's ``exp`` where that is the faster one of its own."""
    base2 = whose != "numpy" or _is_vectorised("exp2", dtype)
    function, unit = (_exp2(whose), math.log2(math.e)) if base2 else (np.exp, 1.0)
    factor = 1.0 if base2 else math.log(2.0)
    floor, ceiling, bound = (factor * limit for limit in (_FLOOR, _CEILING, _BOUND))
    return Exponential(f"{whose} {function.__name__}", function, unit, floor, ceiling, bound, whose == "numba")


def _exp2(whose: str) -> Any:
    if whose == "numpy":
        return np.exp2
    if whose == "mkl":
        from .mkl import exp2
    else:
        from .compiled import exp2
    return exp2


@cache
def _is_vectorised(name: str, dtype: np.dtype[Any]) -> bool:
    try:
        from numpy.lib.introspect import opt_func_info
    except ImportError:
        return False
    found = opt_func_info(func_name=f"^{name}$").get(name, {})
    code = np.dtype(dtype).char
    return not found.get(code + code, {"current": "baseline"})["current"].startswith("baseline")
