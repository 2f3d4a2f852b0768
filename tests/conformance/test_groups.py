"""The groups of the conventions: how many, how large, what each case says, and what it finds."""

import numpy as np
import pytest

from conformance import VECTORS
from conformance.cases import in_memory, laid_out
from conformance.format import read_groups
from conformance.kills import MOST, complaints, concerned, dtypes, mutants
from conformance.mutants import Mutant
from conformance.record.draw import booleans, eighths
from conformance.rules import mask_table
from conformance.runner import PASS, ask

QUICK = (
    "causal=lower_right",
    "window=counts_self",
    "heads=tiled",
    "cap=after_bias",
    "empty=mean_of_value",
    "lse=base_2",
    "sink=scaled",
    "masked=value_leaks",
    "gradient=row_term_forgotten",
    "merge=empty_is_plus_inf",
    "dropout=heads_alike",
    "packed=positions_run_on",
    "rotary=other_style",
    "memory=ignored",
)


@pytest.fixture(scope="module")
def groups():
    return tuple(group for group in read_groups() if not group.name.startswith("article-"))


@pytest.fixture(scope="module")
def cases(groups):
    return {case.id: (group, case) for group in groups for case in group.cases}


def test_there_are_300_cases_in_8_megabytes(cases):
    assert len(cases) >= 300
    assert sum(path.stat().st_size for path in VECTORS.iterdir()) < 8_000_000


def test_every_case_is_of_its_group_and_says_what_it_is_for(cases):
    for name, (group, case) in cases.items():
        assert name.startswith(group.name)
        assert case.since == "0.1.0"
        assert {"attention", "merge", "rotary"} & set(case.features)
        assert all(report.startswith("https://github.com/") for report in case.reports)


def test_no_two_cases_say_the_same(cases):
    said = [case.why for _, case in cases.values()]
    assert len(said) == len(set(said))


def test_every_dtype_is_asked_most_of_the_time(cases):
    valid = [case for _, case in cases.values() if case.valid]
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        assert sum(dtype in case.dtypes for case in valid) > 0.8 * len(valid)


def test_gradients_and_tangents_are_asked(cases):
    with_gradients = [case for _, case in cases.values() if case.gradients()]
    assert len(with_gradients) > 250
    asked = {name for case in with_gradients for name in case.gradients()}
    assert asked == {"query", "key", "value", "bias", "sinks", "bias_table", "slopes", "x"}
    assert sum("tangent.out" in case.expected for _, case in cases.values()) >= 10


def test_the_table_of_a_rule_is_the_rule(cases):
    for _, case in cases.values():
        if case.valid and case.op == "attention" and case.parameters["mask"] is not None:
            table = np.broadcast_arrays(mask_table(case), case.inputs["mask"])
            np.testing.assert_array_equal(*table, err_msg=case.id)


def test_an_attention_written_for_itself_passes_everything(cases):
    right = Mutant("")
    for group, case in cases.values():
        row = ask(group, case, right, case.dtypes[0])
        assert row.status == PASS, (case.id, row.note, row.verdict)


def test_calls_that_must_raise_are_refused_for_one_reason_each(cases):
    invalid = [(group, case) for group, case in cases.values() if not case.valid]
    assert len(invalid) >= 90
    assert {case.op for _, case in invalid} == {"attention", "packed", "rotary", "merge"}
    for group, case in invalid:
        letting = [n for n in mutants([group]) if ask(group, case, Mutant(n), case.dtypes[0]).status != PASS]
        assert len(letting) == 1, case.id


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_killed_and_named(cases, name):
    named = 0
    for group, case in cases.values():
        if concerned(case, name) and any(variant.name == name for variant in case.variants):
            rows = [ask(group, case, Mutant(name), dtype) for dtype in dtypes(case, name)]
            named += any(name in row.matches for row in rows)
    assert named


@pytest.mark.slow
def test_every_mutant_is_killed_and_named_and_no_four_cases_do_the_same(groups):
    assert len(mutants(groups)) >= 40
    assert MOST == 3
    assert list(complaints(groups)) == []


def test_draws_are_the_same_everywhere():
    np.testing.assert_array_equal(eighths("a", (4,), -2.0, 2.0), DRAWN)
    assert booleans("a", (6,)).tolist() == BOOLEANS
    assert eighths("b", (2, 3), -2.0, 4.0).dtype == np.float32


DRAWN = [1.25, -0.375, 0.5, 0.75]
BOOLEANS = [True, True, True, False, True, True]


@pytest.mark.parametrize(
    ("order", "steps"), [([0, 1], [1, 1]), ([1, 0], [1, 1]), ([0, 1], [2, -1]), ([1, 0], [-3, 2]), ([0, 1], [1, -2])]
)
def test_a_layout_keeps_the_numbers_and_moves_them(order, steps):
    array = np.arange(1.0, 7.0).reshape(2, 3)
    view = laid_out(array, {"order": order, "steps": steps})
    np.testing.assert_array_equal(view, array)
    dense = (order, steps) == ([0, 1], [1, 1])
    assert np.array_equal(in_memory(view), array) == dense
    assert [abs(stride) // 8 for stride in view.strides] == [
        abs(step) * int(np.prod([abs(steps[k]) * array.shape[k] for k in order[order.index(axis) + 1 :]]))
        for axis, step in enumerate(steps)
    ]


def test_a_step_of_0_repeats_one_place():
    view = laid_out(np.ones((3, 2)), {"order": [0, 1], "steps": [0, 1]})
    assert view.strides == (0, 8)
