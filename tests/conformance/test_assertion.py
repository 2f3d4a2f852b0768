"""The suite in somebody else's tests: `assert_conforms`, and the plugin in a fresh pytest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import attention_np
from conformance import Nonconforming, assert_conforms
from conformance.errors import UsageError
from tests.conformance import wrong

ROOT = Path(__file__).resolve().parents[2]
CROSS = ("article-cross",)


def test_ours_conforms():
    assert_conforms(attention_np.dot_product_attention, groups=["article"])


def test_a_wrong_one_is_told_which_convention_it_follows():
    with pytest.raises(Nonconforming, match=r"1 of 2 answers(.|\n)*matches `scale=1`: The scores are not divided"):
        assert_conforms(wrong.no_scale, groups=CROSS, dtypes=["float32"])


def test_a_name_stands_for_a_function():
    assert_conforms("tests.conformance.wrong:right", "article-cross")


def test_a_function_that_can_be_asked_nothing_does_not_conform():
    with pytest.raises(Nonconforming, match="no case could be asked"):
        assert_conforms(wrong.right, groups=["article-embedding"])


def test_a_group_that_does_not_exist_is_an_error():
    with pytest.raises(UsageError, match="no group begins with `crossed`"):
        assert_conforms(wrong.right, groups=["crossed"])


def test_expected_failures_are_expected_with_a_reason(tmp_path):
    path = tmp_path / "expect.toml"
    path.write_text('[[expected_failure]]\ncase = "article-cross-*"\nvariant = "scale=1"\nreason = "unscaled"\n')
    assert_conforms(wrong.no_scale, CROSS, expect=path)
    with pytest.raises(Nonconforming, match="passes; remove it from the expected failures"):
        assert_conforms(wrong.right, CROSS, expect=path)


def test_an_entry_that_matches_nothing_is_an_error_where_some_groups_are_asked(tmp_path):
    path = tmp_path / "expect.toml"
    path.write_text('[[skip]]\ncase = "article-croos-*"\nreason = "no"\n')
    with pytest.raises(UsageError, match=r"no case matches `article-croos-\*`"):
        assert_conforms(wrong.right, CROSS, expect=path)


def in_fresh_pytest(tmp_path, *arguments):
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    # Other plugins that are installed take longer to load than the test.
    alone = {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **alone}
    command = [sys.executable, "-m", "pytest", "-p", "conformance.plugin", "-p", "no:cacheprovider", "-q", *arguments]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)


def test_the_plugin_makes_a_test_of_each_case_beside_the_users_own(tmp_path):
    (tmp_path / "expect.toml").write_text(
        '[[skip]]\ncase = "article-multi-head-head-*"\nreason = "one head is enough"\n'
        '[[expected_failure]]\ncase = "article-multi-head-all-heads"\ndtype = "float32"\nreason = "unscaled"\n'
    )
    done = in_fresh_pytest(
        tmp_path,
        "--attention=tests.conformance.wrong:no_scale",
        "--attention-groups=article-multi-head,article-cross",
        "--attention-expect=expect.toml",
        "--attention-since=0.1.0",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "3 failed, 1 passed, 14 skipped, 1 xfailed" in done.stdout
    assert "matches `scale=1`: The scores are not divided by sqrt(D)." in done.stdout
    assert "tests.conformance.wrong:no_scale::article-cross-attention[float32]" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--attention=nobody:f"], "no module `nobody` here or installed"),
        (["--attention=math:hypot", "--attention-groups=nobody"], "no group begins with `nobody`"),
        (
            ["--attention=math:hypot", "--attention-groups=batch", "--attention-expect=expect.toml"],
            "expect.toml: no case matches `bacth-*`; `attention-conformance list` prints all",
        ),
    ],
)
def test_a_wrong_option_ends_pytest_in_words(tmp_path, arguments, words):
    (tmp_path / "expect.toml").write_text('[[skip]]\ncase = "bacth-*"\nreason = "no"\n')
    done = in_fresh_pytest(tmp_path, *arguments)
    assert done.returncode == 4
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_asks_nothing_is_no_pass(tmp_path):
    done = in_fresh_pytest(tmp_path, "--attention=math:hypot", "--attention-groups=article-embedding")
    assert done.returncode == 1
    assert "math:hypot: no case could be asked; a function of query, key and value is asked" in done.stdout


def test_without_its_option_the_plugin_does_nothing(tmp_path):
    done = in_fresh_pytest(tmp_path)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True)
