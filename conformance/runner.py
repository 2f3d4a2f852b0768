"""Ask every implementation every case in every dtype, and judge the answers."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.adapters.base import Adapter, Lacking, Unsupported
from conformance.cases import Case, Group
from conformance.verdict import Verdict, judge

if TYPE_CHECKING:
    from conformance.expectations import Expectations

PASS, FAIL, UNSUPPORTED, ERROR = "pass", "fail", "unsupported", "error"
# What a user's file of expectations makes of them.
SKIPPED, EXPECTED, UNEXPECTED = "skipped", "expected failure", "unexpected pass"
REFUSALS = (TypeError, ValueError, NotImplementedError)


@dataclass(frozen=True)
class Row:
    """What one implementation gave for one case in one dtype."""

    group: Group
    case: Case
    implementation: str
    version: str
    dtype: str
    status: str
    answer: Mapping[str, np.ndarray] = field(default_factory=dict)
    verdict: Verdict | None = None
    lacking: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        """Whether the command's exit status must say so."""
        return self.status in (FAIL, ERROR, UNEXPECTED)

    @property
    def matches(self) -> tuple[str, ...]:
        """Return the names of the wrong variants that the answer matches."""
        return tuple(variant.name for variant in self.verdict.matches) if self.verdict else ()


def run(
    groups: Iterable[Group],
    adapters: Iterable[Adapter],
    step: Callable[[], None] = lambda: None,
    expect: "Expectations | None" = None,
) -> list[Row]:
    """Run every case on every adapter, as the user's file expects it; `step` is called after each."""
    rows = []
    adapters = tuple(adapters)
    for group in groups:
        for case in group.cases:
            for adapter in adapters:
                for dtype in case.dtypes:
                    rows.append(ask_as_expected(group, case, adapter, dtype, expect))
                    step()
    return rows


def ask_as_expected(
    group: Group, case: Case, adapter: Adapter, dtype: str, expect: "Expectations | None" = None
) -> Row:
    """Ask, unless the user's file skips the case; an expected failure is one, an unexpected pass is told."""
    if expect is None:
        return ask(group, case, adapter, dtype)
    reason = expect.skip(case.id, adapter.name, dtype)
    if reason is not None:
        return Row(group, case, adapter.name, adapter.version, dtype, SKIPPED, note=reason)
    return expect.settle(ask(group, case, adapter, dtype))


def unasked(rows: Iterable[Row]) -> dict[str, str]:
    """Return the implementations that no case could be put to, and why: a run of nothing must not look like a pass."""
    notes: dict[str, set[str]] = {}
    asked = set()
    for row in rows:
        notes.setdefault(row.implementation, set()).add(row.note)
        if row.status not in (UNSUPPORTED, SKIPPED):
            asked.add(row.implementation)
    return {name: "; ".join(sorted(reasons)) for name, reasons in notes.items() if name not in asked}


def count(groups: Iterable[Group], adapters: Iterable[Adapter]) -> int:
    """Return how often `run` will call `step`."""
    return sum(len(case.dtypes) for group in groups for case in group.cases) * len(tuple(adapters))


def ask(group: Group, case: Case, adapter: Adapter, dtype: str) -> Row:
    """Ask one implementation one case. Whatever it raises is its answer, and never ends the run."""
    start = time.perf_counter()

    def row(status: str, **more: Any) -> Row:
        seconds = time.perf_counter() - start
        return Row(group, case, adapter.name, adapter.version, dtype, status, seconds=seconds, **more)

    try:
        reason = adapter.supports(case)
        if reason:
            return row(UNSUPPORTED, note=reason)
        answer, lacking = _sorted_out(adapter.compute(case, dtype))
    except Unsupported as error:
        return row(UNSUPPORTED, note=str(error))
    except Exception as error:  # noqa: BLE001  # a foreign implementation may raise anything; it is recorded, not hidden
        refused = not case.valid and isinstance(error, REFUSALS)
        return row(PASS if refused else ERROR, note=f"{type(error).__name__}: {error}")
    if not case.valid:
        return row(FAIL, note="this call must raise, and it returned")
    verdict = judge(case, answer, group.worst, dtype)
    if not verdict.outputs:
        return row(UNSUPPORTED, lacking=lacking, note="; ".join(sorted(set(lacking.values()))) or "gives no output")
    return row(PASS if verdict.passed else FAIL, answer=answer, verdict=verdict, lacking=lacking)


def _sorted_out(given: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    answer = {name: np.asarray(value) for name, value in given.items() if not isinstance(value, Lacking)}
    return answer, {name: value.reason for name, value in given.items() if isinstance(value, Lacking)}
