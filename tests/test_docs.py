"""What the documentation shows runs: the Python blocks of README and docs, and the examples in every docstring.

A block is left out only by a line `<!-- skip: the reason -->` before it. The blocks of one file share their names.
"""

import ast
import doctest
import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from attention_core import kernels, settled

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# CI runs all pages once more, with PyTorch installed.
COMPILES_MUCH = ("README.md", "caches.md", "jax.md", "jax_nn.md", "masks.md", "torch.md")
PACKAGES = ("attention_core", "attention_np", "attention_jax", "conformance")
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if path.name != "__main__.py"
)
BLOCK = re.compile(r"(?:^<!-- skip: (?P<reason>.+?) -->\n+)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
DOCTEST_FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.fixture(autouse=True)
def kernels_as_they_were() -> Iterator[None]:
    """Keep the kernels that an example registers from other tests."""
    before = dict(kernels._TABLE)
    yield
    kernels._TABLE.update(before)
    settled.forget()


class Block(NamedTuple):
    """A Python block of a page, and why it is not run, if so."""

    line: int
    code: str
    reason: str | None


def blocks(text: str) -> Iterator[Block]:
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("code")) + 1
        yield Block(line, found["code"], found["reason"])


def missing_packages(code: str) -> set[str]:
    """The top-level packages that a program imports and this environment lacks."""
    program = doctest.script_from_examples(code) if code.startswith(">>> ") else code
    nodes = list(ast.walk(ast.parse(program)))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and node.level == 0}
    return {each for each in (module.split(".")[0] for module in modules) if importlib.util.find_spec(each) is None}


def run_page(page: Path) -> None:
    """Run the blocks of a page in one namespace; a block with prompts must print what the page says it prints."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.reason is not None or missing_packages(block.code):
            continue
        if block.code.startswith(">>> "):
            example = doctest.DocTestParser().get_doctest(block.code, names, page.name, str(page), block.line - 1)
            runner = doctest.DocTestRunner(optionflags=DOCTEST_FLAGS)
            runner.run(example, clear_globs=False)
            assert runner.summarize(verbose=False).failed == 0
            names.update(example.globs)
        else:
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)


def test_blocks_are_found_with_their_lines_and_reasons() -> None:
    page = "text\n```python\nx = 1\n```\n<!-- skip: needs a GPU -->\n```python\ny = 2\n```\n```sh\nls\n```\n"
    assert list(blocks(page)) == [Block(3, "x = 1\n", None), Block(7, "y = 2\n", "needs a GPU")]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.name in COMPILES_MUCH else ()) for page in PAGES],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_blocks_of_a_page_run(page: Path, fresh_python: Callable[..., str]) -> None:
    fresh_python(f"from pathlib import Path; from tests.test_docs import run_page; run_page(Path({str(page)!r}))")
    lacking = {block.line: missing_packages(block.code) for block in blocks(page.read_text(encoding="utf-8"))}
    left_out = [f"line {line} needs {', '.join(sorted(each))}" for line, each in lacking.items() if each]
    if left_out:
        pytest.skip(f"{page.name} ran but for blocks whose packages are not installed here: {'; '.join(left_out)}")


def test_readme_has_each_command_once() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in ("main", "test"):
        assert len(re.findall(rf"^<!-- command: {command} -->\n```sh\n.+\n```$", readme, re.MULTILINE)) == 1


def import_or_skip(module: str) -> ModuleType:
    """Import one of our modules; what it needs from elsewhere may be missing, what is ours may not."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in PACKAGES:
            raise
        pytest.skip(f"{module} needs {error.name}, not installed here")


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module: str) -> None:
    found = doctest.testmod(import_or_skip(module), optionflags=DOCTEST_FLAGS)
    assert found.failed == 0, f"{found.failed} of {found.attempted} examples of {module} failed, printed above"


def test_modules_are_found() -> None:
    assert set(PACKAGES) <= set(MODULES)


@pytest.mark.slow
def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("furo", reason="`pip install '.[docs]'` brings Sphinx, MyST and its theme")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(ROOT / "docs"), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "dot_product_attention" in (tmp_path / "api.html").read_text(encoding="utf-8")
