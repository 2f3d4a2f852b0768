"""One case, stage by stage, side by side with an implementation: which is the first that departs?

What an implementation gives (`stage.*`, `weights`, `out`, a layer's `step.*`) is compared as it is. A stage that it
does not give is asked as a call of its own: what comes after that stage is left out, and `value` is the identity, so
that the output is the softmax of the stage.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance import plain, rules
from conformance.adapters.base import Adapter, Lacking, Unsupported
from conformance.cases import Case, Expected, Group
from conformance.verdict import Judged, judge_output

GIVEN, ASKED = "given", "asked as a call of its own"
WITHOUT: Mapping[str, dict[str, Any]] = {
    "scaled": {"softcap": None, "bias": None, "mask": None, "sinks": None, "dropout": None},
    "capped": {"bias": None, "mask": None, "sinks": None, "dropout": None},
    "biased": {"mask": None, "sinks": None, "dropout": None},
    "masked": {"sinks": None, "dropout": None},
    "weights": {"dropout": None},
}
# A stage that nothing is left of is the stage before.
ACTS = {"capped": "softcap", "biased": "bias", "masked": "mask", "weights": "sinks"}


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage: how it came here, both sides, and the verdict; or why it cannot be had."""

    name: str
    how: str
    expected: np.ndarray | None = None
    answer: np.ndarray | None = None
    judged: Judged | None = None
    why_not: str = ""


def stages(group: Group, case: Case, adapter: Adapter, dtype: str) -> Iterator[Stage]:
    """Yield the stages in the order of the formula, or a layer's steps in theirs."""
    if case.op != "attention":
        yield from _given(group, case, adapter, dtype, tuple(name for name in case.expected if "gradient" not in name))
        return
    full = _with_all_stages(case)
    answer, error = _answer(full, adapter, dtype)
    for name in plain.STAGES[:-1]:
        if name in ACTS and case.parameters[ACTS[name]] is None and f"stage.{name}" not in case.expected:
            continue
        key = "weights" if name == "weights" else f"stage.{name}"
        if key in answer:
            yield _compared(group, key, GIVEN, full.expected[key].truth, answer[key], dtype)
        else:
            yield _asked(group, case, adapter, dtype, name)
    if "out" in answer:
        yield _compared(group, "out", GIVEN, full.expected["out"].truth, answer["out"], dtype)
    else:
        yield Stage("out", GIVEN, why_not=error or "the implementation gives no output")


def first_departure(found: list[Stage]) -> Stage | None:
    """Return the first stage that is not within the tolerance."""
    return next((stage for stage in found if stage.judged is not None and not stage.judged.passed), None)


def _given(group: Group, case: Case, adapter: Adapter, dtype: str, names: tuple[str, ...]) -> Iterator[Stage]:
    answer, error = _answer(case, adapter, dtype)
    for name in sorted(names, key=lambda each: each == "out"):
        if name in answer:
            yield _compared(group, name, GIVEN, case.expected[name].truth, answer[name], dtype)
        else:
            yield Stage(name, GIVEN, why_not=error or "not given")


def _asked(group: Group, case: Case, adapter: Adapter, dtype: str, name: str) -> Stage:
    """Ask the softmax of a stage, through the identity as value."""
    cut = _cut(case, name)
    parts = []
    for columns in _columns(cut):
        asked = replace(cut, inputs={**cut.inputs, "value": columns})
        answer, error = _answer(_with_expected(asked, ("out",)), adapter, dtype)
        if "out" not in answer:
            return Stage(f"softmax({name})", ASKED, why_not=error)
        parts.append(answer["out"])
    swap = case.parameters["layout"] == "BLHD" and parts[0].ndim > 2
    rows = np.concatenate(parts, axis=-1)
    keys = rules.lengths(case)[1]
    rows = (np.swapaxes(rows, -2, -3) if swap else rows)[..., :keys]
    expected = formula(_with_expected(cut, ()))["weights"]
    label = "weights" if name == "weights" else f"softmax({name})"
    return _compared(group, label, ASKED, expected, rows, dtype)


def formula(case: Case) -> dict[str, np.ndarray]:
    """Return every stage of a case in float64, by the formula, by the names of `expected`."""
    swap = case.parameters["layout"] == "BLHD" and case.inputs["query"].ndim > 2
    query, key, value = (case.inputs[name].astype(np.float64) for name in ("query", "key", "value"))
    if swap:
        query, key, value = (np.swapaxes(array, -2, -3) for array in (query, key, value))
    tables = rules.mask_table(case), rules.bias_table(case)
    sinks = rules.array_of(case, "sinks")
    call = plain.Call(query, key, value, case.parameters["scale"], *tables, case.parameters["softcap"], sinks)
    found = plain.attend(call)
    out = np.swapaxes(found["out"], -2, -3) if swap else found["out"]
    scores = {f"stage.{name}": found[name] for name in plain.STAGES[:4]}
    return {**scores, "weights": found["weights"], "out": out, "lse": found["lse"]}


def _cut(case: Case, name: str) -> Case:
    """The case without what comes after a stage."""
    parameters = {**case.parameters, **WITHOUT[name]}
    return replace(case, parameters=parameters, cotangents={}, tangents={}, variants=(), coincidences=())


def _columns(case: Case) -> Iterator[np.ndarray]:
    """The identity as value, in slices as wide as the case's own value, padded with zeros."""
    keys, width = rules.lengths(case)[1], max(case.inputs["value"].shape[-1], 1)
    value = case.inputs["value"]
    heads_last = case.parameters["layout"] == "BLHD" and value.ndim > 2
    for start in range(0, keys, width):
        eye = np.eye(keys, max(keys, start + width), dtype=np.float32)[:, start : start + width]
        column = eye[:, None, :] if heads_last else eye
        yield np.broadcast_to(column, value.shape).copy()


def _with_all_stages(case: Case) -> Case:
    found = formula(case)
    wanted = {name: Expected(found[name]) for name in found if name not in case.expected}
    known = {name: value for name, value in case.expected.items() if "gradient" not in name and "tangent" not in name}
    return replace(case, expected={**wanted, **known}, cotangents={}, tangents={})


def _with_expected(case: Case, names: tuple[str, ...]) -> Case:
    return replace(case, expected={name: case.expected[name] for name in names if name in case.expected})


def _answer(case: Case, adapter: Adapter, dtype: str) -> tuple[dict[str, np.ndarray], str]:
    """What an implementation gives, and in its own words why it does not."""
    reason = adapter.supports(case)
    if reason:
        return {}, reason
    try:
        found = adapter.compute(case, dtype)
    except Unsupported as error:
        return {}, str(error)
    except Exception as error:  # noqa: BLE001  # a foreign implementation may raise anything; it is told, not hidden
        return {}, f"{type(error).__name__}: {error}"
    return {name: np.asarray(x) for name, x in found.items() if not isinstance(x, Lacking)}, ""


def _compared(group: Group, name: str, how: str, expected: np.ndarray, answer: np.ndarray, dtype: str) -> Stage:
    judged = judge_output(name, answer, expected, group.worst.get(dtype, 0.0), dtype)
    return Stage(name, how, expected, answer, judged)
