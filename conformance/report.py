"""The results for a person (a table, then each failure with the convention that it matches), as JSON and as CSV."""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conformance.runner import ERROR, EXPECTED, FAIL, PASS, SKIPPED, UNEXPECTED, UNSUPPORTED, Row
from conformance.summary import DIFFERS, WORDS, Cell, cells

STYLES = {
    PASS: "green",
    FAIL: "bold red",
    ERROR: "bold magenta",
    UNEXPECTED: "bold red",
    EXPECTED: "yellow",
    SKIPPED: "dim",
    UNSUPPORTED: "dim",
    DIFFERS: "bold yellow",
}
ALIKE = 3
CSV_COLUMNS = ("group", "case", "implementation", "version", "dtype", "status", "output", "units", "error", "tolerance")


def print_report(console: Console, rows: Sequence[Row], missing: Iterable[str]) -> None:
    """Print the table, the failures, what is not installed, and one closing line."""
    console.print(table(rows))
    for line in failures(rows):
        console.print(line)
    if any(row.status == FAIL and not row.matches for row in rows):
        console.print(
            "What matches no single convention: `attention-conformance diagnose IMPL CASE` finds the stage that "
            "departs, and `diagnose --query q.npy --key k.npy --value v.npy --out out.npy` tries conventions in "
            "combination."
        )
    for line in missing:
        console.print(f"[dim]{escape(line)}[/]")
    console.print(summary(rows))


def table(rows: Sequence[Row]) -> Table:
    """Questions down, implementations across; in each cell the verdict and the worst error (1 is the tolerance)."""
    made = Table(title="Worst error in units of the tolerance (1 passes)", title_justify="left", box=SIMPLE_HEAD)
    made.add_column("section", no_wrap=True)
    made.add_column("cases", justify="right", no_wrap=True)
    versions = {row.implementation: row.version for row in rows}
    for name, version in versions.items():
        made.add_column(f"{escape(name)}\n[dim]{escape(version)}[/]", justify="right", overflow="fold")
    for question, answers in cells(rows).items():
        cases = len({row.case.id for found in answers.values() for row in found.rows})
        made.add_row(escape(question.title), str(cases), *(_cell(each, len(versions) > 3) for each in answers.values()))
    return made


def failures(rows: Sequence[Row]) -> list[str]:
    """Say each failure; of those that match the same conventions in the same group, the first few."""
    seen: Counter[tuple[str, ...]] = Counter()
    lines: list[str] = []
    for row in rows:
        if row.bad:
            kind = (row.implementation, row.group.name, row.status, *row.matches)
            seen[kind] += 1
            if seen[kind] <= ALIKE:
                lines.append(failure(row))
    for (implementation, group, status, *matches), count in seen.items():
        if count > ALIKE:
            how = f" as `{matches[0]}`" if matches else ""
            lines.append(f"[dim]{escape(f'{implementation}: {count - ALIKE} more {status}{how} in {group}')}[/]")
    return lines


def failure(row: Row) -> str:
    """Say what failed, by how much, and which convention explains it."""
    first, *rest = explanation(row)
    head = f"[{STYLES[row.status]}]{row.status}[/] {escape(row.implementation)} · {row.case.id} · {row.dtype}: "
    return "\n".join([head + escape(first), *(escape(f"    {line}") for line in rest)])


def explanation(row: Row) -> list[str]:
    """Return plain lines: the output that is furthest off, the conventions that it matches, what the file says."""
    worst = row.verdict.worst if row.verdict else None
    if worst is None or row.verdict is None or row.status == UNEXPECTED:
        return [row.note]
    lines = [f"`{worst.name}` {worst.note or f'is {worst.error:.3g} off, {worst.units:.3g} tolerances'}"]
    lines += [f"matches `{variant.name}`: {variant.means}" for variant in row.verdict.matches]
    if not row.verdict.matches:
        lines.append("matches no convention that the case names")
    return [*lines, row.note] if row.note else lines


def summary(rows: Sequence[Row]) -> str:
    """Return the closing line: how many answers passed, and what else happened."""
    found = Counter(row.status for row in rows)
    implementations = len({row.implementation for row in rows})
    cases = len({row.case.id for row in rows})
    parts = [f"[{STYLES[status]}]{found[status]} {status}[/]" for status in STYLES if found[status]]
    return f"{cases} cases, {implementations} implementations: {', '.join(parts) or 'nothing was asked'}"


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Write every answer's verdict; infinite sizes (another shape, NaN) become null."""
    path.write_text(json.dumps({"rows": [_document(row) for row in rows]}, indent=1) + "\n")


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write one line an output, with the matched variants last; an answer without outputs has one line."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((*CSV_COLUMNS, "matches", "note"))
        for row in rows:
            head = (row.group.name, row.case.id, row.implementation, row.version, row.dtype, row.status)
            matches = " ".join(row.matches)
            outputs = row.verdict.outputs if row.verdict else ()
            for output in outputs:
                numbers = (output.units, output.error, output.tolerance)
                writer.writerow((*head, output.name, *numbers, matches, output.note))
            if not outputs:
                writer.writerow((*head, "", "", "", "", matches, row.note))


def _cell(cell: Cell, narrow: bool) -> str:
    counts, style = cell.counts, STYLES[cell.state]
    size = "" if cell.units is None else f"{cell.units:.2f}"
    if cell.state == PASS:
        return f"[{style}]{WORDS[PASS]}[/] {size}"
    if cell.state == DIFFERS:
        return f"[{style}]{WORDS[DIFFERS]}[/] {escape(' '.join(cell.variants))}"
    if cell.state in (FAIL, ERROR):
        found = ", ".join(f"{WORDS[each]} {counts[each]}" for each in (FAIL, ERROR) if counts[each])
        return f"[{style}]{found}[/] of {len(cell.rows)}"
    return f"[{style}]{'–' if narrow and cell.state == UNSUPPORTED else WORDS[cell.state]}[/]"


def _document(row: Row) -> dict[str, Any]:
    outputs = row.verdict.outputs if row.verdict else ()
    return {
        "group": row.group.name,
        "case": row.case.id,
        "section": row.case.section,
        "implementation": row.implementation,
        "version": row.version,
        "dtype": row.dtype,
        "status": row.status,
        "outputs": {
            output.name: {
                "passed": output.passed,
                "units": _finite(output.units),
                "error": _finite(output.error),
                "tolerance": output.tolerance,
                "note": output.note,
            }
            for output in outputs
        },
        "matches": list(row.matches),
        "lacking": dict(row.lacking),
        "note": row.note,
        "seconds": round(row.seconds, 6),
    }


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
