"""A case before it is recorded: inputs and meaning. Everything else is computed, and refused where it disagrees."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.cases import Case, Coincidence, Expected, Variant
from conformance.errors import RecordError
from conformance.record import plain, second
from conformance.record.plain import Tensor, Tensors
from conformance.record.wrong import WrongOutputs
from conformance.tensors import dtype_named
from conformance.verdict import distance, epsilon, magnitude

AGREEMENT = 64.0
SINCE = "0.1.0"


@dataclass(frozen=True, eq=False)
class Draft:
    """One case to record. `article` names outputs as the article does, with the tensors that its own lines gave."""

    id: str
    name: str
    why: str
    failure: str
    op: str
    inputs: Tensors
    parameters: Mapping[str, Any]
    wrt: tuple[str, ...] = ()
    wrong: WrongOutputs = field(default_factory=dict)
    coincidences: tuple[Coincidence, ...] = ()
    article: Mapping[str, tuple[str, Tensor]] = field(default_factory=dict)
    section: str | None = None
    features: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float64", "float32")


def record_case(group: str, draft: Draft) -> Case:
    """Compute truth, second source, PyTorch's own outputs and the wrong variants of one draft."""
    return Case(
        id=draft.id,
        name=draft.name,
        group=group,
        section=draft.section,
        why=draft.why,
        failure=draft.failure,
        since=SINCE,
        op=draft.op,
        inputs=arrays_of(draft.inputs),
        parameters=draft.parameters,
        dtypes=draft.dtypes,
        expected=_expected(draft),
        cotangents=arrays_of(cotangents(draft)),
        variants=_variants(draft),
        coincidences=draft.coincidences,
        features=draft.features,
        flags=draft.flags,
    )


def cotangents(draft: Draft) -> dict[str, Tensor]:
    """Return the cotangent of `out`: eighths between -1 and 1, exact in every dtype, drawn by the case's id alone."""
    import torch

    if not draft.wrt:
        return {}
    shape = plain.OPS[draft.op](draft.inputs, draft.parameters)["out"].shape
    generator = torch.Generator().manual_seed(zlib.crc32(draft.id.encode()))
    return {"out": torch.randint(-8, 9, shape, generator=generator).float() / 8}


def run_plain(draft: Draft, dtype: str) -> dict[str, np.ndarray]:
    """Run plain PyTorch in one dtype, gradients included."""
    import torch

    kind = getattr(torch, dtype)
    inputs = {name: _as(tensor, kind).requires_grad_(name in draft.wrt) for name, tensor in draft.inputs.items()}
    outputs = plain.OPS[draft.op](inputs, draft.parameters)
    seeds = {name: tensor.to(kind) for name, tensor in cotangents(draft).items()}
    found = plain.gradients(outputs, seeds, inputs, draft.wrt) if draft.wrt else {}
    return arrays_of({**outputs, **found})


def run_second(draft: Draft) -> dict[str, np.ndarray]:
    """Run the second source on the same inputs."""
    inputs = {name: second.box(array) for name, array in arrays_of(draft.inputs).items()}
    outputs = second.OPS[draft.op](inputs, draft.parameters)
    found = second.gradients(outputs, arrays_of(cotangents(draft)), inputs, draft.wrt) if draft.wrt else {}
    return {name: second.unbox(boxed) for name, boxed in {**outputs, **found}.items()}


def _expected(draft: Draft) -> dict[str, Expected]:
    truth, other = run_plain(draft, "float64"), run_second(draft)
    if truth.keys() != other.keys():
        raise RecordError(f"{draft.id}: the two sources give other outputs: {sorted(truth.keys() ^ other.keys())}")
    runs = {dtype: run_plain(draft, dtype) for dtype in draft.dtypes if dtype != "float64"}
    return {name: _one_expected(draft, name, truth[name], other[name], runs) for name in truth}


def _one_expected(draft: Draft, name: str, truth: np.ndarray, other: np.ndarray, runs: Mapping[str, Any]) -> Expected:
    apart, note = distance(truth, other)
    allowed = AGREEMENT * epsilon("float64") * magnitude(other)
    if apart > allowed:
        raise RecordError(f"{draft.id}: `{name}` of the two sources is {apart:.3g} apart, {allowed:.3g} allowed {note}")
    pytorch = {dtype: run[name] for dtype, run in runs.items()}
    article = None
    if name in draft.article:
        article, tensor = draft.article[name]
        pytorch["float32"] = _checked(draft, name, tensor, pytorch["float32"])
    errors = {"float64": apart} | {dtype: distance(array, truth)[0] for dtype, array in pytorch.items()}
    return Expected(truth, pytorch, {dtype: _three_digits(error) for dtype, error in errors.items()}, article)


def _three_digits(error: float) -> float:
    """An error is a size, not a number to reproduce."""
    return float(f"{error:.3g}")


def _checked(draft: Draft, name: str, tensor: Tensor, ours: np.ndarray) -> np.ndarray:
    """The tensor that the article's own lines gave, once it agrees with the op that the case records."""
    array = arrays_of({name: tensor})[name].reshape(ours.shape)
    if distance(array, ours)[0] > 4 * epsilon("float32") * magnitude(ours):
        raise RecordError(f"{draft.id}: `{name}` is not what the article's own lines give")
    return array


def _variants(draft: Draft) -> tuple[Variant, ...]:
    import torch

    inputs = {name: _as(tensor, torch.float64) for name, tensor in draft.inputs.items()}
    return tuple(Variant(name, means, arrays_of(make(inputs))) for name, (means, make) in draft.wrong.items())


def _as(tensor: Tensor, kind: Any) -> Tensor:
    return tensor.detach().clone().to(kind) if tensor.is_floating_point() else tensor


def arrays_of(tensors: Tensors) -> dict[str, np.ndarray]:
    """Return tensors as NumPy arrays, bit for bit."""
    return {name: _array(tensor.detach()) for name, tensor in tensors.items()}


def _array(tensor: Tensor) -> np.ndarray:
    import torch

    if tensor.dtype != torch.bfloat16:
        return np.array(tensor.numpy())
    # NumPy has no bfloat16 of its own: the bits go over as integers.
    return np.array(tensor.view(torch.int16).numpy()).view(dtype_named("bfloat16"))
