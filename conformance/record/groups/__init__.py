"""The groups of cases for the conventions: one small module a topic, each case a few words."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from conformance.record.ask import Ask
from conformance.record.draft import Draft
from conformance.record.drafting import drafted
from conformance.record.groups import (
    calls,
    causal,
    common,
    numbers,
    packs,
    patterns,
    rotations,
    rows,
    scores,
    seeds,
    shapes,
    sums,
    windows,
)
from conformance.record.groups.theme import Theme


def themes() -> Iterator[tuple[Theme, list[Ask]]]:
    """Yield every group of `attention` with its cases, in the order of the index."""
    for module in (causal, windows, patterns, rows, numbers, scores, sums, seeds, shapes, common, calls):
        for theme, asks in module.groups():
            yield theme, list(asks)


def group_drafts() -> Iterator[tuple[str, str, Callable[[], Iterable[Draft]]]]:
    """Yield the name and the title of every group, and what makes its drafts."""
    for theme, asks in themes():
        yield theme.name, theme.title, partial(map, drafted, asks)
    yield packs.PACKED.name, packs.PACKED.title, packs.packs
    yield rotations.ROTARY.name, rotations.ROTARY.title, rotations.rotations
    yield calls.MERGE.name, calls.MERGE.title, calls.merges
