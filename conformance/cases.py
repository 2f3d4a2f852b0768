"""What a test vector is: frozen values, free of files and frameworks. `conformance.format` reads and writes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.tensors import dtype_named

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Expected:
    """One expected tensor: the float64 truth, what plain PyTorch gave in each dtype, and how far off that was."""

    truth: np.ndarray
    pytorch: Arrays = field(default_factory=dict)
    error: Mapping[str, float] = field(default_factory=dict)
    article: str | None = None


@dataclass(frozen=True, eq=False)
class Variant:
    """A named wrong answer: the tensors that another convention gives, and what that convention means."""

    name: str
    means: str
    tensors: Arrays


@dataclass(frozen=True)
class Coincidence:
    """Names of variants (or `expected`) that must give the same tensors in this case, and why."""

    names: tuple[str, ...]
    because: str


@dataclass(frozen=True, eq=False)
class Case:
    """One question to an implementation, with everything needed to ask it and to judge the answer."""

    id: str
    name: str
    group: str
    section: str | None
    why: str
    failure: str
    since: str
    op: str
    inputs: Arrays
    parameters: Mapping[str, Any]
    dtypes: tuple[str, ...]
    expected: Mapping[str, Expected]
    cotangents: Arrays = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()
    coincidences: tuple[Coincidence, ...] = ()
    features: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    valid: bool = True

    def inputs_as(self, dtype: str) -> dict[str, np.ndarray]:
        """Return fresh copies of the inputs, the real ones in `dtype`, indices and masks as they are."""
        return {name: _copy(array, dtype) for name, array in self.inputs.items()}

    def cotangents_as(self, dtype: str) -> dict[str, np.ndarray]:
        """Return fresh copies of the cotangents in `dtype`."""
        return {name: _copy(array, dtype) for name, array in self.cotangents.items()}

    def gradients(self) -> tuple[str, ...]:
        """Return the names of the inputs whose gradients the case expects."""
        return tuple(name.removeprefix("gradient.") for name in self.expected if name.startswith("gradient."))


@dataclass(frozen=True)
class Stamp:
    """Who recorded a group: the recorder's version, PyTorch, Python, and the processor with the kernels it took."""

    recorder: int
    torch: str
    python: str
    processor: str


@dataclass(frozen=True, eq=False)
class Group:
    """Cases that ask one question, judged by one number per dtype: `worst`, plain PyTorch's worst error over them."""

    name: str
    title: str
    stamp: Stamp
    worst: Mapping[str, float]
    cases: tuple[Case, ...]


def worst_errors(cases: tuple[Case, ...]) -> dict[str, float]:
    """Return plain PyTorch's worst error over the cases, by dtype."""
    worst: dict[str, float] = {}
    for case in cases:
        for expected in case.expected.values():
            for dtype, error in expected.error.items():
                worst[dtype] = max(worst.get(dtype, 0.0), error)
    return worst


def _copy(array: np.ndarray, dtype: str) -> np.ndarray:
    # Booleans and integers are masks and indices; everything else, bfloat16 included (kind V), is a real input.
    return np.array(array) if array.dtype.kind in "biu" else np.array(array, dtype_named(dtype))
