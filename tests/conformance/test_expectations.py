"""Skips and expected failures of a user's file: reasons are needed, unexpected passes are told."""

import json

import pytest

from conformance import expectations, runner
from conformance.adapters.function import UserFunction
from conformance.errors import UsageError
from tests.conformance import wrong
from tests.conformance.made import arrays, made

TILED = {"heads=tiled": {"heads": "tile"}}


def tiled(query, key, value):
    key, value = (x.repeat(1, axis=-3)[..., [0, 1, 0, 1], :, :] for x in (key, value))
    return wrong.right(query, key, value)


def rows_of(function, entries, **arguments):
    group, _ = made("grouped", inputs=arrays(), variants=TILED, outputs=("out",), **arguments)
    expected = expectations.Expectations(*entries)
    return runner.run([group], [UserFunction("mine", function)], expect=expected)


def write(tmp_path, text, name="expect.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_file_is_read_as_toml_or_json(tmp_path):
    text = (
        '[[skip]]\ncase = "a-*"\nreason = "no"\n[[expected_failure]]\ncase = "b"\ndtype = "float32"\nreason = "yes"\n'
    )
    entries = {
        "skip": [{"case": "a-*", "reason": "no"}],
        "expected_failure": [{"case": "b", "dtype": "float32", "reason": "yes"}],
    }
    from_toml = expectations.read_expectations(write(tmp_path, text))
    assert from_toml == expectations.read_expectations(write(tmp_path, json.dumps(entries), "expect.json"))
    assert from_toml.skip("a-1", "any", "float64") == "no"
    assert from_toml.skip("b", "any", "float64") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[skip]]\ncase = "a"\n', "skip 1 gives no `reason`"),
        ('[[skip]]\ncase = "a"\nreason = " "\n', "skip 1 gives no `reason`"),
        ('[[expected_failure]]\nreason = "a"\n', "expected_failure 1 gives no `case`"),
        ('[[skip]]\ncase = "a"\nreason = "b"\nvariant = "c"\n', "skip 1: no key `variant`"),
        ('[[xfail]]\ncase = "a"\n', "no table `xfail`; known are skip and expected_failure"),
        ("[[skip", "not TOML"),
    ],
)
def test_a_wrong_file_says_what_to_change(tmp_path, text, words):
    with pytest.raises(UsageError, match=words):
        expectations.read_expectations(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match="there is no such file"):
        expectations.read_expectations(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('case = "gruoped"', "no case matches `gruoped`; `attention-conformance list` prints all"),
        ('case = "g*"\ndtype = "float8"', r"`g\*` is asked in no dtype that matches `float8`"),
        ('case = "g*"\ndtype = "float16"', "is asked in no dtype that matches `float16`"),
        ('case = "g*"\nimpl = "nmupy"', "no implementation matches `nmupy`; there are mine, numpy, jax"),
        ('case = "g*"\nvariant = "heads=tilde"', r"`g\*` has no variant `heads=tilde`"),
    ],
)
def test_an_entry_that_matches_nothing_is_an_error(tmp_path, entry, words):
    group, _ = made("grouped", inputs=arrays(), variants=TILED)
    path = write(tmp_path, f'[[expected_failure]]\n{entry}\nreason = "no"\n')
    with pytest.raises(UsageError, match=words):
        expectations.selected([group], None, path, ["mine"])


def test_an_entry_may_speak_of_what_this_run_does_not_ask(tmp_path):
    asked, _ = made("grouped")
    other, _ = made("other")
    text = '[[skip]]\ncase = "other"\nreason = "no"\n[[skip]]\ncase = "grouped"\nimpl = "jax*"\nreason = "no"\n'
    groups, expected = expectations.selected([asked], None, write(tmp_path, text), ["mine"], lambda: [asked, other])
    assert groups == (asked,)
    assert expected.skip("grouped", "mine", "float64") is None


def test_a_skipped_case_is_not_asked():
    def never(query, key, value):
        raise AssertionError("asked")

    rows = rows_of(never, [(expectations.Entry("grouped", "no heads here"),), ()])
    assert {(row.status, row.note) for row in rows} == {(runner.SKIPPED, "no heads here")}
    assert not any(row.bad for row in rows)


def test_an_expected_failure_is_no_failure():
    rows = rows_of(tiled, [(), (expectations.Entry("gr*", "tiles its heads", variant="heads=tiled"),)])
    assert [row.status for row in rows] == [runner.EXPECTED] * 2
    assert not any(row.bad for row in rows)


def test_an_expected_failure_in_one_dtype_leaves_the_others():
    rows = rows_of(tiled, [(), (expectations.Entry("gr*", "tiles its heads", dtype="float32"),)])
    assert [row.status for row in rows] == [runner.FAIL, runner.EXPECTED]


def test_another_failure_than_the_expected_one_is_a_failure():
    rows = rows_of(tiled, [(), (expectations.Entry("grouped", "off by one", variant="window=counts_self"),)])
    assert [row.status for row in rows] == [runner.FAIL] * 2
    assert rows[0].note == "expected to fail as `window=counts_self`, and fails otherwise"


def test_an_unexpected_pass_is_told_and_is_bad():
    def right(query, key, value):
        return wrong.right(query, key.repeat(2, axis=-3), value.repeat(2, axis=-3))

    rows = rows_of(right, [(), (expectations.Entry("grouped", "tiles its heads"),)])
    assert [row.status for row in rows] == [runner.UNEXPECTED] * 2
    assert all(row.bad for row in rows)
    assert "remove it from the expected failures" in rows[0].note


def test_what_is_unsupported_stays_so():
    rows = rows_of(lambda query, key, value: value, [(), (expectations.Entry("*", "no"),)], softcap=2.0)
    assert {row.status for row in rows} == {runner.UNSUPPORTED}


def test_a_version_pins_the_cases():
    old, case = made("old")
    newer = type(case)(**{**vars(case), "id": "new", "since": "0.10.0"})
    group = type(old)(old.name, old.title, old.stamp, old.worst, (case, newer))
    assert [each.id for g in expectations.pinned([group], "0.2.0") for each in g.cases] == ["old"]
    assert [each.id for g in expectations.pinned([group], "0.10.0") for each in g.cases] == ["old", "new"]
    assert expectations.pinned([group], "0.0.1") == ()
    with pytest.raises(UsageError, match="is no version"):
        expectations.pinned([group], "newest")
