"""The table as one HTML page that needs nothing beside it: no script, no font, no image from elsewhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.questions import PAGE
from conformance.report import explanation
from conformance.runner import Row
from conformance.summary import WORDS, Cell, cells

TEMPLATE = Path(__file__).resolve().parent / "page.html.j2"


def write_page(path: Path, rows: Sequence[Row], missing: Sequence[str] = ()) -> None:
    """Write the page."""
    path.write_text(page(rows, missing), encoding="utf-8")


def page(rows: Sequence[Row], missing: Sequence[str] = ()) -> str:
    """Return the page: the table, what each state means, then the answers that are no pass, by question."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    table = cells(rows)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        implementations={row.implementation: row.version for row in rows},
        questions=[_question(number, question, table[question]) for number, question in enumerate(table)],
        recorded=sorted({row.group.stamp.torch for row in rows}),
        cases=len({row.case.id for row in rows}),
        missing=missing,
        conventions=PAGE,
        words=WORDS,
    )


def _question(number: int, question: Any, answers: dict[str, Cell]) -> dict[str, Any]:
    return {
        "id": f"q{number}",
        "title": question.title,
        "section": question.section,
        "cases": len({row.case.id for cell in answers.values() for row in cell.rows}),
        "cells": [_cell(cell) for cell in answers.values()],
        "telling": [_told(cell) for cell in answers.values() if cell.telling],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    judged = len(cell.rows) - cell.counts["unsupported"] - cell.counts["skipped"]
    return {
        "state": cell.state.replace(" ", "-"),
        "word": WORDS[cell.state],
        "variants": cell.variants,
        "passed": cell.counts["pass"],
        "judged": judged,
        "telling": bool(cell.telling),
    }


def _told(cell: Cell) -> dict[str, Any]:
    rows = [
        {"case": row.case.id, "dtype": row.dtype, "status": row.status, "lines": explanation(row)}
        for row in cell.telling
    ]
    return {"implementation": cell.implementation, "rows": rows, "why": cell.telling[0].case.failure}
