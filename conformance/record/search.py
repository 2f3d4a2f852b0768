"""Find draws: `python -m conformance.record.search [ID ...]` tries numbers until each case tells apart what it must.

What it finds is kept in `draws.json`: the draw of a case, and in how many of its dtypes the case is asked.
"""

import json
import sys
from collections.abc import Iterator

from conformance.errors import RecordError
from conformance.record.ask import Ask
from conformance.record.drafting import DRAWS, draft_of
from conformance.record.portable import portable_torch

TRIES = 24


def main(wanted: list[str]) -> None:
    """Search for the cases whose ids begin with one of the words, or for all that have no draw."""
    from conformance.record.groups import themes

    portable_torch()
    known = json.loads(DRAWS.read_text())
    asks = [ask for _, asks in themes() for ask in asks if ask.valid]
    for ask in asks:
        if ask.id.startswith(tuple(wanted)) if wanted else ask.id not in known:
            known[ask.id] = best(ask)
    kept = {ask.id: known[ask.id] for ask in asks if known.get(ask.id)}
    lines = (f'"{name}": {json.dumps(value)}' for name, value in kept.items())
    DRAWS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def best(ask: Ask) -> list[int]:
    """Return the draw that tells apart the most of what the case would like to, in as many dtypes as possible."""
    failures: dict[str, int] = {}
    for count in range(len(ask.dtypes), 0, -1):
        found = max(_scored(ask, count, failures), default=None)
        if found is not None:
            return [-found[1], count]
    print(failures)  # noqa: T201  # a tool for a person at a terminal
    return []


def _scored(ask: Ask, count: int, failures: dict[str, int]) -> Iterator[tuple[int, int]]:
    wished = set(ask.prefer.split())
    for draw in range(TRIES):
        try:
            draft = draft_of(ask, draw, ask.dtypes[:count])
        except RecordError as error:
            failures[str(error)] = failures.get(str(error), 0) + 1
            continue
        yield len(wished & draft.wrong.keys()), -draw
        if len(wished & draft.wrong.keys()) >= 3 or draw >= 8:
            return


if __name__ == "__main__":
    main(sys.argv[1:])
