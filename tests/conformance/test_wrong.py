"""Every one-line wrong implementation fails, and the runner says which convention it took."""

import pytest

from conformance.adapters import load
from conformance.format import read_groups
from conformance.runner import FAIL, PASS, UNSUPPORTED, run
from tests.conformance import wrong


@pytest.fixture(scope="module")
def groups():
    return read_groups(names=["article-"])


@pytest.mark.parametrize(("name", "variant"), (wrong.NAMED | wrong.NAMED_LAYERS).items())
def test_a_wrong_implementation_fails_and_is_named(groups, name, variant):
    rows = run(groups, [load(f"tests.conformance.wrong:{name}")])
    failed = [row for row in rows if row.status == FAIL]
    assert failed
    named = [row for row in failed if variant in row.matches]
    assert named
    assert {row.dtype for row in named} == {"float32", "float64"}


@pytest.mark.parametrize("name", wrong.NAMED)
def test_every_failure_of_a_wrong_function_is_named(groups, name):
    rows = run(groups, [load(f"tests.conformance.wrong:{name}")])
    assert all(row.matches for row in rows if row.status == FAIL)


@pytest.mark.parametrize("name", ["right", "WrongLayers"])
def test_the_right_one_passes(groups, name):
    statuses = {row.status for row in run(groups, [load(f"tests.conformance.wrong:{name}")])}
    assert statuses == {PASS, UNSUPPORTED}


def test_nan_fails_and_matches_nothing(groups):
    rows = [row for row in run(groups, [load("tests.conformance.wrong:first_row_nan")]) if row.case.op == "attention"]
    assert {row.status for row in rows} == {FAIL}
    assert not any(row.matches for row in rows)


def test_a_function_without_mask_is_not_asked_masked_cases(groups):
    rows = run(groups, [load("tests.conformance.wrong:no_mask_taken")])
    by_case = {row.case.id: row for row in rows}
    assert by_case["article-causal-rule"].status == UNSUPPORTED
    assert by_case["article-causal-rule"].note == "the function takes no `mask`"
    assert by_case["article-cross-attention"].status == PASS
