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
    tangents: Arrays = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()
    coincidences: tuple[Coincidence, ...] = ()
    features: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    valid: bool = True

    def inputs_as(self, dtype: str) -> dict[str, np.ndarray]:
        """Return fresh copies of the inputs, laid out as the case says; the real ones in `dtype` or that of `fixed`."""
        copies = {name: _copy(array, self.fixed.get(name, dtype)) for name, array in self.inputs.items()}
        return copies | {name: laid_out(copies[name], memory) for name, memory in self.memory.items()}

    def cotangents_as(self, dtype: str) -> dict[str, np.ndarray]:
        """Return fresh copies of the cotangents in `dtype`."""
        return {name: _copy(array, dtype) for name, array in self.cotangents.items()}

    def tangents_as(self, dtype: str) -> dict[str, np.ndarray]:
        """Return fresh copies of the inputs' tangents in `dtype`."""
        return {name: _copy(array, self.fixed.get(name, dtype)) for name, array in self.tangents.items()}

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


def laid_out(array: np.ndarray, memory: Mapping[str, Any]) -> np.ndarray:
    """Return the same numbers as a view of other memory.

    `order` lists the axes from the slowest to the fastest in memory, `steps` how many places apart neighbours of an
    axis are in units of a dense array: 2 leaves gaps, -1 runs backwards, 0 (for equal neighbours) repeats one place.
    """
    order, steps = memory["order"], memory["steps"]
    shape = [1 if step == 0 else abs(step) * size for size, step in zip(array.shape, steps, strict=True)]
    # Gaps hold 7, so that whoever reads them is seen.
    room = np.full([shape[axis] for axis in order], 7, array.dtype).transpose(np.argsort(order))
    places = tuple(slice(None, None, step) if step else slice(None) for step in steps)
    view = room[places]
    view[...] = array[tuple(slice(0, 1) if step == 0 else slice(None) for step in steps)]
    return np.broadcast_to(view, array.shape)


def in_memory(view: np.ndarray) -> np.ndarray:
    """Return the numbers that a reader gets who takes a view's memory, from its beginning, for a dense array."""
    room = view
    while isinstance(room.base, np.ndarray):
        room = room.base
    flat = np.lib.stride_tricks.as_strided(room, (room.size,), (room.itemsize,))
    return np.resize(flat, view.shape)


def _copy(array: np.ndarray, dtype: str) -> np.ndarray:
    # Booleans and integers are masks and indices; everything else, bfloat16 included (kind V), is a real input.
    return np.array(array) if array.dtype.kind in "biu" else np.array(array, dtype_named(dtype))
