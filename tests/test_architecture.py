"""The house stands as designed: who imports whom, what an import loads, which names are public, how long rooms are."""

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("attention_core", "attention_np", "attention_jax", "conformance")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

# All that a package may import besides itself and the standard library, at the top or inside a function.
MAY_IMPORT = {
    "attention_core": {"array_api_compat"},
    "attention_np": {"attention_core", "ml_dtypes", "numba", "numpy", "threadpoolctl"},
    "attention_jax": {"attention_core", "jax", "jaxlib", "numpy", "tokamax"},
}
# What only a function of the conformance package may import: every framework, ours too.
LAZY_IN_CONFORMANCE = {
    "array_api_compat", "array_api_strict", "attention_core", "attention_jax", "attention_np", "diffusers", "equinox",
    "flax", "jax", "keras", "mlx", "onnx", "onnxruntime", "tokamax", "torch", "transformers",
}  # fmt: skip
MAY_IMPORT_TORCH = ("conformance/record/", "conformance/record.py", "conformance/adapters/torch")

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
LONG_FILES: dict[str, str] = {  # path: the reason why it may be longer
    "conformance/record/departures_scores.py": "a table: each departure from the formula, one after the other",
    "conformance/record/formula.py": "the independent writing of the whole formula, kept in one place on purpose",
    "conformance/record/groups/scores.py": "a table of cases",
    "conformance/record/groups/shapes.py": "a table of cases",
}
TABLES = "conformance/record/"  # its functions list cases and departures: the next row explains itself, a cut would not

PUBLIC_NAMES = {
    "AdditiveAttention", "Bias", "BloomAttention", "CausalSelfAttention", "Choice", "CrossAttention",
    "DifferentialAttention", "GPT2Attention", "Gradients", "GroupedQueryAttention", "Kernel", "LatentAttention",
    "LinearAttention", "Mask", "MultiHeadAttention", "MultiHeadAttentionWrapper", "ProjectedAttention", "Result",
    "Rotary", "SelfAttention", "T5Attention", "attention_scores", "biases", "cache", "dialects",
    "dot_product_attention", "dropout", "init", "jvp", "masks", "merge", "packed_attention", "register_kernel",
    "rotary", "rotate", "segment_ids", "segment_positions", "variants", "vjp", "which_kernel",
}  # fmt: skip


