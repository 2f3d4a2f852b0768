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

from conformance.runner import ERROR, FAIL, PASS, UNSUPPORTED, Row

STYLES = {PASS: "green", FAIL: "bold red", ERROR: "bold magenta", UNSUPPORTED: "dim"}
CSV_COLUMNS = ("group", "case", "implementation", "version", "dtype", "status", "output", "units", "error", "tolerance")


def print_report(console: Console, rows: Sequence[Row], missing: Iterable[str]) -> None:
    """Print the table, the failures, what is not installed, and one closing line."""
    console.print(table(rows))
    for row in rows:
        if row.bad:
            console.print(failure(row))
    for line in missing:
        console.print(f"[dim]{escape(line)}[/]")
    console.print(summary(rows))


def table(rows: Sequence[Row]) -> Table:
    """Sections down, implementations across; in each cell the worst error, where 1 is the tolerance."""
    made = Table(title="Worst error in units of the tolerance (1 passes)", title_justify="left", box=SIMPLE_HEAD)
    made.add_column("section", no_wrap=True)
    made.add_column("cases", justify="right", no_wrap=True)
    implementations = list(dict.fromkeys(row.implementation for row in rows))
    versions = {row.implementation: row.version for row in rows}
    for name in implementations:
        made.add_column(f"{escape(name)}\n[dim]{escape(versions[name])}[/]", justify="right")
    for title in dict.fromkeys(row.group.title for row in rows):
        of_section = [row for row in rows if row.group.title == title]
        cells = [_cell([row for row in of_section if row.implementation == name]) for name in implementations]
        made.add_row(escape(title), str(len({row.case.id for row in of_section})), *cells)
    return made


def failure(row: Row) -> str:
    """Say what failed, by how much, and which convention explains it."""
    head = f"[{STYLES[row.status]}]{row.status}[/] {escape(row.implementation)} · {row.case.id} · {row.dtype}: "
    worst = row.verdict.worst if row.verdict else None
    if worst is None or row.verdict is None:
        return head + escape(row.note)
    size = worst.note or f"is {worst.error:.3g} off, {worst.units:.3g} tolerances"
    lines = [head + escape(f"`{worst.name}` {size}")]
    lines += [escape(f"    matches `{variant.name}`: {variant.means}") for variant in row.verdict.matches]
    if not row.verdict.matches:
        lines.append("    matches no convention that the case names")
    return "\n".join(lines)


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


def _cell(rows: Sequence[Row]) -> str:
    bad = [row for row in rows if row.bad]
    units = [row.verdict.worst.units for row in rows if row.verdict and row.verdict.worst]
    if bad:
        status = FAIL if any(row.status == FAIL for row in bad) else ERROR
        size = f", {max(units):.2g}" if units else ""
        return f"[{STYLES[status]}]{status} {len(bad)}/{len(rows)}{size}[/]"
    if not any(row.status == PASS for row in rows):
        return f"[{STYLES[UNSUPPORTED]}]{UNSUPPORTED}[/]"
    return f"[{STYLES[PASS]}]{PASS}[/] {max(units, default=0.0):.2f}"


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
