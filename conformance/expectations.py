"""What a user's file says about cases: skip these, these fail and I know why. Every entry gives a reason.

TOML (or the same as JSON)::

    [[skip]]
    case = "rope-*"
    reason = "this engine has no rotary embedding"

    [[expected_failure]]
    case = "window-*"
    dtype = "float16"
    variant = "window=counts_self"
    reason = "our window counts the query's own key; to change in 2.0"

`case` is an id or a pattern (`*`, `?`); `impl` and `dtype` narrow an entry; `variant` says how the case fails, and
another failure is then a failure. A case that is expected to fail and passes is reported: the entry is to be removed.
An entry that matches nothing, misspelt or outlived, is an error.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from conformance.adapters import KNOWN
from conformance.cases import Group
from conformance.errors import UsageError
from conformance.runner import ERROR, EXPECTED, FAIL, PASS, UNEXPECTED, Row

KINDS = ("skip", "expected_failure")
KEYS = {"skip": {"case", "impl", "dtype", "reason"}, "expected_failure": {"case", "impl", "dtype", "variant", "reason"}}


@dataclass(frozen=True)
class Entry:
    """One line of the file: which cases, why, and, for a failure, how."""

    case: str
    reason: str
    impl: str = "*"
    dtype: str = "*"
    variant: str | None = None

    def about(self, case: str, impl: str, dtype: str) -> bool:
        """Whether the entry speaks of this answer."""
        asked = ((case, self.case), (impl, self.impl), (dtype, self.dtype))
        return all(fnmatchcase(name, pattern) for name, pattern in asked)


@dataclass(frozen=True)
class Expectations:
    """A user's skips and expected failures; none by default."""

    skips: tuple[Entry, ...] = ()
    failures: tuple[Entry, ...] = ()

    def skip(self, case: str, impl: str, dtype: str) -> str | None:
        """Return why this case is skipped, or None."""
        return next((entry.reason for entry in self.skips if entry.about(case, impl, dtype)), None)

    def settle(self, row: Row) -> Row:
        """Return the row with its status as the file has it: an expected failure, an unexpected pass, or as it was."""
        about = (row.case.id, row.implementation, row.dtype)
        entry = next((entry for entry in self.failures if entry.about(*about)), None)
        if entry is None or row.status not in (PASS, FAIL, ERROR):
            return row
        if row.status == PASS:
            return replace(
                row, status=UNEXPECTED, note=f"passes; remove it from the expected failures ({entry.reason})"
            )
        if entry.variant is not None and entry.variant not in row.matches:
            return replace(row, note=f"expected to fail as `{entry.variant}`, and fails otherwise")
        return replace(row, status=EXPECTED, note=entry.reason)

    def without_effect(self, groups: Iterable[Group], impls: Iterable[str]) -> Iterator[str]:
        """Yield a sentence on each entry that can never count among these cases and implementations."""
        cases, impls = [case for group in groups for case in group.cases], tuple(impls)
        for entry in (*self.skips, *self.failures):
            matching = [case for case in cases if fnmatchcase(case.id, entry.case)]
            variants = {variant.name for case in matching for variant in case.variants}
            if not matching:
                yield f"no case matches `{entry.case}`; `attention-conformance list` prints all"
            elif not any(fnmatchcase(dtype, entry.dtype) for case in matching for dtype in case.dtypes):
                yield f"`{entry.case}` is asked in no dtype that matches `{entry.dtype}`"
            elif not any(fnmatchcase(name, entry.impl) for name in impls):
                yield f"no implementation matches `{entry.impl}`; there are {', '.join(impls)}"
            elif entry.variant not in (None, *variants):
                yield f"`{entry.case}` has no variant `{entry.variant}`; `attention-conformance show` prints a case's"


def read_expectations(path: Path) -> Expectations:
    """Read a file of expectations.

    Raises:
        UsageError: it is missing, neither TOML nor JSON, or an entry lacks its case or reason.
    """
    document = _document(path)
    unknown = set(document) - set(KINDS)
    if unknown:
        raise UsageError(f"{path}: no table `{min(unknown)}`; known are {' and '.join(KINDS)}")
    skips, failures = (
        tuple(_entry(path, kind, number, entry) for number, entry in enumerate(document.get(kind, ()), start=1))
        for kind in KINDS
    )
    return Expectations(skips, failures)


def _document(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        document: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise UsageError(f"{path}: not {kind}: {error}") from error
    return _of_lists(path, document)


def _of_lists(path: Path, document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise UsageError(f"{path}: must be an object of lists, {' and '.join(KINDS)}")
    for kind, entries in document.items():
        if kind in KINDS and not (isinstance(entries, list) and all(isinstance(each, dict) for each in entries)):
            raise UsageError(f"{path}: `{kind}` must be a list of entries, each [[{kind}]] in TOML")
    return document


def _entry(path: Path, kind: str, number: int, given: Mapping[str, Any]) -> Entry:
    for name in ("case", "reason"):
        if not isinstance(given.get(name), str) or not given[name].strip():
            raise UsageError(f"{path}: {kind} {number} gives no `{name}`")
    unknown = set(given) - KEYS[kind]
    wrong = [name for name, value in given.items() if not isinstance(value, str)]
    if wrong and not unknown:
        raise UsageError(f"{path}: {kind} {number}: `{wrong[0]}` must be words, and is {given[wrong[0]]!r}")
    if unknown:
        raise UsageError(f"{path}: {kind} {number}: no key `{min(unknown)}`; known are {', '.join(sorted(KEYS[kind]))}")
    return Entry(**given)


def selected(
    groups: Iterable[Group],
    since: str | None,
    path: Path | None,
    impls: Iterable[str] = (),
    known: Callable[[], Iterable[Group]] | None = None,
) -> tuple[tuple[Group, ...], Expectations | None]:
    """Return the groups up to a version, and the user's file, each entry of which must be able to count.

    Args:
        groups: those to ask.
        since: the version; None for all.
        path: the user's file, if any.
        impls: the implementations to ask; an entry may speak of another known one.
        known: gives all groups there are, where `groups` are but some: an entry may speak of the others.

    Raises:
        UsageError: the file is wrong, or an entry matches nothing.
    """
    groups = tuple(groups)
    if path is None:
        return pinned(groups, since), None
    expected = read_expectations(path)
    names = dict.fromkeys((*impls, *(each.name for each in KNOWN)))
    for sentence in expected.without_effect(groups if known is None else known(), names):
        raise UsageError(f"{path}: {sentence}")
    return pinned(groups, since), expected


def pinned(groups: Iterable[Group], since: str | None) -> tuple[Group, ...]:
    """Return the groups with only the cases of version `since` and before, so that newer ones break nobody's build."""
    if since is None:
        return tuple(groups)
    limit = _version(since)
    kept = (replace(g, cases=tuple(case for case in g.cases if _version(case.since) <= limit)) for g in groups)
    return tuple(group for group in kept if group.cases)


def _version(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split("."))
    except ValueError:
        raise UsageError(f"`{text}` is no version such as 0.1.0") from None
