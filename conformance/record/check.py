"""`record --check`: is what was saved what PyTorch gives?

On any machine: the inputs are drawn anew and are the same bits; every output, computed from the saved inputs, is within
4 scaled ulp, `4 eps max|saved|` (the last bits differ by processor). A gradient is scaled by the largest gradient of
its case: what cancels in it was as large. On the processor and PyTorch of the stamp, the files are the same bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from conformance.cases import Case, Group
from conformance.format import encode_group
from conformance.record import GroupDraft, record
from conformance.record.draft import Draft, arrays_of
from conformance.verdict import distance, epsilon, magnitude

ULPS = 4.0


def check(
    drafts: Iterable[GroupDraft], saved: Iterable[Group], folder: Path, step: Callable[[], None] = lambda: None
) -> tuple[list[str], str]:
    """Return every difference between a new recording and the saved groups, and a line on what was compared."""
    drafts, saved = tuple(drafts), tuple(saved)
    names = [group.name for group in drafts], [group.name for group in saved]
    if names[0] != names[1]:
        return [f"the groups are {names[1]}, recorded are {names[0]}"], ""
    old = {case.id: case for group in saved for case in group.cases}
    differences = [line for group in drafts for draft in group.drafts for line in _inputs(draft, old.get(draft.id))]
    if differences:
        return differences, ""
    fresh = record([_from_saved_inputs(group, old) for group in drafts], step)
    for group, known in zip(fresh, saved, strict=True):
        for case in group.cases:
            differences += [f"{case.id}: {line}" for line in _outputs(case, old[case.id])]
        differences += [f"{known.name}: case {case.id} is recorded no more" for case in _gone(known, group)]
    same_machine = all(_machine(group) == _machine(known) for group, known in zip(fresh, saved, strict=True))
    if same_machine:
        differences += [line for pair in zip(fresh, saved, strict=True) for line in _bytes(*pair, folder)]
    files = "files identical to the byte" if same_machine else f"files not compared (recorded on {_machine(saved[0])})"
    return differences, f"{len(old)} cases: inputs identical, outputs within {ULPS:g} scaled ulp, {files}"


def _inputs(draft: Draft, saved: Case | None) -> Iterator[str]:
    if saved is None:
        yield f"{draft.id}: is not among the saved cases"
        return
    for name, array in arrays_of(draft.inputs).items():
        if name not in saved.inputs or not _same_bits(array, saved.inputs[name]):
            yield f"{draft.id}: input `{name}` is drawn otherwise"


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def _from_saved_inputs(group: GroupDraft, saved: Mapping[str, Case]) -> GroupDraft:
    import torch

    def with_saved(draft: Draft) -> Draft:
        inputs = {name: torch.from_numpy(array.copy()) for name, array in saved[draft.id].inputs.items()}
        return replace(draft, inputs=inputs)

    return replace(group, drafts=tuple(with_saved(draft) for draft in group.drafts))


def _outputs(fresh: Case, saved: Case) -> Iterator[str]:
    mine, theirs = _tensors(fresh), _tensors(saved)
    for name in sorted(mine.keys() ^ theirs.keys()):
        yield f"{name} is in one recording only"
    gradient = max((magnitude(known) for name, (known, _) in theirs.items() if "gradient." in name), default=0.0)
    for name in sorted(mine.keys() & theirs.keys()):
        (array, dtype), (known, _) = mine[name], theirs[name]
        apart, note = distance(array, known)
        unit = epsilon(dtype) * (gradient if "gradient." in name else magnitude(known))
        if apart > ULPS * unit:
            yield f"{name} differs by {apart:.3g}, {ULPS * unit:.3g} allowed {note}"
    for word in (
        "name",
        "section",
        "why",
        "failure",
        "op",
        "dtypes",
        "flags",
        "features",
        "coincidences",
        "since",
        "reports",
        "valid",
        "memory",
        "fixed",
    ):
        if getattr(fresh, word) != getattr(saved, word):
            yield f"`{word}` is recorded otherwise"
    if dict(fresh.parameters) != dict(saved.parameters):
        yield "the parameters are recorded otherwise"


def _tensors(case: Case) -> dict[str, tuple[np.ndarray, str]]:
    """Every computed tensor by a name, with the dtype whose rounding it may show."""
    found = {f"cotangent {name}": (array, "float32") for name, array in case.cotangents.items()}
    for name, expected in case.expected.items():
        found[f"{name} in float64"] = (expected.truth, "float64")
        found |= {f"{name} in {dtype}": (array, dtype) for dtype, array in expected.pytorch.items()}
    for variant in case.variants:
        found |= {f"{variant.name}: {name}": (array, "float64") for name, array in variant.tensors.items()}
    return found


def _gone(saved: Group, fresh: Group) -> Iterator[Case]:
    ids = {case.id for case in fresh.cases}
    yield from (case for case in saved.cases if case.id not in ids)


def _machine(group: Group) -> str:
    return f"{group.stamp.processor}, PyTorch {group.stamp.torch}"


def _bytes(fresh: Group, saved: Group, folder: Path) -> Iterator[str]:
    # The version of Python is noted, and changes no number.
    text, data = encode_group(replace(fresh, stamp=saved.stamp))
    for kind, mine in (("json", text), ("safetensors", data)):
        if (folder / f"{saved.name}.{kind}").read_bytes().replace(b"\r\n", b"\n") != mine.replace(b"\r\n", b"\n"):
            yield f"{saved.name}.{kind} is not the same to the byte"
