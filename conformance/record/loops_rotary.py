"""The second source for rotary embedding: complex numbers, one pair after the other, angles of 40 digits.

The scalings are those of the papers' own code, a pair at a time.
"""

import math
from collections.abc import Mapping
from typing import Any

import mpmath
import numpy as np

Arrays = Mapping[str, np.ndarray]
CONTEXT = mpmath.MPContext()
CONTEXT.dps = 40


def run(inputs: Arrays, parameters: Mapping[str, Any], cotangents: Arrays) -> dict[str, np.ndarray]:
    """Return `out`, and the gradient of `x`: the cotangent turned back."""
    found = {"out": _turn(np.asarray(inputs["x"], np.float64), parameters, 1)}
    if "out" in cotangents:
        found["gradient.x"] = _turn(np.asarray(cotangents["out"], np.float64), parameters, -1)
    return found


def _turn(x: np.ndarray, parameters: Mapping[str, Any], way: int) -> np.ndarray:
    out, depth = x.copy(), x.shape[-1]
    dim = parameters["dim"] or depth
    swapped = parameters["layout"] == "BLHD" and x.ndim > 2
    for place in np.ndindex(x.shape[:-1]):
        row = place[-2] if swapped else place[-1]
        position = _position(parameters["positions"], place[: x.ndim - 3], row)
        for pair in range(dim // 2):
            first, second = (2 * pair, 2 * pair + 1) if parameters["interleaved"] else (pair, pair + dim // 2)
            f, factor = frequency(parameters, pair, dim)
            number = CONTEXT.mpc(float(x[(*place, first)]), float(x[(*place, second)]))
            turned = number * CONTEXT.expj(way * position * CONTEXT.mpf(f)) * factor
            out[(*place, first)], out[(*place, second)] = float(turned.real), float(turned.imag)
    return out


def _position(given: Any, item: tuple[int, ...], row: int) -> int:
    if isinstance(given, int):
        return given + row
    return int(np.asarray(given)[(*item, row)] if np.ndim(given) > 1 else given[row])


def frequency(parameters: Mapping[str, Any], pair: int, dim: int) -> tuple[float, float]:
    """Return the radians a position of one pair, and what cosine and sine are multiplied with."""
    base, rule = parameters["base"], parameters["scaling"]
    plain = 1.0 / base ** (2 * pair / dim)
    if rule is None:
        return plain, 1.0
    if rule["rule"] == "linear":
        return plain / rule["factor"], 1.0
    if rule["rule"] == "ntk":
        return 1.0 / (base * rule["alpha"] ** (dim / (dim - 2))) ** (2 * pair / dim), 1.0
    if rule["rule"] == "longrope":
        return plain / rule["factors"][pair], (1 + math.log(rule["factor"], rule["original_length"])) ** 0.5
    return _llama3(rule, plain) if rule["rule"] == "llama3" else _yarn(rule, plain, pair, base, dim)


def _llama3(rule: Mapping[str, Any], plain: float) -> tuple[float, float]:
    wave, length = 2 * math.pi / plain, rule["original_length"]
    if wave < length / rule["high_frequency_factor"]:
        return plain, 1.0
    if wave > length / rule["low_frequency_factor"]:
        return plain / rule["factor"], 1.0
    low, high = rule["low_frequency_factor"], rule["high_frequency_factor"]
    smooth = (length / wave - low) / (high - low)
    return (1 - smooth) * plain / rule["factor"] + smooth * plain, 1.0


def _yarn(rule: Mapping[str, Any], plain: float, pair: int, base: float, dim: int) -> tuple[float, float]:
    def turning(times: float) -> float:
        return dim * math.log(rule["original_length"] / (times * 2 * math.pi)) / (2 * math.log(base))

    low, high = turning(rule["beta_fast"]), turning(rule["beta_slow"])
    if rule["truncate"]:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, dim - 1.0)
    high = high + 0.001 if low == high else high
    kept = 1 - min(1.0, max(0.0, (pair - low) / (high - low)))
    return plain / rule["factor"] * (1 - kept) + plain * kept, 0.1 * math.log(rule["factor"]) + 1.0
