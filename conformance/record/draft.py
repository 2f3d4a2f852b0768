"""A case before it is recorded: inputs and meaning. Everything else is computed, and refused where it disagrees."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.cases import Case, Coincidence, Expected, Variant
from conformance.errors import RecordError
from conformance.record import loops_call, plain, sdpa, second
from conformance.record.plain import Tensor, Tensors
from conformance.record.wrong import WrongOutputs
from conformance.tensors import dtype_named
from conformance.verdict import distance, epsilon, magnitude

AGREEMENT = 64.0
SINCE = "0.1.0"


@dataclass(frozen=True, eq=False)
class Draft:
    """One case to record. `article` names outputs as the article does, with the tensors that its own lines gave.

    `seeds` are the cotangents by output (drawn by the id where None), `outputs` what is expected besides derivatives
    (None: everything), `loops` takes loops over Python's numbers as the second source and keeps of PyTorch's own runs
    the errors alone.
    """

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
    reports: tuple[str, ...] = ()
    valid: bool = True
    outputs: tuple[str, ...] | None = None
    seeds: Tensors | None = None
    tangents: Tensors = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    loops: bool = False


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
        expected=_expected(draft) if draft.valid else {},
        cotangents=arrays_of(cotangents(draft)),
        tangents=arrays_of(draft.tangents),
        memory=draft.memory,
        fixed=draft.fixed,
        variants=_variants(draft),
        coincidences=draft.coincidences,
        features=draft.features,
        flags=draft.flags,
        reports=draft.reports,
        valid=draft.valid,
    )


def cotangents(draft: Draft) -> dict[str, Tensor]:
    """Return the cotangent of `out`: eighths between -1 and 1, exact in every dtype, drawn by the case's id alone."""
    import torch

    if draft.seeds is not None or not draft.wrt:
        return dict(draft.seeds or {})
    shape = plain.OPS[draft.op](draft.inputs, draft.parameters)["out"].shape
    generator = torch.Generator().manual_seed(zlib.crc32(draft.id.encode()))
    return {"out": torch.randint(-8, 9, shape, generator=generator).float() / 8}


def run_plain(draft: Draft, dtype: str) -> dict[str, np.ndarray]:
    """Run plain PyTorch in one dtype, derivatives included; a 16-bit or float32 `out` is SDPA's where it can do it."""
    inputs = {name: tensor.requires_grad_(name in draft.wrt) for name, tensor in inputs_in(draft, dtype).items()}
    outputs = plain.OPS[draft.op](inputs, draft.parameters)
    seeds = {name: tensor.to(outputs[name].dtype) for name, tensor in cotangents(draft).items()}
    found = plain.gradients(outputs, seeds, inputs, draft.wrt) if draft.wrt else {}
    if draft.tangents:
        found |= plain.tangents(
            draft.op, inputs_in(draft, dtype), draft.parameters, _typed(draft, draft.tangents, dtype)
        )
    if draft.loops and dtype != "float64":
        outputs = outputs | sdpa.outputs(draft.op, inputs_in(draft, dtype), draft.parameters, outputs["out"])
    return arrays_of({**_asked(draft, outputs), **found})


def run_second(draft: Draft) -> dict[str, np.ndarray]:
    """Run the second source on the same inputs."""
    if draft.loops:
        found = loops_call.run(
            draft.op, arrays_of(draft.inputs), draft.parameters, arrays_of(cotangents(draft)), draft.wrt
        )
        moved = loops_call.run_tangents(draft.op, arrays_of(draft.inputs), draft.parameters, arrays_of(draft.tangents))
        derived = {name: array for name, array in found.items() if name.startswith("gradient.")}
        return {**_asked(draft, found), **derived, **moved}
    inputs = {name: second.box(array) for name, array in arrays_of(draft.inputs).items()}
    outputs = second.OPS[draft.op](inputs, draft.parameters)
    found = second.gradients(outputs, arrays_of(cotangents(draft)), inputs, draft.wrt) if draft.wrt else {}
    return {name: second.unbox(boxed) for name, boxed in {**outputs, **found}.items()}


def inputs_in(draft: Draft, dtype: str) -> dict[str, Tensor]:
    """Return fresh inputs in one dtype, those of `fixed` in their own."""
    return _typed(draft, draft.inputs, dtype)


def _typed(draft: Draft, tensors: Tensors, dtype: str) -> dict[str, Tensor]:
    import torch

    # The truth is that of the numbers, whatever they are kept in.
    fixed = {} if dtype == "float64" else draft.fixed
    return {name: _as(tensor, getattr(torch, fixed.get(name, dtype))) for name, tensor in tensors.items()}


def _asked(draft: Draft, outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: outputs[name] for name in (outputs if draft.outputs is None else draft.outputs)}


def _expected(draft: Draft) -> dict[str, Expected]:
    truth, other = run_plain(draft, "float64"), run_second(draft)
    if truth.keys() != other.keys():
        raise RecordError(f"{draft.id}: the two sources give other outputs: {sorted(truth.keys() ^ other.keys())}")
    runs = {dtype: run_plain(draft, dtype) for dtype in draft.dtypes if dtype != "float64"}
    largest = max((magnitude(array) for name, array in other.items() if "gradient." in name), default=0.0)
    if draft.loops and draft.op == "attention":
        # A large score has lost its last bits before it is exponentiated: the weights are as far off, relatively.
        scores = plain.OPS[draft.op](inputs_in(draft, "float64"), draft.parameters)["stage.scaled"].detach().numpy()
        largest *= max(1.0, magnitude(scores))
        other_scale = max(1.0, magnitude(scores))
    else:
        other_scale = 1.0
    return {
        name: _one_expected(draft, name, (truth[name], other[name]), runs, (largest, other_scale)) for name in truth
    }


def _one_expected(
    draft: Draft, name: str, both: tuple[np.ndarray, np.ndarray], runs: Mapping[str, Any], sizes: tuple[float, float]
) -> Expected:
    truth, other = both
    apart, note = distance(truth, other)
    # What cancels in a gradient was as large as the largest gradient of the case.
    allowed = (
        AGREEMENT * epsilon("float64") * max(sizes[1] * magnitude(other), sizes[0] if "gradient." in name else 0.0)
    )
    if apart > allowed:
        raise RecordError(f"{draft.id}: `{name}` of the two sources is {apart:.3g} apart, {allowed:.3g} allowed {note}")
    pytorch = {dtype: run[name] for dtype, run in runs.items()}
    article = None
    if name in draft.article:
        article, tensor = draft.article[name]
        pytorch["float32"] = _checked(draft, name, tensor, pytorch["float32"])
    errors = {"float64": apart} | {dtype: distance(array, truth)[0] for dtype, array in pytorch.items()}
    kept = {} if draft.loops else pytorch
    rounded = {dtype: _three_digits(errors[dtype]) for dtype in ("float64", *pytorch) if dtype in draft.dtypes}
    return Expected(truth, kept, rounded, article)


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
