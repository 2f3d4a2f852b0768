"""One case as a person reads it: where it stands, what goes in, what must come out, what each implementation gave."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.markup import escape

from conformance.adapters.base import Adapter
from conformance.cases import Case, Group
from conformance.errors import UsageError
from conformance.report import STYLES, failure
from conformance.runner import ask


def find(groups: Iterable[Group], case_id: str) -> tuple[Group, Case]:
    """Return a case by its id.

    Raises:
        UsageError: there is none; names those that come near.
    """
    every = {case.id: (group, case) for group in groups for case in group.cases}
    if case_id in every:
        return every[case_id]
    near = [known for known in every if case_id in known]
    hint = f"; near it are {', '.join(near)}" if near else "; `attention-conformance list` prints all"
    raise UsageError(f"no case `{case_id}`{hint}")


def print_case(console: Console, group: Group, case: Case, adapters: Sequence[Adapter]) -> None:
    """Print a case, and ask it to the adapters."""
    for line in (*_about(group, case), *_given(case), *_wanted(case, group)):
        console.print(line, highlight=False)
    console.print("\n[bold]What each implementation gave[/]")
    for adapter in adapters:
        for dtype in case.dtypes:
            console.print(_given_by(group, case, adapter, dtype), highlight=False)


def _about(group: Group, case: Case) -> Iterator[str]:
    yield f"[bold]{case.id}[/]: {escape(case.name)}"
    yield f"group      {group.name} ({escape(group.title)})"
    if case.section:
        yield f"article    section “{escape(case.section)}”"
    yield f"op         {case.op}"
    yield f"why        {escape(case.why)}"
    yield f"a failure  {escape(case.failure)}"
    yield f"since      {case.since}, recorded with PyTorch {group.stamp.torch}"
    if case.reports:
        yield f"reports    {escape(', '.join(case.reports))}"


def _given(case: Case) -> Iterator[str]:
    yield "\n[bold]Inputs[/]"
    yield from (_array(name, array) for name, array in case.inputs.items())
    for name, value in case.parameters.items():
        yield escape(f"{name} = {value}")
    yield from (_array(f"cotangent of {name}", array) for name, array in case.cotangents.items())


def _wanted(case: Case, group: Group) -> Iterator[str]:
    yield "\n[bold]Expected[/] (float64)" if case.valid else "\n[bold]Expected[/]: the call raises"
    for name, expected in case.expected.items():
        yield _array(f"{name} ({expected.article} in the article)" if expected.article else name, expected.truth)
    if case.expected:
        errors = ", ".join(f"{error:.3g} in {dtype}" for dtype, error in group.worst.items())
        yield f"\nPlain PyTorch's worst error in this group: {errors}"
    if case.variants:
        yield "\n[bold]Wrong answers that would be named[/]"
    yield from (escape(f"{variant.name}: {variant.means}") for variant in case.variants)
    for coincidence in case.coincidences:
        yield escape(f"{' and '.join(coincidence.names)} coincide here: {coincidence.because}")


def _given_by(group: Group, case: Case, adapter: Adapter, dtype: str) -> str:
    row = ask(group, case, adapter, dtype)
    first = next((name for name in case.expected if name in row.answer), None)
    values = "" if first is None else "\n" + _array(first, row.answer[first])
    if row.bad or row.verdict is None or row.verdict.worst is None:
        return failure(row) + values
    worst = row.verdict.worst
    head = f"[{STYLES[row.status]}]{row.status}[/] {escape(adapter.name)} · {dtype}: "
    lacking = "".join(f"; no {name}: {reason}" for name, reason in row.lacking.items())
    outputs = f"{len(row.verdict.outputs)} of {len(case.expected)} outputs"
    size = f"worst `{worst.name}` {worst.error:.3g} off, {worst.units:.2f} tolerances"
    return head + escape(f"{outputs}, {size}{lacking}") + values


def _array(name: str, array: np.ndarray) -> str:
    values = array.astype(np.float64) if array.dtype.kind not in "biu" else array
    text = np.array2string(values, precision=4, suppress_small=True, threshold=200, max_line_width=100)
    gap = "\n" if array.ndim > 1 else " "
    return escape(f"{name} {array.dtype.name}{list(array.shape)}{gap}{text}")
