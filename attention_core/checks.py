"""All errors of a wrong call: each names the argument, the rule, and what came, before any work is done."""

from __future__ import annotations

import math
from numbers import Integral, Real
from types import ModuleType
from typing import Any

from .arrays import Array, broadcast_shapes, describe, dtype_name, is_real_floating
from .sizes import Sizes

__all__ = [
    "as_float",
    "check_dtypes",
    "check_layout",
    "check_positions",
    "check_scale",
    "check_sinks",
    "check_softcap",
    "fits",
    "measure",
]

_FARTHEST = 2**30


def check_layout(layout: Any) -> None:
    """``layout`` is one of two words; it is never guessed from sizes."""
    if not isinstance(layout, str) or layout not in ("BHLD", "BLHD"):
        raise ValueError(f'`layout` must be "BHLD" or "BLHD"; got {layout!r}')


def check_dtypes(xp: ModuleType, **arrays: Array) -> None:
    """Real floating-point arrays only, and float16 never beside bfloat16, which have no common 16-bit dtype."""
    dtypes = [x.dtype for x in arrays.values()]
    if dtypes.count(xp.float32) + dtypes.count(xp.float64) == len(dtypes):
        return
    names: dict[str, str] = {}
    for name, x in arrays.items():
        if not is_real_floating(xp, x.dtype):
            raise TypeError(
                f"`{name}` has dtype {dtype_name(x.dtype)}; attention needs float16, bfloat16, float32 or float64: "
                "cast it explicitly"
            )
        names[dtype_name(x.dtype)] = name
    if "float16" in names and "bfloat16" in names:
        raise TypeError(
            f"`{names['float16']}` is float16 but `{names['bfloat16']}` is bfloat16: neither holds the other, cast one"
        )


def measure(query: Array, key: Array, value: Array) -> Sizes:
    """Return the sizes of query, key and value in layout ``(..., H, L, D)``, or raise ``ValueError``."""
    *q_batch, heads, queries, depth = query.shape
    *k_batch, kv_heads, keys, key_depth = key.shape
    *v_batch, value_heads, values, value_depth = value.shape
    if key_depth != depth:
        raise ValueError(f"`key` has depth {key_depth}, but `query` has depth {depth}: they must be equal")
    if values != keys:
        raise ValueError(f"`value` has length {values}, but `key` has length {keys}: they must be equal")
    if value_heads != kv_heads:
        raise ValueError(f"`value` has {value_heads} heads, but `key` has {kv_heads}: they must be equal")
    if heads % kv_heads if kv_heads else heads:
        raise ValueError(f"`key` has {kv_heads} heads, which does not divide the {heads} heads of `query`")
    if q_batch == k_batch == v_batch:
        batch = tuple(q_batch)
    else:
        batch = _common_batch(tuple(q_batch), tuple(k_batch), tuple(v_batch))
    return Sizes(batch, heads, kv_heads, queries, keys, depth, value_depth)


def _common_batch(*batches: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return broadcast_shapes(*batches)
    except ValueError:
        named = ", ".join(f"`{n}` {b}" for n, b in zip(("query", "key", "value"), batches, strict=True))
        raise ValueError(f"the batch axes of query, key and value must broadcast together; got {named}") from None


def check_axes(query: Array, key: Array, value: Array) -> None:
    """All three are plain ``(L, D)``, or all three have a head axis."""
    if query.ndim > 2 and key.ndim > 2 and value.ndim > 2:
        return
    arrays = {"query": query, "key": key, "value": value}
    for name, x in arrays.items():
        if x.ndim < 2:
            raise ValueError(f"`{name}` must have at least the axes (L, D); got shape {tuple(x.shape)}")
    plain = [name for name, x in arrays.items() if x.ndim == 2]
    if plain and len(plain) < 3:
        shapes = ", ".join(f"`{name}` {tuple(x.shape)}" for name, x in arrays.items())
        raise ValueError(f"query, key and value must all be plain (L, D) or all have a head axis; got {shapes}")


def check_scale(scale: Any, depth: int) -> float:
    """Return the factor of the scores as a Python float: ``1/sqrt(D)`` by default, 1 where ``D = 0``."""
    if scale is None:
        return 1.0 / math.sqrt(depth) if depth else 1.0
    if type(scale) is float and math.isfinite(scale):
        return scale
    return _finite("scale", scale, "an array scale belongs into `query`: pass query * scale, and scale=1.0")


def check_softcap(xp: ModuleType, softcap: Any, dtype: Any) -> float | None:
    """Return the cap as a Python float, or ``None`` for no cap; 0 is not "off" but an error.

    A cap that ``dtype`` does not hold would be its infinity or its 0, and NaN the product: no score reaches the one,
    and the other is as the smallest number.
    """
    if softcap is None:
        return None
    softcap = _finite("softcap", softcap, "None means no cap")
    if softcap <= 0:
        raise ValueError(f"`softcap` must be positive, and None means no cap; got {softcap}")
    limits = xp.finfo(dtype)
    return None if softcap > float(limits.max) else max(softcap, float(limits.smallest_normal))


def _finite(name: str, value: Any, hint: str) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"`{name}` must be a Python number; got {describe(value)} ({hint})")
    number = as_float(value)
    if not math.isfinite(number):
        raise ValueError(f"`{name}` must be finite; got {number}")
    return number


def as_float(value: Any) -> float:
    """Return a real number as a Python float; a larger one than any float is an infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def check_sinks(xp: ModuleType, sinks: Array, sizes: Sizes) -> Array:
    """Return the sinks: one logit a query head."""
    if not is_real_floating(xp, sinks.dtype):
        raise TypeError(f"`sinks` has dtype {dtype_name(sinks.dtype)}; it must be real floating-point")
    if tuple(sinks.shape) != (sizes.heads,):
        raise ValueError(f"`sinks` has shape {tuple(sinks.shape)}; it must be (Hq,) = ({sizes.heads},)")
    return sinks


def check_positions(name: str, positions: Any, batch: tuple[int, ...], length: int) -> Any:
    """Return positions as a Python integer (the first of them) or an integer array ``(..., L)``."""
    if type(positions) is int and -_FARTHEST <= positions <= _FARTHEST - length:
        return positions
    if isinstance(positions, Integral) and not isinstance(positions, bool):
        return _first_position(name, int(positions), length)
    if "int" not in dtype_name(getattr(positions, "dtype", "")):
        raise TypeError(f"`{name}` must be an integer or an integer array (..., L); got {describe(positions)}")
    shape = tuple(positions.shape)
    if shape and (shape[-1] != length or not fits(shape, (*batch, length))):
        raise ValueError(f"`{name}` has shape {shape}, which does not broadcast to (..., L) = {(*batch, length)}")
    return positions


def _first_position(name: str, first: int, length: int) -> int:
    if not -_FARTHEST <= first <= _FARTHEST - length:
        raise ValueError(f"`{name}` must lie within {_FARTHEST} of 0, so that distances fit 32 bits; got {first}")
    return first


def fits(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Say whether ``shape`` broadcasts to exactly ``target``."""
    if shape == target[len(target) - len(shape) :]:
        return True
    try:
        return broadcast_shapes(shape, target) == target
    except ValueError:
        return False
