"""Every report of the field has a test that stands for its kind, or an excuse with its reason."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.core.field_reports.inputs import CASES, PICTURES, UNDER_JIT

HERE = Path(__file__).resolve().parent
REPORTS: list[dict[str, Any]] = json.loads((HERE / "reports.json").read_text(encoding="utf-8"))
COUNT = 98
MOST_EXCUSED = 12


def functions_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {f"{path.name}::{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_report_is_covered_or_excused() -> None:
    assert len(REPORTS) == len({report["id"] for report in REPORTS}) == COUNT
    assert all(("test" in report) != bool(report.get("excused")) for report in REPORTS)
    assert sum("excused" in report for report in REPORTS) <= MOST_EXCUSED


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["id"])
def test_a_report_names_its_public_address_and_a_test_that_exists(report: dict[str, Any]) -> None:
    assert report["url"].startswith("https://github.com/")
    assert report["kind"]
    assert report["what"]
    if "test" in report:
        assert report["test"] in functions_in(HERE / report["test"].partition("::")[0])


def test_every_input_belongs_to_a_report() -> None:
    given = {each.report for each in (*CASES, *PICTURES)}
    assert given <= {report["id"] for report in REPORTS}
    assert given >= UNDER_JIT
