"""The table for a person: cells, JUnit, the HTML page."""

from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from conformance import runner
from conformance.adapters.function import UserFunction
from conformance.expectations import Entry, Expectations
from conformance.format import group_names, read_groups
from conformance.junit import write_junit
from conformance.page import page, write_page
from conformance.questions import question_of
from conformance.summary import DIFFERS, cell, cells, explained_by
from tests.conformance import wrong
from tests.conformance.made import arrays, made

GROUP, CASE = made(
    "scaled",
    inputs=arrays(key_heads=4),
    outputs=("out",),
    variants={"softmax=base_2": {"softmax": "base_2"}, "softmax=over_queries": {"softmax": "over_queries"}},
)


def broken(query, key, value):
    raise RuntimeError("<script>alert(1)</script>\x00")


def stray(query, key, value):
    return np.full(query.shape, 7.0)


def no_keywords(query, key, value, wanted):
    return value


FUNCTIONS = {
    "right": wrong.right,
    "base two": wrong.base_two,
    "stray": stray,
    "broken": broken,
}
STATES = {"right": runner.PASS, "base two": DIFFERS, "stray": runner.FAIL, "broken": runner.ERROR}


@pytest.fixture(scope="module")
def rows():
    adapters = [UserFunction(name, function) for name, function in FUNCTIONS.items()]
    return runner.run([GROUP], adapters)


def test_cells_say_pass_differs_fails_and_error(rows):
    ((question, answers),) = cells(rows).items()
    assert question.title == "Made"
    assert {name: found.state for name, found in answers.items()} == STATES
    assert answers["base two"].variants == ("softmax=base_2",)
    assert answers["right"].units <= 1.0
    assert answers["broken"].units is None
    assert len(answers["base two"].telling) == 1


def test_a_question_nobody_can_answer_is_unsupported():
    group, _ = made("capped", softcap=2.0)
    rows = runner.run([group], [UserFunction("right", wrong.right)])
    assert cell(question_of(group), "right", rows).state == runner.UNSUPPORTED


@pytest.mark.parametrize(("skips", "failures", "state"), [(1, 0, runner.SKIPPED), (0, 1, runner.EXPECTED)])
def test_expectations_show_in_the_cell(skips, failures, state):
    entry = (Entry("scaled", "known"),)
    expected = Expectations(entry * skips, entry * failures)
    rows = runner.run([GROUP], [UserFunction("two", wrong.base_two)], expect=expected)
    assert cell(question_of(GROUP), "two", rows).state == state


def test_failures_are_explained_by_the_fewest_conventions(rows):
    failing = [row for row in rows if row.implementation == "base two"]
    assert explained_by(failing) == ("softmax=base_2",)
    assert explained_by([*failing, *(row for row in rows if row.implementation == "stray")]) == ()
    assert explained_by([]) == ()


def test_every_saved_group_has_a_section_of_the_conventions():
    groups = read_groups()
    assert [group.name for group in groups] == list(group_names())
    assert [group.name for group in groups if question_of(group).section is None] == []


def test_junit_counts_and_names_every_answer(rows, tmp_path):
    write_junit(tmp_path / "out.xml", rows)
    suites = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert [suite.get("name") for suite in suites] == list(FUNCTIONS)
    counts = [tuple(suite.get(each) for each in ("tests", "failures", "errors")) for suite in suites]
    assert counts == [("2", "0", "0"), ("2", "2", "0"), ("2", "2", "0"), ("2", "0", "2")]
    test = suites[1][0]
    assert (test.get("classname"), test.get("name")) == ("conformance.made", "scaled[float64]")
    assert "matches `softmax=base_2`" in test[0].text


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.references = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [value for name, value in attributes if name in ("src", "href")]


def test_the_page_stands_alone_and_escapes_what_it_shows(rows, tmp_path):
    write_page(tmp_path / "out.html", rows, ["torch: not installed; pip install it"])
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    read = Page()
    read.feed(text)
    assert "script" not in read.tags
    assert "link" not in read.tags
    assert all(reference.startswith("#") for reference in read.references)
    assert "&lt;script&gt;alert(1)" in text
    for words in ("differs as <code>softmax=base_2</code>", 'class="pass"', 'class="error"', "torch: not installed"):
        assert words in text, words


def test_the_page_of_no_answers_is_a_page():
    assert "0 cases" in page([])
