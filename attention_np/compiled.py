"""The exponential as a loop that numba compiles, where the package `numba` is installed and can be used.

``2^x = 2^n 2^f`` with ``n`` the nearest whole number to ``x``, and ``2^f = sum_k (f log 2)^k / k!``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .once import once

__all__ = ["exp2", "load"]

_DEGREES = {"f": 7, "d": 13}  # the first term left out is less than a tenth of a unit in the last place
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}}  # fused alike in a loop's body and its remainder


@once
def load(dtype: np.dtype[Any]) -> Callable[[Any], None] | None:
    """Compile the loop for a dtype, or return ``None`` where numba is missing, does not suit NumPy, or is disabled."""
    try:
        import numba
    except (ImportError, AttributeError, SystemError):
        return None
    if numba.config.DISABLE_JIT:
        return None
    loop, kinds = _loop(dtype), [numba.void(numba.from_dtype(dtype)[::1])]
    try:
        return numba.njit(kinds, cache=True, **_OPTIONS)(loop)
    except (RuntimeError, OSError):  # there is no place for a cache
        return _uncached(numba, kinds, loop)
    except numba.core.errors.NumbaError:
        return None


def _uncached(numba: Any, kinds: Any, loop: Any) -> Any:
    try:
        return numba.njit(kinds, **_OPTIONS)(loop)
    except (RuntimeError, OSError, numba.core.errors.NumbaError):
        return None


def _loop(dtype: np.dtype[Any]) -> Callable[[Any], None]:
    """Return the loop ``x = 2^x``, in place, for what numbers of this dtype are made of."""
    real: Any = dtype.type
    integer: Any = np.dtype(f"i{dtype.itemsize}").type
    bits, bias = int(np.finfo(dtype).nmant), np.finfo(dtype).maxexp - 1
    shift = real(1.5 * 2.0**bits + bias)  # a number plus this is rounded to a whole one, its last bits, plus the bias
    taylor = tuple(real(math.log(2) ** k / math.factorial(k)) for k in range(_DEGREES[dtype.char], -1, -1))
    zero = real(0)

    def loop(x: Any) -> None:
        for i in range(x.size):
            n = real(x[i] + shift)
            f = x[i] - (n - shift)
            p = zero
            for coefficient in taylor:
                p = p * f + coefficient
            x[i] = p * integer(n.view(integer) << bits).view(real)

    return loop


def exp2(x: Any, out: Any = None) -> Any:
    """Return ``2^x`` of numbers whose ``2^x`` is an ordinary one; ``out`` is contiguous, and may be ``x``."""
    if out is None:
        out = np.array(x, order="C")
    elif out is not x:
        np.copyto(out, x)
    loop = load(out.dtype)
    assert loop is not None
    loop(out.reshape(-1))
    return out
