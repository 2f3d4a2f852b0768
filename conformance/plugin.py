"""A pytest plugin: every case a test of its own, in somebody else's suite.

    pytest -p conformance.plugin --attention mine:attend

It is named on the command line (or in `addopts`), and registers nothing by itself.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance import expectations, runner
from conformance.adapters import NotInstalled, load
from conformance.adapters.base import Adapter
from conformance.cases import Case, Group
from conformance.errors import UsageError, VectorError
from conformance.expectations import Expectations
from conformance.format import read_groups
from conformance.report import explanation


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("attention", "conformance of attention")
    group.addoption("--attention", metavar="MODULE:FUNCTION", help="ask this attention every case that it takes")
    group.addoption("--attention-groups", metavar="NAMES", default="", help="only groups that begin so, by commas")
    group.addoption("--attention-expect", metavar="FILE", help="skips and expected failures with reasons, TOML or JSON")
    group.addoption("--attention-since", metavar="VERSION", help="only the cases of this version and before")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a test for each case and dtype, behind the tests that were collected."""
    name = config.getoption("--attention")
    if name is None:
        return
    names = tuple(each for each in config.getoption("--attention-groups").split(",") if each)
    path = config.getoption("--attention-expect")
    since = config.getoption("--attention-since")
    try:
        adapter = load(name)
        groups, expected = expectations.selected(
            read_groups(names=names), since, Path(path) if path else None, [adapter.name], read_groups
        )
    except (NotInstalled, UsageError, VectorError) as error:
        raise pytest.UsageError(str(error)) from error
    parent = Vectors.from_parent(session, name=name, nodeid=name)
    parent.question = (groups, adapter, expected)
    items.extend(parent.collect())


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run in which no case could be put to the attention: it has shown nothing."""
    asked = [item for item in session.items if isinstance(item, Vector)]
    if exitstatus == pytest.ExitCode.OK and asked and not any(item.answered for item in asked):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.stash[_NOTHING] = f"{asked[0].asked[2].name}: no case could be asked; {asked[0].note}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say so."""
    if _NOTHING in config.stash:
        terminalreporter.write_line(config.stash[_NOTHING], red=True)


_NOTHING = pytest.StashKey[str]()


class Vectors(pytest.Collector):
    """All cases, put to one attention."""

    question: tuple[tuple[Group, ...], Adapter, Expectations | None]

    def collect(self) -> Iterator[pytest.Item]:
        """Yield a test for each case and dtype."""
        groups, adapter, expected = self.question
        for group in groups:
            for case in group.cases:
                for dtype in case.dtypes:
                    item = Vector.from_parent(self, name=f"{case.id}[{dtype}]")
                    item.asked = (group, case, adapter, dtype, expected)
                    yield item


class Vector(pytest.Item):
    """One case in one dtype."""

    asked: tuple[Group, Case, Adapter, str, Expectations | None]
    answered = False
    note = ""

    def runtest(self) -> None:
        """Ask, and end as the verdict says."""
        row = runner.ask_as_expected(*self.asked)
        self.answered, self.note = row.status not in (runner.UNSUPPORTED, runner.SKIPPED), row.note
        if row.status in (runner.UNSUPPORTED, runner.SKIPPED):
            pytest.skip(row.note)
        if row.status == runner.EXPECTED:
            pytest.xfail(row.note)
        if row.bad:
            raise Departure(f"{row.status}: " + "\n".join([*explanation(row), f"why it matters: {row.case.failure}"]))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the verdict, not the runner's frames."""
        if isinstance(excinfo.value, Departure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Name the test by its attention and case."""
        return self.path, None, f"{self.asked[2].name} {self.name}"


class Departure(AssertionError):
    """The answer is not the expected one."""
