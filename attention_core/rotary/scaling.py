"""How a model that was trained on short texts reads longer ones: the frequencies of its rotation, scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log, pi, sqrt
from numbers import Real
from typing import Any

from ..arrays import describe
from ..checks import as_float
from ..values import Value, static_int

__all__ = ["Scaling", "linear", "llama3", "longrope", "ntk", "number", "unscaled", "yarn"]


def unscaled(base: float, dim: int) -> tuple[float, ...]:
    """Return ``base ** (-2 i / dim)`` for the ``dim / 2`` pairs ``i``, in radians a position."""
    return tuple(base ** (-2 * i / dim) for i in range(dim // 2))


@dataclass(frozen=True, eq=False, repr=False)
class Scaling(Value):
    """A change of the frequencies, and a factor for the cosines and sines; made by the functions of ``rotary``.

    >>> from attention_np import rotary
    >>> isinstance(rotary.linear(2.0), rotary.Scaling)
    True
    """

    def frequencies(self, base: float, dim: int) -> tuple[float, ...]:
        """Return the scaled frequencies of the ``dim / 2`` pairs, in radians a position."""
        raise NotImplementedError(f"{type(self).__qualname__} must define frequencies(base, dim)")

    @property
    def attention_factor(self) -> float:
        """What cosines and sines are multiplied with, and so scores twice where query and key are rotated."""
        return 1.0


@dataclass(frozen=True, eq=False, repr=False)
class Linear(Scaling):
    """All frequencies divided by ``factor``."""

    factor: float

    def frequencies(self, base: float, dim: int) -> tuple[float, ...]:
        return tuple(f / self.factor for f in unscaled(base, dim))

    def _call(self) -> str:
        return "linear"


@dataclass(frozen=True, eq=False, repr=False)
class NTK(Scaling):
    """The base grows, so that the slowest pair is slowed by ``alpha`` and the fastest not at all."""

    alpha: float

    def frequencies(self, base: float, dim: int) -> tuple[float, ...]:
        if dim == 2:  # one pair, of frequency 1 for every base
            return unscaled(base, dim)
        return unscaled(base * self.alpha ** (dim / (dim - 2)), dim)

    def _call(self) -> str:
        return "ntk"


@dataclass(frozen=True, eq=False, repr=False)
class YaRN(Scaling):
    """Fast pairs as they were, slow ones divided by ``factor``, and a ramp between them."""

    factor: float
    original_length: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    given_factor: float

    def frequencies(self, base: float, dim: int) -> tuple[float, ...]:
        low, high = self._range(base, dim)
        high += 0.001 if low == high else 0
        kept = [1 - min(max((i - low) / (high - low), 0.0), 1.0) for i in range(dim // 2)]
        rows = zip(unscaled(base, dim), kept, strict=True)
        return tuple(f / self.factor * (1 - share) + f * share for f, share in rows)

    def _range(self, base: float, dim: int) -> tuple[float, float]:
        """The pairs that turn ``beta_fast`` and ``beta_slow`` times within the original length."""
        ends = (self.original_length / (turns * 2 * pi) for turns in (self.beta_fast, self.beta_slow))
        low, high = (dim * log(end) / (2 * log(base)) for end in ends)
        if self.truncate:
            low, high = floor(low), ceil(high)
        return max(low, 0), min(high, dim - 1)

    @property
    def attention_factor(self) -> float:
        return self.given_factor

    def _call(self) -> str:
        return "yarn"


@dataclass(frozen=True, eq=False, repr=False)
class Llama3(Scaling):
    """Short waves as they were, long ones divided by ``factor``, and a ramp between them."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_length: int

    def frequencies(self, base: float, dim: int) -> tuple[float, ...]:
        return tuple(map(self._scaled, unscaled(base, dim)))

    def _scaled(self, frequency: float) -> float:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        turns = self.original_length * frequency / (2 * pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return (1 - kept) * frequency / self.factor + kept * frequency

    def _call(self) -> str:
        return "llama3"


@dataclass(frozen=True, eq=False, repr=False)
class LongRoPE(Scaling):
    """Each pair's frequency divided by a factor of its own."""

    factors: tuple[float, ...]
    given_factor: float

    def frequencies(self, base: float, dim: int) -> tuple[float, ...]:
        if len(self.factors) != dim // 2:
            raise ValueError(f"`factors` of longrope must be one a pair, {dim // 2}; got {len(self.factors)}")
        return tuple(f / factor for f, factor in zip(unscaled(base, dim), self.factors, strict=True))

    @property
    def attention_factor(self) -> float:
        return self.given_factor

    def _call(self) -> str:
        return "longrope"


# The functions that make them


def linear(factor: float) -> Scaling:
    """Position interpolation (Chen et al. 2023): positions, and so all frequencies, divided by ``factor``.

    >>> from attention_np import rotary
    >>> rotary.Rotary(base=100.0, scaling=rotary.linear(4.0)).frequencies(4)
    (0.25, 0.025)
    """
    return Linear(number("factor", factor))


def ntk(alpha: float) -> Scaling:
    """NTK-aware interpolation: ``base * alpha ** (dim / (dim - 2))``, which slows the slowest pair by ``alpha``.

    The frequencies are those of every position, so that cached keys stay right. What Hugging Face calls ``"dynamic"``
    is, for a text of ``length > original``, ``ntk(factor * length / original - (factor - 1))``.

    >>> from attention_np import rotary
    >>> rotary.Rotary(base=100.0, scaling=rotary.ntk(4.0)).frequencies(4)
    (1.0, 0.025)
    """
    return NTK(number("alpha", alpha))


def yarn(
    factor: float,
    original_length: int,
    *,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    truncate: bool = True,
) -> Scaling:
    """YaRN (Peng et al. 2023): interpolation by parts, and cosines and sines times an attention factor.

    Pair ``i`` turns ``original_length * f_i / (2 pi)`` times within the original length. Pairs that turn at least
    ``beta_fast`` times keep their frequency, those that turn at most ``beta_slow`` times have it divided by ``factor``,
    and in between the share kept falls linearly in ``i``; ``truncate`` rounds the two bounds outwards to whole pairs
    (gpt-oss does not).

    ``attention_factor`` is by default ``0.1 log(factor) + 1``, or, with both of DeepSeek's options,
    ``(0.1 mscale log(factor) + 1) / (0.1 mscale_all_dim log(factor) + 1)``.

    >>> from attention_np import rotary
    >>> scaling = rotary.yarn(32.0, 4096, truncate=False)
    >>> round(scaling.attention_factor, 4)
    1.3466
    """
    factor = number("factor", factor)
    if attention_factor is None:
        top, bottom = (mscale, mscale_all_dim) if mscale and mscale_all_dim else (1.0, 0.0)
        attention_factor = _mscale(factor, top) / _mscale(factor, bottom)
    return YaRN(
        factor,
        static_int("original_length", original_length, least=1),
        number("beta_fast", beta_fast),
        number("beta_slow", beta_slow),
        bool(truncate),
        number("attention_factor", attention_factor),
    )


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * log(factor) + 1.0


def llama3(
    factor: float, low_frequency_factor: float, high_frequency_factor: float, *, original_length: int
) -> Scaling:
    """Llama 3.1's scaling: by how often a pair turns within the original length.

    More often than ``high_frequency_factor``: as it was; less often than ``low_frequency_factor``: divided by
    ``factor``; in between the share kept is linear in the number of turns.

    >>> from attention_np import rotary
    >>> scaling = rotary.llama3(8.0, 1.0, 4.0, original_length=8192)
    >>> [round(1 / f) for f in rotary.Rotary(base=500000.0, scaling=scaling).frequencies(128)[29:36:2]]
    [462, 1167, 3198, 10464]
    """
    low = number("low_frequency_factor", low_frequency_factor)
    high = number("high_frequency_factor", high_frequency_factor)
    if low >= high:
        raise ValueError(f"`low_frequency_factor` must be below `high_frequency_factor`; got {low} and {high}")
    return Llama3(number("factor", factor), low, high, static_int("original_length", original_length, least=1))


def longrope(factors: Sequence[float], *, factor: float = 1.0, original_length: int | None = None) -> Scaling:
    """LongRoPE (Ding et al. 2024; Phi-3): each pair's frequency divided by one of ``factors``, ``(dim / 2,)``.

    A model has two lists, for texts up to its original length and beyond: give the one that the text needs. Cosines
    and sines are multiplied by ``sqrt(1 + log(factor) / log(original_length))``, ``factor`` being the ratio of the
    longest length to the original one.

    >>> from attention_np import rotary
    >>> rotary.Rotary(base=100.0, scaling=rotary.longrope([1.0, 2.0])).frequencies(4)
    (1.0, 0.05)
    """
    factor, attention_factor = number("factor", factor), 1.0
    if factor > 1:
        length = static_int("original_length", original_length, least=2)
        attention_factor = sqrt(1 + log(factor) / log(length))
    return LongRoPE(tuple(number("factors", each) for each in factors), attention_factor)


def number(name: str, value: Any) -> float:
    """Return a finite positive Python number as a float."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"`{name}` must be a Python number; got {describe(value)}")
    as_given = as_float(value)
    if not isfinite(as_given) or as_given <= 0:
        raise ValueError(f"`{name}` must be positive and finite; got {as_given}")
    return as_given