class Import(NamedTuple):
    """One import statement: the imported top-level module, its line, and whether it runs only inside a function."""

    module: str
    line: int
    lazy: bool


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(node: ast.AST) -> list[str]:
    """The absolute modules that one node imports, by statement or by `import_module("...")`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module] if node.level == 0 and node.module else []
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
            return [node.args[0].value]
    return []


def imports_of(node: ast.AST, lazy: bool = False) -> Iterator[Import]:
    """Every import below a node, wherever it stands."""
    for child in ast.iter_child_nodes(node):
        for module in imported(child):
            yield Import(module.split(".")[0], getattr(child, "lineno", 0), lazy)
        yield from imports_of(child, lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def foreign_imports(path: Path) -> list[Import]:
    own = path.relative_to(ROOT).parts[0]
    found = imports_of(ast.parse(path.read_text(encoding="utf-8")))
    return [each for each in found if each.module != own and each.module not in sys.stdlib_module_names]


def test_imports_are_found_wherever_they_stand() -> None:
    program = (
        "import numpy.linalg\ndef f():\n    from jax import numpy\n    import_module('torch.nn')\nfrom . import x\n"
    )
    assert list(imports_of(ast.parse(program))) == [
        Import("numpy", 1, False),
        Import("jax", 3, True),
        Import("torch", 4, True),
    ]


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_import_arrows_run_one_way(path: Path) -> None:
    allowed = MAY_IMPORT.get(path.relative_to(ROOT).parts[0])
    if allowed is None:
        wrong = [each for each in foreign_imports(path) if each.module in LAZY_IN_CONFORMANCE and not each.lazy]
        wrong = [each for each in wrong if not (each.module == "torch" and name(path).startswith(MAY_IMPORT_TORCH))]
    else:
        wrong = [each for each in foreign_imports(path) if each.module not in allowed]
    assert wrong == []


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_only_the_recording_and_the_adapters_import_torch(path: Path) -> None:
    torch = [each for each in foreign_imports(path) if each.module == "torch"]
    assert torch == [] or name(path).startswith(MAY_IMPORT_TORCH)


def test_array_api_compat_is_imported_by_one_function_only() -> None:
    core = [path for path in SOURCES if path.is_relative_to(ROOT / "attention_core")]
    users = {name(path): each for path in core for each in foreign_imports(path)}
    assert set(users) <= {"attention_core/arrays.py"}
    assert all(each.lazy for each in users.values())


LOADED = """
import sys
{0}
before = set(sys.modules)
import {1}
print(*{{module.split(".")[0] for module in set(sys.modules) - before}})
"""


@pytest.mark.parametrize(
    ("setup", "module", "allowed"),
    [
        ("", "attention_core", {"attention_core"}),
        ("import numpy, numpy.typing", "attention_np", {"attention_core", "attention_np", "threadpoolctl"}),
        ("import jax, jax.numpy", "attention_jax", {"attention_core", "attention_jax", "jax", "jaxlib"}),
    ],
    ids=["attention_core", "attention_np", "attention_jax"],
)
def test_import_loads_nothing_heavy(
    fresh_python: Callable[..., str], setup: str, module: str, allowed: set[str]
) -> None:
    if "jax" in setup:
        pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    loaded = set(fresh_python(LOADED.format(setup, module)).split())
    assert {each for each in loaded if each not in sys.stdlib_module_names} <= allowed


def test_import_conformance_loads_no_framework(fresh_python: Callable[..., str]) -> None:
    pytest.importorskip("typer", reason="the command needs the `conformance` extra")
    loaded = set(fresh_python(LOADED.format("", "conformance.cli")).split())
    assert loaded & LAZY_IN_CONFORMANCE == set()


def test_public_names_are_the_same_in_both_backends() -> None:
    pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    backends = [importlib.import_module(each) for each in ("attention_np", "attention_jax")]
    assert [set(backend.__all__) for backend in backends] == [PUBLIC_NAMES, PUBLIC_NAMES]
    assert [len(backend.__all__) for backend in backends] == [len(PUBLIC_NAMES)] * 2


def test_core_has_the_public_names_but_the_backends_own() -> None:
    assert set(importlib.import_module("attention_core").__all__) == PUBLIC_NAMES - {"init"}


def public_objects(module: ModuleType, label: str) -> Iterator[tuple[str, object]]:
    """The public names of a module, and those of the public modules among them."""
    for each in module.__all__:
        found = getattr(module, each)
        if inspect.ismodule(found):
            yield from public_objects(found, f"{label}.{each}")
        else:
            yield f"{label}.{each}", found


@pytest.mark.parametrize("module_name", ["attention_core", "attention_np", "attention_jax"])
def test_every_public_name_has_a_docstring_with_an_example(module_name: str) -> None:
    if module_name == "attention_jax":
        pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    public = public_objects(importlib.import_module(module_name), module_name)
    without = [label for label, found in public if ">>>" not in (inspect.getdoc(found) or "")]
    assert without == []


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").read_bytes() == b""


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_files_are_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_FILE_LINES or name(path) in LONG_FILES


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        lines -= (function.body[0].end_lineno or 0) - function.body[0].lineno + 1
    return lines


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_functions_are_short(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    limit = MAX_FILE_LINES if name(path).startswith(TABLES) else MAX_FUNCTION_LINES
    assert {node.name: code_lines(node) for node in functions if code_lines(node) > limit} == {}


def test_only_conformance_and_its_users_name_it() -> None:
    """Nothing that ships imports the conformance package; benchmarks and examples may not be imported at all."""
    shipped = [path for path in SOURCES if path.relative_to(ROOT).parts[0] != "conformance"]
    wrong = {"conformance", "benchmarks", "examples", "tests"}
    assert [name(path) for path in shipped if any(each.module in wrong for each in foreign_imports(path))] == []
