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

from .call import Call
from .plan import Plan
from .quick import is_plain, quick_attention
from .threads import run_jobs

__all__ = ["can_decode", "decode"]


class Part(NamedTuple):
    """The batch items and key/value heads of a job, and the keys that all their queries see."""

    item: tuple[Any, ...]
    heads: Span
    keys: Span


def decode(call: Call, *, lse: bool, threads: int) -> Result | None:
    """Return the result where all queries see the same keys and everything is finite, else ``None``."""
    spans = _spans(call)
    if spans is None:
        return None
    found: dict[Part, Result | None] = {}
    run_jobs((_job(call, part, found, lse) for part in _parts(call, spans, threads)), threads)
    if None in found.values():
        return None
    if len(found) == 1:
        return next(iter(found.values()))
    return _gathered(call, found, lse)


def can_decode(call: Call) -> bool:
    """Say whether :func:`decode` takes a call whose arrays are finite."""
    return call.few and is_plain(call.problem) and _spans(call) is not None


def _spans(call: Call) -> dict[Any, Any] | None:
    spans = {name: _seen_by_all(plan) for name, plan in call.plans.items()}
    return spans if spans and None not in spans.values() else None


def _seen_by_all(plan: Plan) -> Span | None:
    """Return the keys that all of a head's queries see, ``None`` where some see others."""
    if len(plan.tiles) != 1:
        return None
    (tile,) = plan.tiles
    whole = sum(segment.keys[1] - segment.keys[0] for segment in tile.segments) == tile.span[1] - tile.span[0]
    full = all(segment.masked == (0, 0) and segment.rows == (0, tile.rows[1]) for segment in tile.segments)
    return tile.span if whole and full and tile.segments else None


def _parts(call: Call, spans: dict[Any, Any], threads: int) -> Iterator[Part]:
    """Yield all of the call at once where one thread does it and the keys are the same, else item by item."""
    kv_heads = call.problem.sizes.kv_heads
    different = set(spans.values())
    if threads == 1 and len(different) == 1:
        yield Part((...,), (0, kv_heads), different.pop())
        return
    step = max(1, kv_heads // threads)
    for item in np.ndindex(*call.problem.sizes.batch):
        head = 0
        while head < kv_heads:
            last = head + 1
            while last < min(head + step, kv_heads) and spans[item, last] == spans[item, head]:
                last += 1
            yield Part(item, (head, last), spans[item, head])
            head = last


def _job(call: Call, part: Part, found: dict[Part, Result | None], lse: bool) -> Callable[[], None]:
    def job() -> None:
        found[part] = quick_attention(_problem_of(call, part), lse=lse)

    return job


def _problem_of(call: Call, part: Part) -> Problem:
    p, group = call.problem, call.problem.sizes.group
    whole = part.item == (...,)
    first, last = part.heads
    query, key, value = (p.query, p.key, p.value) if whole else (call.query, call.key, call.value)
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


def _gathered(call: Call, found: dict[Part, Any], lse: bool) -> Result:
    p, group = call.problem, call.problem.sizes.group
    out = np.empty(p.sizes.out, p.out_dtype)
    logs = np.empty(p.sizes.out[:-1], p.dtype) if lse else None
    for part, result in found.items():
        heads = _rows(part, group)[0]
        out[part.item][heads] = result.out
        if logs is not None:
            logs[part.item][heads] = result.lse
    return Result(out, logs)
