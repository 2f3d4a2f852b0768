"""Few queries over many keys, as when a model writes token by token: reading the keys and values is all the work.

Whatever comes between two reads is done for many heads at once: after a long read nothing else is in the caches, and
every single step costs as much as many do. The scores take less memory than the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attention_core.pairs import Span
from attention_core.problem import Problem, Result

from .plan import Plan, TileShape, has_few_queries, plans_of, tile_shape
from .quick import is_plain, quick_attention
from .threads import get_num_threads, run_jobs

__all__ = ["FEW_BYTES", "can_decode", "decode"]

FEW_BYTES = 24 * 2**20


class Part(NamedTuple):
    """The batch items and key/value heads of a job, and the keys that all their queries see."""

    item: tuple[Any, ...]
    heads: Span
    keys: Span


def decode(problem: Problem, shape: TileShape | None = None, *, lse: bool, threads: int | None = None) -> Result | None:
    """Return the result where all queries see the same keys and everything is finite, else ``None``."""
    spans = _spans(problem, shape)
    if spans is None:
        return None
    number = _threads(problem, threads)
    found: dict[Part, Result | None] = {}
    run_jobs((_job(problem, part, found, lse) for part in _parts(problem, spans, number)), number)
    if None in found.values():
        return None
    if len(found) == 1:
        return next(iter(found.values()))
    return _gathered(problem, found, lse)


def can_decode(problem: Problem) -> bool:
    """Say whether :func:`decode` takes a call whose arrays are finite."""
    return has_few_queries(problem) and _spans(problem, None) is not None


def _threads(problem: Problem, number: int | None) -> int:
    """Return how many threads are worth it: one reads what lies in a cache as fast as several."""
    read = (problem.key.size + problem.value.size) * problem.dtype.itemsize
    return 1 if read < FEW_BYTES and number is None else number or get_num_threads()


def _spans(problem: Problem, shape: TileShape | None) -> dict[Any, Span] | None:
    """Return the keys that all queries see, for each batch item and head, or ``None`` where some see others."""
    p = problem
    if not is_plain(p):
        return None
    if p.mask is None:
        heads = ((item, head) for item in np.ndindex(*p.sizes.batch) for head in range(p.sizes.kv_heads))
        return dict.fromkeys(heads, (0, p.sizes.keys)) or None
    plans = plans_of(p, shape or tile_shape(p, few=True))
    spans = {name: span for name, plan in plans.items() if (span := _seen_by_all(plan)) is not None}
    return spans if spans and len(spans) == len(plans) else None


def _seen_by_all(plan: Plan) -> Span | None:
    """Return the keys that all of a head's queries see, ``None`` where some see others."""
    if len(plan.tiles) != 1:
        return None
    (tile,) = plan.tiles
    whole = sum(segment.keys[1] - segment.keys[0] for segment in tile.segments) == tile.span[1] - tile.span[0]
    full = all(segment.masked == (0, 0) and segment.rows == (0, tile.rows[1]) for segment in tile.segments)
    return tile.span if whole and full and tile.segments else None


def _parts(problem: Problem, spans: dict[Any, Span], threads: int) -> Iterator[Part]:
    """Yield all of the call at once where one thread does it and the keys are the same, else item by item."""
    kv_heads = problem.sizes.kv_heads
    different = set(spans.values())
    if threads == 1 and len(different) == 1:
        yield Part((...,), (0, kv_heads), different.pop())
        return
    step = max(1, kv_heads // threads)
    for item in np.ndindex(*problem.sizes.batch):
        head = 0
        while head < kv_heads:
            last = head + 1
            while last < min(head + step, kv_heads) and spans[item, last] == spans[item, head]:
                last += 1
            yield Part(item, (head, last), spans[item, head])
            head = last


def _job(problem: Problem, part: Part, found: dict[Part, Result | None], lse: bool) -> Callable[[], None]:
    def job() -> None:
        found[part] = quick_attention(_problem_of(problem, part), lse=lse)

    return job


def _problem_of(problem: Problem, part: Part) -> Problem:
    p, group = problem, problem.sizes.group
    whole = part.item == (...,)
    if whole and part.keys == (0, p.sizes.keys):
        return p if p.mask is None else replace(p, mask=None)
    first, last = part.heads
    query, key, value = p.query, p.key, p.value
    if not whole:
        query, key, value = (np.broadcast_to(x, (*p.sizes.batch, *x.shape[-3:])) for x in (query, key, value))
    seen = (*part.item, slice(first, last), slice(*part.keys), slice(None))
    return replace(
        p,
        sizes=p.sizes._replace(
            batch=p.sizes.batch if whole else (),
            heads=(last - first) * group,
            kv_heads=last - first,
            keys=part.keys[1] - part.keys[0],
        ),
        query=query[(*part.item, *_rows(part, group))],
        key=key[seen],
        value=value[seen],
        mask=None,
    )


def _rows(part: Part, group: int) -> tuple[slice, ...]:
    return slice(part.heads[0] * group, part.heads[1] * group), slice(None), slice(None)


def _gathered(problem: Problem, found: dict[Part, Any], lse: bool) -> Result:
    p, group = problem, problem.sizes.group
    out = np.empty(p.sizes.out, p.out_dtype)
    logs = np.empty(p.sizes.out[:-1], p.dtype) if lse else None
    for part, result in found.items():
        heads = _rows(part, group)[0]
        out[part.item][heads] = result.out
        if logs is not None:
            logs[part.item][heads] = result.lse
    return Result(out, logs)
