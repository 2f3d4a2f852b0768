"""Links between pages lead somewhere, both where a repository's host makes the anchors and where Sphinx does."""

import re
from pathlib import Path

import pytest

from conformance.questions import SECTIONS
from tests.test_docs import PAGES, ROOT

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchor(heading: str) -> str:
    """A heading's name in an address, as code hosts make it."""
    text = re.sub(r"\[([^]]*)]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages(page: Path) -> None:
    for name, part in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {name}"
        assert not part or part in anchors(target), f"{page.name} links to {name}#{part}"


def test_questions_link_to_their_convention() -> None:
    assert set(SECTIONS.values()) <= anchors(ROOT / "docs" / "conventions.md")


def test_sphinx_and_a_code_host_give_the_same_anchor() -> None:
    """Sphinx runs hyphens together, so no heading may have two in a row."""
    doubled = {f"{page.name}: {each}" for page in PAGES for each in anchors(page) if "--" in each}
    assert not doubled
