"""Every small input that a report gives, with the answer that is right: by hand, by a plain loop, and by the core."""

from typing import Any

import numpy as np
import pytest

from attention_np import Result
from tests.core.field_reports import plain
from tests.core.field_reports.inputs import CASES, PICTURES, UNDER_JIT, Case, Picture
from tests.core.field_reports.libraries import as_arrays, assert_same, attention, core, evaluate


def numbered(entries: list[Any]) -> list[str]:
    """The id of each entry's report, with a letter where a report has several."""
    reports = [entry.report for entry in entries]
    return [f"{r}{chr(ord('a') + reports[:n].count(r))}" if reports.count(r) > 1 else r for n, r in enumerate(reports)]


def known(case: Case) -> dict[str, Any]:
    return {name: x for name in ("out", "lse", "weights") if (x := getattr(case, name)) is not None}


@pytest.mark.parametrize("case", CASES, ids=numbered(CASES))
def test_the_loop_gives_the_reported_answer(case: Case) -> None:
    answer = plain.attention(case.query, case.key, case.value, **(case.call if case.plain is None else case.plain))
    for name, expected in known(case).items():
        assert_same(getattr(answer, name)[case.at], expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("case", CASES, ids=numbered(CASES))
def test_attention_gives_the_reported_answer(case: Case) -> None:
    answer = attention("numpy", case.query, case.key, case.value, **case.call)
    for name, expected in known(case).items():
        assert_same(getattr(answer, name)[case.at], expected, rtol=1e-7, atol=1e-7)


def test_attention_under_jit_gives_the_reported_answers() -> None:
    cases = [case for case in CASES if case.report in UNDER_JIT]

    def together(*triples: Any, calls: list[dict[str, Any]]) -> list[Result]:
        return [core(*triple, **call) for triple, call in zip(triples, calls, strict=True)]

    triples = [as_arrays(case.query, case.key, case.value) for case in cases]
    answers = evaluate("jax", together, *triples, calls=[case.call for case in cases])
    wrong = {}
    for case, answer in zip(cases, answers, strict=True):
        for name, expected in known(case).items():
            if not np.allclose(getattr(answer, name)[case.at], expected, rtol=1e-7, atol=1e-7):
                wrong[case.report, name] = getattr(answer, name)
    assert wrong == {}


@pytest.mark.parametrize("picture", PICTURES, ids=numbered(PICTURES))
def test_the_mask_is_the_reported_one(picture: Picture) -> None:
    drawn = np.array([[pair == "1" for pair in row] for row in picture.rows.split()])
    seen = picture.mask.array(*drawn.shape, query_positions=picture.query_positions, xp=np)
    assert np.array_equal(picture.plain, drawn)
    assert np.array_equal(seen[0], drawn)
