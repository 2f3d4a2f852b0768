"""The command as a user types it: what it prints, what it writes, how it ends."""

import csv
import json

import pytest
from typer.testing import CliRunner

from conformance import adapters
from conformance.adapters import Known
from conformance.cli import app
from conformance.format import read_groups, write_groups

WRONG = "tests.conformance.wrong"


@pytest.fixture
def command():
    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run


def test_run_passes_on_numpy_with_a_row_for_each_section(command):
    done = command("run", "--impl", "numpy", "--group", "article-")
    assert done.exit_code == 0
    for section in (
        "Embedding",
        "Unnormalised weights",
        "Self-attention",
        "Multi-head attention",
        "Causal self-attention",
    ):
        assert section in done.stdout
    assert "23 cases, 1 implementations: 46 pass" in done.stdout


def test_run_fails_and_names_the_mistake(command):
    done = command("run", "--impl", f"{WRONG}:no_scale", "--group", "article-self")
    assert done.exit_code == 1
    assert "matches `scale=1`: The scores are not divided by sqrt(D)." in done.stdout
    assert "tolerances" in done.stdout


def test_run_passes_a_users_own_function(command):
    done = command("run", "--impl", f"{WRONG}:right", "--group", "article-")
    assert done.exit_code == 0
    assert "unsupported" in done.stdout


def test_run_passes_a_users_function_beside_ours(command):
    done = command("run", "--impl", f"{WRONG}:right", "--impl", "numpy", "--group", "article-cross")
    assert done.exit_code == 0
    assert "2 cases, 2 implementations: 6 pass, 2 unsupported" in done.stdout


