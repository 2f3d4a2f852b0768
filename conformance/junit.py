"""The results as JUnit XML, which every continuous-integration service reads: a suite an implementation."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as Xml

from conformance.report import explanation
from conformance.runner import ERROR, EXPECTED, FAIL, SKIPPED, UNEXPECTED, UNSUPPORTED, Row

# Expected failures count as skipped in JUnit, as pytest writes them.
ELEMENTS = {
    FAIL: "failure",
    UNEXPECTED: "failure",
    ERROR: "error",
    SKIPPED: "skipped",
    EXPECTED: "skipped",
    UNSUPPORTED: "skipped",
}


def write_junit(path: Path, rows: Sequence[Row]) -> None:
    """Write a test case for each answer, named by case and dtype, in the class of its group."""
    root = Xml.Element("testsuites")
    for name in dict.fromkeys(row.implementation for row in rows):
        root.append(_suite(name, [row for row in rows if row.implementation == name]))
    Xml.indent(root)
    Xml.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _suite(name: str, rows: Sequence[Row]) -> Xml.Element:
    kinds = [ELEMENTS.get(row.status, "") for row in rows]
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite = Xml.Element("testsuite", name=name, tests=str(len(rows)))
    for attribute, kind in counts.items():
        suite.set(attribute, str(kinds.count(kind)))
    suite.set("time", f"{sum(row.seconds for row in rows):.3f}")
    for row in rows:
        test = Xml.SubElement(suite, "testcase", classname=f"conformance.{row.group.name}")
        test.set("name", f"{row.case.id}[{row.dtype}]")
        test.set("time", f"{row.seconds:.3f}")
        if row.status in ELEMENTS:
            first, *rest = explanation(row)
            told = Xml.SubElement(test, ELEMENTS[row.status], message=_clean(f"{row.status}: {first}"))
            told.text = _clean("\n".join(rest)) or None
    return suite


def _clean(text: str) -> str:
    """Without what XML cannot hold: an exception's message may carry anything."""
    return "".join(letter for letter in text if letter in "\t\n" or letter >= " ")
