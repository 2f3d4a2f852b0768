"""What a page shows as printed is what its program prints: a text block right after a Python block is its output."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINES = r"(?:(?!```).*\n)+"
SHOWN = re.compile(rf"^```python\n(?P<code>(?!>>> ){LINES})```\n\n```text\n(?P<printed>{LINES})```$", re.MULTILINE)
IMPORTS = re.compile(rf"^```python\n(?P<code>import numpy as np\nfrom attention_np import {LINES})```$", re.MULTILINE)
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if SHOWN.search(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_text_block_is_what_the_program_before_it_prints(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    start = IMPORTS.search(text)
    assert start is not None, "a page that shows output starts with its imports of numpy and attention_np"
    names: dict[str, object] = {}
    exec(start["code"], names)
    for shown in SHOWN.finditer(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(shown["code"], names)
        assert printed.getvalue() == shown["printed"], shown["code"]


def test_pages_that_show_output_are_found() -> None:
    assert {"conventions.md", "masks.md"} <= {page.name for page in PAGES}
