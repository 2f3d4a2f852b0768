"""The rotation itself: which pairs of features turn how fast, and the turning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import inf, isfinite, pi
from types import ModuleType
from typing import Any, NamedTuple

from ..arrays import Array, array_namespace, as_array, cast, compute_dtype, describe, device_of
from ..checks import check_dtypes, check_layout, check_positions
from ..layout import from_heads_first, heads_first
from ..pairs import as_index
from ..values import Value, static_int
from .scaling import Scaling, number, unscaled

__all__ = ["Rotary", "rotate", "rotate_alike"]


@dataclass(frozen=True, eq=False)
class Rotary(Value):
    """Which features turn and how fast: Python values alone, static under JAX.

    Args:
        base: the base of the frequencies ``base ** (-2 i / dim)``, Hugging Face's ``rope_theta``.
        dim: the first ``dim`` features of a head turn, the others stay (partial rotation); ``None`` means all.
        interleaved: pair feature ``2 i`` with ``2 i + 1`` (GPT-J, Cohere, GLM); by default ``i`` with ``i + dim / 2``
            (GPT-NeoX, Llama, and nearly everything on Hugging Face).
        scaling: a value of ``rotary.linear``, ``ntk``, ``yarn``, ``llama3``, ``longrope``, or ``None``.

    >>> from attention_np import Rotary
    >>> Rotary(base=100.0).frequencies(4)
    (1.0, 0.1)
    """

    base: float = 10000.0
    dim: int | None = None
    interleaved: bool = False
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", number("base", self.base))
        if self.base == 1.0:
            raise ValueError("`base` must not be 1, for which all pairs turn alike")
        if self.dim is not None:
            object.__setattr__(self, "dim", static_int("dim", self.dim, least=2))
            if self.dim % 2:
                raise ValueError(f"`dim` must be even: features turn in pairs; got {self.dim}")
        if not isinstance(self.interleaved, bool):
            raise TypeError(f"`interleaved` must be a bool; got {describe(self.interleaved)}")
        if not (self.scaling is None or isinstance(self.scaling, Scaling)):
            raise TypeError(f"`scaling` must be made by a function of `rotary`, or None; got {describe(self.scaling)}")

    def frequencies(self, depth: int) -> tuple[float, ...]:
        """Return the radians a position of each pair, for heads of ``depth`` features."""
        dim = self._dim(depth)
        try:
            found = unscaled(self.base, dim) if self.scaling is None else self.scaling.frequencies(self.base, dim)
        except OverflowError:
            found = (inf,)
        if not all(map(isfinite, found)):
            raise ValueError(f"{self!r} has frequencies larger than any float, for {dim} features that turn")
        return found

    def _dim(self, depth: int) -> int:
        dim = depth if self.dim is None else self.dim
        if dim > depth or dim % 2:
            raise ValueError(f"heads of depth {depth} have no {dim} features that turn in pairs: give an even `dim`")
        return dim


def rotate(x: Array, positions: int | Array, rotary: Rotary, *, layout: str = "BHLD") -> Array:
    r"""Turn the pairs of features of ``x (..., H, L, D)`` by angles proportional to their positions.

    For pair ``i`` with features ``a`` and ``b`` at position ``p``, in ``result_type(x, float32)``, rounded once::

        a' = m (a cos(p f_i) - b sin(p f_i))
        b' = m (b cos(p f_i) + a sin(p f_i))

    ``f_i`` are ``rotary.frequencies(D)``, ``m`` the scaling's attention factor (1 but for YaRN and LongRoPE). The score
    of a rotated query and key depends on the difference of their positions alone.

    Args:
        x: ``(..., H, L, D)``, or plain ``(L, D)``, one head.
        positions: an integer ``n`` for ``n, n + 1, ...``, or integers ``(..., L)``; a cache gives its own.
        rotary: which features turn, and how fast.
        layout: ``"BHLD"``, or ``"BLHD"`` for ``(..., L, H, D)``.

    Precision: frequencies are float64; angles are reduced to within half a turn of 0 without an error that grows with
    the position, for all positions that fit 32 bits. So cosines and sines are right to a few units of float32 at
    position 2 ** 30 too, where the usual product of float32 numbers is wrong in every digit.

    The transpose, by which a cotangent goes back, is the rotation by ``-positions``. JAX differentiates it itself.

    >>> import numpy as np
    >>> from attention_np import Rotary, rotate
    >>> rotate(np.array([[1.0, 0.0], [1.0, 0.0]]), 0, Rotary()).round(4)
    array([[1.    , 0.    ],
           [0.5403, 0.8415]])
    """
    xp = _checked(x, positions, rotary, layout)
    (turned,) = rotate_alike(xp, (heads_first(xp, x, layout),), positions, rotary)
    return from_heads_first(xp, turned, layout, x.ndim == 2)


def rotate_alike(xp: ModuleType, arrays: tuple[Array, ...], positions: Any, rotary: Rotary) -> tuple[Array, ...]:
    """Rotate arrays ``(..., H, L, D)`` of any heads, but of the same length and depth, by one table."""
    _check_rotary(rotary)
    x = arrays[0]
    positions = check_positions("positions", positions, tuple(x.shape[:-3]), x.shape[-2])
    dtype = compute_dtype(xp, *(each.dtype for each in arrays))
    cos, sin = _tables(xp, _settled(xp, positions, x), rotary, x.shape[-1], dtype)
    return tuple(cast(xp, _turned(xp, cast(xp, each, dtype), cos, sin, rotary), each.dtype) for each in arrays)


def _checked(x: Any, positions: Any, rotary: Any, layout: str) -> ModuleType:
    check_layout(layout)
    _check_rotary(rotary)
    named = [("x", x)] + ([("positions", positions)] if hasattr(positions, "ndim") else [])
    xp = array_namespace(*named)
    check_dtypes(xp, x=x)
    if x.ndim < 2:
        raise ValueError(f"`x` must have at least the axes (L, D); got shape {tuple(x.shape)}")
    return xp


def _check_rotary(rotary: Any) -> None:
    if not isinstance(rotary, Rotary):
        raise TypeError(f"`rotary` must be a Rotary; got {describe(rotary)}")


def _settled(xp: ModuleType, positions: int | Array, x: Array) -> Array:
    """Return positions as an integer array ``(..., L)``."""
    if not isinstance(positions, int) and positions.ndim:
        return as_index(xp, as_array(xp, positions))
    return xp.arange(x.shape[-2], device=device_of(xp, x)) + as_index(xp, positions)


def _turned(xp: ModuleType, x: Array, cos: Array, sin: Array, rotary: Rotary) -> Array:
    pairs = cos.shape[-1]
    if rotary.interleaved:
        a, b = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    else:
        a, b = x[..., :pairs], x[..., pairs : 2 * pairs]
    turned = [a * cos - b * sin, b * cos + a * sin]
    if rotary.interleaved:
        turned = [xp.reshape(xp.stack(turned, axis=-1), (*x.shape[:-1], 2 * pairs))]
    rest = [x[..., 2 * pairs :]] if x.shape[-1] > 2 * pairs else []
    return xp.concat([*turned, *rest], axis=-1) if len(turned) + len(rest) > 1 else turned[0]


def _tables(xp: ModuleType, positions: Array, rotary: Rotary, depth: int, dtype: Any) -> tuple[Array, Array]:
    """Return the cosines and sines, ``(..., 1, L, pairs)``."""
    angles = _angles(xp, positions[..., None, :, None], rotary, depth, dtype)
    cos, sin = xp.cos(angles), xp.sin(angles)
    factor = 1.0 if rotary.scaling is None else rotary.scaling.attention_factor
    return (cos, sin) if factor == 1.0 else (factor * cos, factor * sin)


# Angles without an error that grows with the position: the position's digits of 10 bits times what each of them turns,
# in turns. That is cut in two: a coarse part of so few bits that its product with a digit is exact, whose whole turns
# are dropped exactly, and a small fine part.

_DIGIT = 10
_DIGITS = 3
_TURNS_A_RADIAN = Fraction(0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E4107F9, 2**204)  # 1 / (2 pi)


class _Step(NamedTuple):
    """What one unit of a digit turns each pair by, in turns, less whole ones: ``coarse + fine``."""

    coarse: tuple[float, ...]
    fine: tuple[float, ...]


@lru_cache(maxsize=64)
def _steps(rotary: Rotary, depth: int, bits: int) -> tuple[_Step, ...]:
    turns = [Fraction(f) * _TURNS_A_RADIAN for f in rotary.frequencies(depth)]
    return tuple(_step([t * 2 ** (_DIGIT * n) for t in turns], bits) for n in range(_DIGITS))


def _step(turns: list[Fraction], bits: int) -> _Step:
    parts = [t - round(t) for t in turns]
    coarse = [Fraction(round(part * 2**bits), 2**bits) for part in parts]
    return _Step(tuple(map(float, coarse)), tuple(float(p - c) for p, c in zip(parts, coarse, strict=True)))


def _digits(positions: Array) -> Iterator[Array]:
    for n in range(_DIGITS - 1):
        yield (positions >> (_DIGIT * n)) & (2**_DIGIT - 1)
    yield positions >> (_DIGIT * (_DIGITS - 1))  # the last has the rest, and the sign


def _angles(xp: ModuleType, positions: Array, rotary: Rotary, depth: int, dtype: Any) -> Array:
    """Return ``positions * frequencies`` in radians, reduced to within half a turn of 0."""
    steps = _steps(rotary, depth, 42 if dtype == xp.float64 else 13)
    coarse = fine = xp.asarray(0.0, dtype=dtype, device=device_of(xp, positions))
    for digit, step in zip(_digits(positions), steps, strict=True):
        factor = xp.astype(digit, dtype)
        a, b = (xp.asarray(part, dtype=dtype, device=device_of(xp, positions)) for part in step)
        coarse, fine = coarse + factor * a, fine + factor * b
    return ((coarse - xp.round(coarse)) + fine) * (2 * pi)
