"""What makes a case worth keeping: it can tell right from wrong, and says why it exists.

A case is refused that cannot tell the truth from zeros, the mean of the values, an inverted mask and each of its named
variants by 10 tolerances in each of its dtypes, or the variants from each other by 10 tolerances in float32 and float64
(in 16 bits an answer may have two names), unless it declares the coincidence; a declared coincidence must be one.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from conformance import VECTORS
from conformance.cases import Case, Group, worst_errors
from conformance.format import INDEX, group_names
from conformance.tensors import dtype_named
from conformance.verdict import distance, tolerance

APART = 10.0
EXPECTED, ZEROS = "expected", "out=zeros"
WIDE = ("float64", "float32")


def lint(groups: Iterable[Group], folder: Path = VECTORS) -> list[str]:
    """Return every complaint about the groups and their files, each a sentence."""
    groups = tuple(groups)
    complaints = [*_files(folder), *_schema(folder, groups), *_ids(groups)]
    for group in groups:
        complaints += _worst(group)
        for case in group.cases:
            complaints += [f"{case.id}: {complaint}" for complaint in lint_case(group, case)]
    return complaints


def lint_case(group: Group, case: Case) -> Iterator[str]:
    """Yield every complaint about one case."""
    yield from _words(case)
    yield from _representable(case)
    if case.valid:
        yield from _must_tell(case)
        yield from _discriminating(case, group.worst)
        yield from _spread(case)


def _words(case: Case) -> Iterator[str]:
    for name in ("name", "why", "failure", "since"):
        if not getattr(case, name).strip():
            yield f"says no `{name}`"
    if case.op in ("attention", "packed"):
        missing = {"mask", "bias", "scale", "softcap", "sinks", "dropout", "layout"} - case.parameters.keys()
        if missing:
            yield f"leaves {sorted(missing)} to a default"


def _representable(case: Case) -> Iterator[str]:
    for dtype in case.dtypes:
        for name, array in {**case.inputs, **case.cotangents}.items():
            if array.dtype.kind in "biu":
                continue
            if not np.array_equal(array.astype(dtype_named(dtype)).astype(array.dtype), array, equal_nan=True):
                yield f"`{name}` is not exact in {dtype}"


def _discriminating(case: Case, worst: Mapping[str, float]) -> Iterator[str]:
    answers = _answers(case)
    declared = {frozenset(pair) for each in case.coincidences for pair in combinations(each.names, 2)}
    unknown = {name for each in case.coincidences for name in each.names} - answers.keys()
    if unknown:
        yield f"declares a coincidence of {sorted(unknown)}, which it does not have"
    tolerances = {
        True: _tolerances(case, worst, case.dtypes),
        False: _tolerances(case, worst, tuple(dtype for dtype in case.dtypes if dtype in WIDE)),
    }
    for one, other in combinations(answers, 2):
        pair = frozenset((one, other))
        if ZEROS in pair and EXPECTED not in pair:
            continue
        apart = _apart(answers[one], answers[other], tolerances[EXPECTED in pair])
        if pair in declared:
            if apart > 1.0:
                yield f"declares that `{one}` and `{other}` coincide, and they are {apart:.3g} tolerances apart"
        elif apart < APART:
            yield f"cannot tell `{one}` from `{other}`: {apart:.3g} tolerances apart, {APART:g} needed"


def _must_tell(case: Case) -> Iterator[str]:
    """What every case has to be told from, besides zeros."""
    if case.op not in ("attention", "packed"):
        return
    names = {variant.name.partition(",")[0] for variant in case.variants}
    masked = case.op == "attention" and case.parameters["mask"] is not None
    wanted = ["out=mean_of_v", *(["mask=inverted"] if masked else [])]
    yield from (f"does not name the variant `{name}`" for name in wanted if name not in names)


def _answers(case: Case) -> dict[str, Mapping[str, np.ndarray]]:
    """The truth, every named variant, and what every case must be told from."""
    truth = {name: expected.truth for name, expected in case.expected.items()}
    found: dict[str, Mapping[str, np.ndarray]] = {EXPECTED: truth}
    found |= {variant.name: variant.tensors for variant in case.variants}
    if "out" in truth:
        found[ZEROS] = {"out": np.zeros_like(truth["out"])}
    return found


def _apart(one: Mapping[str, Any], other: Mapping[str, Any], tolerances: Mapping[str, float]) -> float:
    """How many tolerances two answers are apart in the nearest output that both have."""
    shared = one.keys() & other.keys() & tolerances.keys()
    # Answers that share no output are told apart by whatever else they hold.
    return min((distance(one[name], other[name])[0] / tolerances[name] for name in shared), default=float("inf"))


def _tolerances(case: Case, worst: Mapping[str, float], dtypes: tuple[str, ...]) -> dict[str, float]:
    """The tolerance of each output in the coarsest of some dtypes, nothing where there is none.

    Never 0, so that an expectation of zeros without any error can be told from other numbers too.
    """
    least = float(np.finfo(np.float64).tiny)
    return {
        name: max(least, *(tolerance(expected.truth, worst.get(dtype, 0.0), dtype) for dtype in dtypes))
        for name, expected in (case.expected.items() if dtypes else ())
    }


def _spread(case: Case) -> Iterator[str]:
    if case.op != "attention" or "narrow" in case.flags:
        return
    query, key, value = (case.inputs[name] for name in ("query", "key", "value"))
    if all(np.all(array >= 0) or np.all(array <= 0) for array in (query, key, value)):
        yield "has inputs of one sign only"
    weights = case.expected.get("weights")
    if weights is not None and weights.truth.size and np.ptp(weights.truth) < 0.05:
        yield "has weights that hardly differ"


def _worst(group: Group) -> Iterator[str]:
    found = worst_errors(group.cases)
    if found != dict(group.worst):
        yield f"{group.name}: `pytorch_error` {dict(group.worst)} is not the worst of its cases, {found}"
    for case in group.cases:
        for name, expected in case.expected.items():
            for dtype, array in expected.pytorch.items():
                if abs(distance(array, expected.truth)[0] - expected.error[dtype]) > 0.01 * expected.error[dtype]:
                    yield f"{case.id}: `{name}` states another error of PyTorch in {dtype} than its tensors show"


def _ids(groups: Iterable[Group]) -> Iterator[str]:
    seen: set[str] = set()
    for group in groups:
        for case in group.cases:
            if case.id in seen:
                yield f"{case.id}: the id is used twice"
            seen.add(case.id)


def _files(folder: Path) -> Iterator[str]:
    listed = {f"{name}.{kind}" for name in group_names(folder) for kind in ("json", "safetensors")}
    found = {path.name for path in folder.glob("*.*")} - {INDEX, "schema.json", "article.printed.json"}
    yield from (f"{name} is in no group of {INDEX}" for name in sorted(found - listed))


def _schema(folder: Path, groups: Iterable[Group]) -> Iterator[str]:
    import jsonschema

    schema = json.loads((VECTORS / "schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    for group in groups:
        document = json.loads((folder / f"{group.name}.json").read_text())
        for error in validator.iter_errors(document):
            yield f"{group.name}.json: {error.json_path}: {error.message}"