def test_run_writes_json_and_csv(command, tmp_path):
    files = ("--json", tmp_path / "a.json", "--csv", tmp_path / "a.csv")
    done = command("run", "--impl", f"{WRONG}:first_row_nan", "--group", "article-", *files)
    assert done.exit_code == 1
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    failed = [row for row in rows if row["status"] == "fail"]
    assert failed[0]["outputs"]["out"]["units"] is None
    assert failed[0]["outputs"]["out"]["note"].startswith("is nan at [0, 0], expected")
    with (tmp_path / "a.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert {line["status"] for line in lines} == {"fail", "unsupported"}
    assert lines[0]["note"] == "a function of query, key and value is asked the `attention` cases only"


def test_run_writes_a_page_and_junit(command, tmp_path):
    arguments = ("--impl", f"{WRONG}:no_scale", "--group", "article-cross")
    done = command("run", *arguments, "--html", tmp_path / "a.html", "--junit", tmp_path / "a.xml")
    assert done.exit_code == 1
    assert "differs as <code>scale=1</code>" in (tmp_path / "a.html").read_text()
    assert '<testsuite name="tests.conformance.wrong:no_scale" tests="4"' in (tmp_path / "a.xml").read_text()


@pytest.mark.parametrize("options", [("--since", "0.0.1"), ("--group", "invalid", "--dtype", "float64")])
def test_run_of_no_case_is_an_error(command, options):
    done = command("run", "--impl", "numpy", *options)
    assert done.exit_code == 2
    assert "no case is left to ask: --group, --dtype and --since" in done.stderr


def test_run_knows_what_the_users_file_expects(command, tmp_path):
    path = tmp_path / "expect.toml"
    text = '[[expected_failure]]\ncase = "article-cross-*"\nreason = "unscaled"\n'
    path.write_text(text)
    arguments = ("--group", "article-cross", "--expect", path)
    done = command("run", "--impl", f"{WRONG}:no_scale", *arguments)
    assert done.exit_code == 0
    assert "2 unsupported" in done.stdout
    assert "2 expected failure" in done.stdout
    path.write_text('[[skip]]\ncase = "batch-*"\nimpl = "nmupy"\nreason = "no"\n')
    misspelt = command("run", "--impl", f"{WRONG}:no_scale", *arguments)
    assert misspelt.exit_code == 2
    assert f"{path}: no implementation matches `nmupy`" in misspelt.stderr
    path.write_text(text)
    unexpected = command("run", "--impl", f"{WRONG}:right", *arguments)
    assert unexpected.exit_code == 1
    assert "remove it from the expected failures (unscaled)" in unexpected.stdout


def test_run_pins_cases_by_version(command):
    none = command("run", "--impl", "numpy", "--since", "0.0.9")
    assert (none.exit_code, "no case is left to ask" in none.stderr) == (2, True)
    wrong = command("run", "--impl", "numpy", "--since", "latest")
    assert (wrong.exit_code, "`latest` is no version" in wrong.stderr) == (2, True)


def test_many_failures_alike_are_counted_after_the_first(command):
    done = command("run", "--impl", f"{WRONG}:no_scale", "--group", "article-multi-head")
    assert done.stdout.count("matches `scale=1`") == 3
    assert "7 more fail as `scale=1` in article-multi-head" in done.stdout


def test_an_exception_of_a_users_function_is_an_error_and_does_not_end_the_run(command):
    done = command("run", "--impl", "math:hypot", "--group", "article-causal")
    assert done.exit_code == 1
    assert "error math:hypot" in done.stdout
    assert "TypeError" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--impl", "nobody"), "no implementation `nobody`; known are numpy, jax, jax-jit, jax-vmap, "),
        (("run", "--impl", "nobody:f"), "`nobody:f`: no module `nobody` here or installed"),
        (("run", "--impl", f"{WRONG}:nobody"), f"`{WRONG}` has no `nobody`"),
        (("run", "--impl", f"{WRONG}:NAMED"), "is neither a function nor an adapter"),
        (("run", "--impl", "numpy", "--group", "nobody"), "no group begins with `nobody`; the groups are article-"),
        (("show", "nobody"), "no case `nobody`; `attention-conformance list` prints all"),
        (("show", "article-causal"), "near it are article-causal-layer, article-causal-unmasked-weights"),
        (("list", "--vectors", "nowhere"), "index.json is missing in nowhere"),
    ],
)
def test_a_wrong_call_says_what_to_change(command, arguments, message):
    done = command(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_damaged_vectors_end_the_command_with_what_to_run(command, tmp_path):
    write_groups(read_groups(names=["article-causal"]), tmp_path)
    path = tmp_path / "article-causal.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    done = command("run", "--impl", "numpy", "--vectors", tmp_path)
    assert done.exit_code == 2
    assert "article-causal.safetensors has" in done.stderr
    assert "attention-conformance record" in done.stderr


def test_only_the_dtypes_that_are_asked_for(command):
    done = command("run", "--impl", "numpy", "--group", "article-cross", "--dtype", "float32")
    assert done.exit_code == 0
    assert "2 cases, 1 implementations: 2 pass" in done.stdout
    done = command("run", "--impl", "numpy", "--dtype", "float8")
    assert done.exit_code == 2
    assert "no dtype `float8`; there are float64, float32, float16, bfloat16" in done.stderr


def test_a_run_that_asks_nothing_is_no_pass(command):
    done = command("run", "--impl", "math:hypot", "--group", "article-embedding")
    assert done.exit_code == 1
    assert "math:hypot: no case could be asked: a function of query, key and value is asked" in done.stdout


def test_what_is_not_installed_is_listed_and_is_no_failure(command, monkeypatch):
    gone = Known("torch", "conformance.adapters.nothing_here:make", "pip install it", asked=True)
    monkeypatch.setattr(adapters, "KNOWN", (adapters.KNOWN[0], gone))
    done = command("run", "--group", "article-embedding")
    assert done.exit_code == 0
    assert "torch: not asked, since conformance.adapters.nothing_here is not installed; pip install it" in done.stdout
    asked = command("run", "--impl", "torch")
    assert asked.exit_code == 2
    assert "pip install it" in asked.stderr


def test_list_prints_every_case(command):
    done = command("list")
    assert done.exit_code == 0
    assert "article-multi-head-all-heads" in done.stdout
    assert len([line for line in done.stdout.splitlines() if line.startswith("  article-")]) == 23


def test_show_prints_a_case_for_a_person(command):
    done = command("show", "article-causal-rule", "--impl", "numpy", "--impl", f"{WRONG}:mask_ignored")
    assert done.exit_code == 0
    for text in (
        "section “Causal self-attention”",
        "query float32[6, 2]",
        "mask = {'rule': 'causal'}",
        "weights (attn_weights in the article)",
        "0.9468",
        "mask=inverted: True is taken as `may not attend`.",
        "pass numpy · float64: 8 of 8 outputs",
        "matches `mask=none`: The mask is ignored.",
        "out float64[6, 4]",
    ):
        assert text in done.stdout, text


def test_show_says_what_coincides(command):
    done = command("show", "article-multi-head-layer", "--impl", "numpy")
    assert "expected and heads=interleaved coincide here: each head has one column" in done.stdout


def test_lint_passes(command, tmp_path):
    write_groups(read_groups(names=["article-", "merge"]), tmp_path)
    done = command("lint", "--vectors", tmp_path)
    assert done.exit_code == 0
    assert "8 groups, 31 cases: no complaints" in done.stdout


def test_lint_fails_on_a_stray_file(command, tmp_path):
    write_groups(read_groups(names=["article-", "merge"]), tmp_path)
    (tmp_path / "stray.json").write_text("{}")
    done = command("lint", "--vectors", tmp_path)
    assert done.exit_code == 1
    assert "stray.json is in no group of index.json" in done.stdout


def test_the_help_names_every_command(command):
    done = command("--help")
    for name in ("run", "list", "show", "record", "lint"):
        assert name in done.stdout
