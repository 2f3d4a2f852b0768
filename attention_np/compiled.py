"""The exponential as a loop that numba compiles, where the package `numba` is installed and can be used.

``2^x = 2^n 2^f`` with ``n`` the nearest whole number to ``x``, and ``2^f = sum_k (f log 2)^k / k!``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from .once import once

__all__ = ["exp2", "load"]

_DEGREES = {"f": 7, "d": 13}  # the first term left out is less than a tenth of a unit in the last place
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}}  # fused alike in a loop's body and its remainder


Loop: TypeAlias = Callable[[Any, float, float], None]
"""``loop(x, low, high)`` works in place on contiguous numbers."""


@once
def load(dtype: np.dtype[Any], clamped: bool) -> Loop | None:
    """Compile the loop for a dtype, or return ``None`` where numba is missing, does not suit NumPy, or is disabled."""
    return _compiled(dtype, clamped)


def _compiled(dtype: np.dtype[Any], clamped: bool) -> Any:
    loop = _loop(dtype, clamped)
    return _jitted(loop, dtype, cache=True) or _jitted(loop, dtype, cache=False)  # without a place for it, or damaged


def _jitted(loop: Loop, dtype: np.dtype[Any], *, cache: bool) -> Any:
    try:
        import numba

        if numba.config.DISABLE_JIT:
            return None
        real = numba.from_dtype(dtype)
        return numba.njit(numba.void(real[::1], real, real), cache=cache, **_OPTIONS)(loop)
    except Exception:  # noqa: BLE001  an import that was interrupted, or a cache cut short, fails in any way
        return None


def _loop(dtype: np.dtype[Any], clamped: bool) -> Loop:
    """Return the loop ``x = 2^x``, or ``x = 2^min(max(x, low), high)``, for what numbers of a dtype are made of."""
    real: Any = dtype.type
    integer: Any = np.dtype(f"i{dtype.itemsize}").type
    bits, bias = int(np.finfo(dtype).nmant), np.finfo(dtype).maxexp - 1
    shift = real(1.5 * 2.0**bits + bias)  # a number plus this is rounded to a whole one, its last bits, plus the bias
    taylor = tuple(real(math.log(2) ** k / math.factorial(k)) for k in range(_DEGREES[dtype.char], -1, -1))
    zero = real(0)

    def loop(x: Any, low: Any, high: Any) -> None:
        for i in range(x.size):
            exponent = min(max(x[i], low), high) if clamped else x[i]  # NaN stays NaN
            whole = real(exponent + shift)
            fraction = exponent - (whole - shift)
            power = zero
            for coefficient in taylor:
                power = power * fraction + coefficient
            x[i] = power * integer(whole.view(integer) << bits).view(real)

    return loop


def exp2(x: Any, out: Any = None, limits: tuple[float, float] | None = None) -> Any:
    """Return ``2^x`` of numbers kept within limits, or whose ``2^x`` is neither infinite nor a denormal number.

    ``out`` is contiguous, and may be ``x``.
    """
    if out is None:
        out = np.array(x, order="C")
    elif out is not x:
        np.copyto(out, x)
    loop = load(out.dtype, limits is not None)
    assert loop is not None
    loop(out.reshape(-1), *(limits or (0.0, 0.0)))
    return out
