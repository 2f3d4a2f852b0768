"""The groups of cases for the conventions: one small module a topic, each case a few words."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain

from conformance.record.ask import Ask
from conformance.record.draft import Draft
from conformance.record.drafting import drafted
from conformance.record.groups import (
    causal,
    common,
    merges,
    numbers,
    packs,
    patterns,
    refused,
    refused_ops,
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
    for module in (causal, windows, patterns, rows, numbers, scores, sums, seeds, shapes, common, refused):
        for theme, asks in module.groups():
            yield theme, list(asks)


def group_drafts() -> Iterator[tuple[str, str, Callable[[], Iterable[Draft]]]]:
    """Yield the name and the title of every group, and what makes its drafts."""
    for theme, asks in themes():
        others = refused_ops.refused if theme is refused.INVALID else tuple
        yield theme.name, theme.title, partial(_drafts, asks, others)
    yield packs.PACKED.name, packs.PACKED.title, packs.packs
    yield rotations.ROTARY.name, rotations.ROTARY.title, rotations.rotations
    yield merges.MERGE.name, merges.MERGE.title, merges.merges


def _drafts(asks: Iterable[Ask], others: Callable[[], Iterable[Draft]]) -> Iterator[Draft]:
    yield from chain(map(drafted, asks), others())
