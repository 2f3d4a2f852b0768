"""From answers to cells: for one question and one implementation, what to tell a person."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from conformance.questions import Question, question_of
from conformance.runner import ERROR, EXPECTED, FAIL, PASS, SKIPPED, UNEXPECTED, UNSUPPORTED, Row

DIFFERS = "differs"
WORDS = {
    PASS: "pass",
    DIFFERS: "differs as",
    FAIL: "fails",
    UNSUPPORTED: "unsupported",
    ERROR: "error",
    SKIPPED: "skipped",
    EXPECTED: "expected failure",
    UNEXPECTED: "unexpected pass",
}


@dataclass(frozen=True, eq=False)
class Cell:
    """One implementation's answers to one question.

    `state` is the worst of them: `error`, `fail` where something fails as no convention does, `differs` where every
    failure is explained by the conventions in `variants`, `unexpected pass`, `pass`, or why nothing was judged.
    """

    question: Question
    implementation: str
    rows: tuple[Row, ...]
    state: str
    variants: tuple[str, ...] = ()

    @property
    def counts(self) -> Counter[str]:
        """Return how many answers have each status."""
        return Counter(row.status for row in self.rows)

    @property
    def units(self) -> float | None:
        """Return the worst error in units of the tolerance; None where nothing was judged."""
        found = [row.verdict.worst.units for row in self.rows if row.verdict and row.verdict.worst]
        return max(found, default=None)

    @property
    def telling(self) -> tuple[Row, ...]:
        """Return the answers that a person wants to read: everything but passes, alike ones once."""
        seen: dict[tuple[str, ...], Row] = {}
        for row in self.rows:
            if row.status != PASS:
                seen.setdefault((row.status, *row.matches, *(() if row.matches else (row.note, row.case.id))), row)
        return tuple(seen.values())


def cells(rows: Sequence[Row]) -> dict[Question, dict[str, Cell]]:
    """Return the table: questions in their order, then implementations in theirs."""
    table: dict[Question, dict[str, list[Row]]] = {}
    implementations = list(dict.fromkeys(row.implementation for row in rows))
    for row in rows:
        of_question = table.setdefault(question_of(row.group), {name: [] for name in implementations})
        of_question[row.implementation].append(row)
    return {q: {name: cell(q, name, found) for name, found in per.items()} for q, per in table.items()}


def cell(question: Question, implementation: str, rows: Iterable[Row]) -> Cell:
    """Judge the answers of one implementation to one question."""
    rows = tuple(rows)
    found = {row.status for row in rows}
    failing = [row for row in rows if row.status == FAIL]
    variants = explained_by(failing)
    if ERROR in found:
        state = ERROR
    elif failing:
        state = DIFFERS if variants else FAIL
    else:
        order = (UNEXPECTED, PASS, EXPECTED, SKIPPED, UNSUPPORTED)
        state = next((status for status in order if status in found), UNSUPPORTED)
    return Cell(question, implementation, rows, state, variants)


def explained_by(failing: Sequence[Row]) -> tuple[str, ...]:
    """Return the fewest conventions that explain every failure, the most frequent first; none if one has none."""
    left = list(failing)
    names: list[str] = []
    while left:
        found = Counter(name for row in left for name in row.matches)
        if not found:
            return ()
        name = min(found, key=lambda each: (-found[each], each))
        rest = [row for row in left if name not in row.matches]
        names.append(name)
        left = rest
    return tuple(names)
