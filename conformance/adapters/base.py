"""What the runner asks of an adapter."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from conformance.cases import Case


class NotInstalled(Exception):
    """The implementation is not on this machine."""


class Unsupported(Exception):
    """The implementation cannot do this case; quotes its error or its documentation."""


@dataclass(frozen=True)
class Lacking:
    """In place of one output: why the implementation cannot give it."""

    reason: str


class Adapter(Protocol):
    """One implementation."""

    name: str
    version: str

    def supports(self, case: Case) -> str:
        """Return an empty string, or why the implementation cannot do this case."""

    def compute(self, case: Case, dtype: str) -> Mapping[str, Any]:
        """Return the outputs by name, each an array or a `Lacking`."""


def quoted(error: Exception) -> str:
    """Return an error in its own words, the first lines of them."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:300]}"
