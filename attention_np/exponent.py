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

from .gemm import exponential_provider

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


def exponential(dtype: np.dtype[Any]) -> Exponential:
    """Return the exponential to use now: MKL's where it is to be used, else the faster one of NumPy's."""
    return _exponential(dtype, exponential_provider())


@cache
def _exponential(dtype: np.dtype[Any], whose: str) -> Exponential:
    """Return ``exp2`` of MKL, or of NumPy where it has vector instructions for it (AVX-512), else NumPy's ``exp``."""
    base2 = whose == "mkl" or _is_vectorised("exp2", dtype)
    function, unit = (_exp2(whose), math.log2(math.e)) if base2 else (np.exp, 1.0)
    factor = 1.0 if base2 else math.log(2.0)
    name = f"{whose if base2 else 'numpy'} {function.__name__}"
    return Exponential(name, function, unit, *(factor * limit for limit in (_FLOOR, _CEILING, _BOUND)))


def _exp2(whose: str) -> Any:
    if whose != "mkl":
        return np.exp2
    from .mkl import exp2

    return exp2


def _is_vectorised(name: str, dtype: np.dtype[Any]) -> bool:
    try:
        from numpy.lib.introspect import opt_func_info
    except ImportError:
        return False
    found = opt_func_info(func_name=f"^{name}$").get(name, {})
    code = np.dtype(dtype).char
    return not found.get(code + code, {"current": "baseline"})["current"].startswith("baseline")
