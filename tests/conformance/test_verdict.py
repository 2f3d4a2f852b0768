"""The one rule, by hand-sized numbers."""

import numpy as np
import pytest

from conformance.cases import Case, Expected, Variant
from conformance.verdict import distance, epsilon, judge, judge_output, tolerance

TRUTH = np.array([[1.0, -4.0], [0.5, 2.0]])


def case_of(truth, *variants):
    return Case(
        id="a",
        name="a",
        group="g",
        section=None,
        why="w",
        failure="f",
        since="0",
        op="attention",
        inputs={},
        parameters={},
        dtypes=("float32",),
        expected={"out": Expected(truth), "lse": Expected(truth[:, 0])},
        variants=variants,
    )


def test_tolerance_is_four_times_pytorchs_error_and_four_eps_of_the_largest_number():
    assert tolerance(TRUTH, 1e-6, "float32") == pytest.approx(4e-6 + 4 * 2.0**-23 * 4.0)
    assert tolerance(TRUTH, 0.0, "bfloat16") == pytest.approx(4 * 2.0**-7 * 4.0)
    assert tolerance(TRUTH, 0.0, "float16") == pytest.approx(4 * 2.0**-10 * 4.0)


def test_the_largest_number_is_a_finite_one():
    assert tolerance(np.array([-np.inf, 3.0]), 0.0, "float64") == 4 * 2.0**-52 * 3.0
    assert tolerance(np.array([np.nan]), 0.5, "float64") == 2.0
    assert tolerance(np.zeros((0, 3)), 0.0, "float64") == 0.0


@pytest.mark.parametrize(("error", "passes"), [(0.99, True), (1.0, True), (1.01, False)])
def test_the_border(error, passes):
    allowed = tolerance(TRUTH, 0.25, "float64")
    answer = TRUTH.copy()
    answer[0, 1] += error * allowed
    judged = judge_output("out", answer, TRUTH, 0.25, "float64")
    assert judged.passed is passes or error == 1.0
    assert judged.units == pytest.approx(error)


@pytest.mark.parametrize("worst", [0.0, 1e30])
@pytest.mark.parametrize("stray", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_against_a_number_fail_whatever_the_tolerance(stray, worst):
    answer = TRUTH.copy()
    answer[1, 0] = stray
    judged = judge_output("out", answer, TRUTH, worst, "float32")
    assert not judged.passed
    assert judged.note == f"is {stray} at [1, 0], expected 0.5"


def test_a_number_against_nan_or_infinity_fails():
    for wanted in (np.nan, np.inf, -np.inf):
        truth = TRUTH.copy()
        truth[0, 0] = wanted
        assert not judge_output("out", TRUTH, truth, 1e30, "float32").passed


def test_nan_and_infinity_where_they_are_expected_pass():
    truth = np.array([np.nan, -np.inf, np.inf, 1.0])
    assert distance(truth.copy(), truth) == (0.0, "")
    assert distance(np.array([np.nan, np.inf, np.inf, 1.0]), truth)[0] == np.inf


def test_another_shape_fails_and_is_never_broadcast():
    judged = judge_output("out", np.ones((2, 1)), np.ones((2, 2)), 1e30, "float32")
    assert not judged.passed
    assert judged.note == "has shape (2, 1), expected (2, 2)"


def test_zeros_expected_of_an_exact_reference_must_be_zeros():
    assert judge_output("out", np.zeros(3), np.zeros(3), 0.0, "float32").passed
    assert judge_output("out", np.full(3, 1e-30), np.zeros(3), 0.0, "float32").units == np.inf


def test_an_empty_tensor_passes():
    assert judge_output("out", np.zeros((0, 4)), np.zeros((0, 4)), 0.0, "float32").passed


def test_a_failing_answer_is_named_and_a_passing_one_is_not():
    case = case_of(TRUTH, Variant("scale=1", "no scaling", {"out": TRUTH + 1}), Variant("b", "b", {"out": TRUTH + 2}))
    assert [v.name for v in judge(case, {"out": TRUTH + 1}, {}, "float32").matches] == ["scale=1"]
    assert judge(case, {"out": TRUTH}, {}, "float32").matches == ()
    assert judge(case, {"out": TRUTH + 3}, {}, "float32").matches == ()


def test_a_variant_is_matched_by_every_output_that_it_holds():
    case = case_of(TRUTH, Variant("both", "both", {"out": TRUTH + 1, "lse": TRUTH[:, 0] + 1}))
    assert judge(case, {"out": TRUTH + 1}, {}, "float32").matches
    assert judge(case, {"out": TRUTH + 1, "lse": TRUTH[:, 0] + 1}, {}, "float32").matches
    assert not judge(case, {"out": TRUTH + 1, "lse": TRUTH[:, 0]}, {}, "float32").matches


def test_a_variant_of_another_output_is_not_named():
    case = case_of(TRUTH, Variant("lse=base_2", "base", {"lse": TRUTH[:, 0] * 3}))
    verdict = judge(case, {"out": TRUTH + 1, "lse": TRUTH[:, 0]}, {}, "float32")
    assert not verdict.passed
    assert verdict.matches == ()


def test_outputs_that_were_not_given_are_not_judged():
    verdict = judge(case_of(TRUTH), {"out": TRUTH}, {}, "float32")
    assert [output.name for output in verdict.outputs] == ["out"]


def test_epsilon():
    assert [epsilon(name) for name in ("float64", "float32", "float16", "bfloat16")] == [
        2.0**-52,
        2.0**-23,
        2.0**-10,
        2.0**-7,
    ]


@pytest.mark.parametrize(("name", "named"), [("out=mean_of_v", False), ("mask=inverted", False), ("empty=nan", True)])
def test_nan_alone_does_not_make_a_variant_the_cause(name, named):
    """A mean over NaN is NaN, and so is every other misuse of it."""
    spoilt = np.where([[True], [False]], np.nan, TRUTH)
    case = case_of(TRUTH, Variant(name, name, {"out": spoilt}))
    assert bool(judge(case, {"out": spoilt}, {}, "float32").matches) is named
    case = case_of(TRUTH, Variant(name, name, {"out": spoilt * 2}))
    assert judge(case, {"out": spoilt * 2}, {}, "float32").matches
