"""The one rule: within `4 E + 4 eps max|expected|` of the truth or not, and if not, which wrong convention it matches.

`E` is the worst error of plain PyTorch over the case's group in that dtype: an implementation is measured against the
reference's own rounding, not against a tolerance from taste.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from conformance.cases import Case, Variant
from conformance.tensors import dtype_named

FACTOR = 4.0
# NaN equals NaN whatever made it: a variant that departs from the truth by NaN alone explains nothing if it is one of
# these, whose NaN is what stands in the inputs.
NOT_OF_NAN = ("causal=", "mask=", "out=", "window=")


@dataclass(frozen=True)
class Judged:
    """One output against the truth: its error in units of the tolerance (at most 1 passes), what is odd about it."""

    name: str
    units: float
    error: float
    tolerance: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the output is within the tolerance."""
        return self.units <= 1.0


@dataclass(frozen=True)
class Verdict:
    """All outputs of one answer, and the variants that it matches where it fails."""

    outputs: tuple[Judged, ...]
    matches: tuple[Variant, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every output is within its tolerance."""
        return all(output.passed for output in self.outputs)

    @property
    def worst(self) -> Judged | None:
        """Return the output that is furthest off, in units of the tolerance; None where nothing was given."""
        return max(self.outputs, key=lambda output: output.units, default=None)


def judge(case: Case, answer: Mapping[str, np.ndarray], worst: Mapping[str, float], dtype: str) -> Verdict:
    """Judge the outputs of `answer` that the case expects; names the matching variants of a failing answer."""
    outputs = tuple(
        judge_output(name, answer[name], expected.truth, worst.get(dtype, 0.0), dtype)
        for name, expected in case.expected.items()
        if name in answer
    )
    failing = {output.name for output in outputs if not output.passed}
    matches = tuple(
        variant
        for variant in case.variants
        if failing & set(variant.tensors)
        and _matches(variant, answer, worst, dtype)
        and not (variant.name.startswith(NOT_OF_NAN) and _departs_by_nan_alone(case, variant))
    )
    return Verdict(outputs, matches)


def judge_output(name: str, answer: np.ndarray, truth: np.ndarray, worst: float, dtype: str) -> Judged:
    """Judge one output. NaN or infinity where the truth is finite is a fail however large the tolerance."""
    allowed = tolerance(truth, worst, dtype)
    error, note = distance(answer, truth)
    if error == 0.0:
        return Judged(name, 0.0, 0.0, allowed)
    return Judged(name, error / allowed if allowed > 0.0 else float("inf"), error, allowed, note)


def tolerance(truth: np.ndarray, worst: float, dtype: str) -> float:
    """Return `4 E + 4 eps max|expected|`, the maximum over the finite numbers."""
    return FACTOR * worst + FACTOR * epsilon(dtype) * magnitude(truth)


def magnitude(truth: np.ndarray) -> float:
    """Return the largest finite absolute value, 0 where there is none."""
    values = np.abs(_float64(truth))
    return float(np.max(values, initial=0.0, where=np.isfinite(values)))


def epsilon(dtype: str) -> float:
    """Return the distance from 1 to the next number of a dtype."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype_named(dtype)).eps)


def distance(answer: np.ndarray, truth: np.ndarray) -> tuple[float, str]:
    """Return the largest absolute difference and a note; infinite for another shape, or stray NaN and infinities."""
    if answer.shape != truth.shape:
        return float("inf"), f"has shape {answer.shape}, expected {truth.shape}"
    got, want = _float64(answer), _float64(truth)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    odd = ~same & ~(np.isfinite(got) & np.isfinite(want))
    if odd.any():
        where = tuple(int(i) for i in np.argwhere(odd)[0])
        return float("inf"), f"is {got[where]} at {list(where)}, expected {want[where]:.4g}"
    apart = np.abs(np.subtract(got, want, out=np.zeros_like(got), where=~same))
    return float(np.max(apart, initial=0.0)), ""


def _matches(variant: Variant, answer: Mapping[str, np.ndarray], worst: Mapping[str, float], dtype: str) -> bool:
    """Whether every tensor of the variant that was also answered agrees with it."""
    return all(
        judge_output(name, answer[name], tensor, worst.get(dtype, 0.0), dtype).passed
        for name, tensor in variant.tensors.items()
        if name in answer
    )


def _departs_by_nan_alone(case: Case, variant: Variant) -> bool:
    """Whether no finite number of the variant, where the truth is finite too, is another one."""
    for name, tensor in variant.tensors.items():
        got, want = _float64(tensor), _float64(case.expected[name].truth)
        if got.shape != want.shape:
            return False
        finite = np.isfinite(got) & np.isfinite(want)
        if np.any(got[finite] != want[finite]):
            return False
    return True


def _float64(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(np.float64)
