"""Attention by tiles of queries, with memory linear in their number (Rabe and Staats 2021; Dao et al. 2022).

Softmax does not change when all of a row's scores are shifted. Where Cauchy-Schwarz bounds every score of a tile within
what an exponential can hold, nothing is shifted and no maximum is taken. Elsewhere each row's reference is the largest
score of the first keys that it sees, raised only when a later score exceeds it by far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from attention_core.problem import Problem, Result

from .call import Call, Where
from .decode import decode
from .exact import exact_forward
from .lazy import lazy_tile
from .plan import TileShape, has_few_queries
from .scores import UnboundedBias, seen_tile
from .threads import run_jobs
from .tile import Tile, cap, hide
from .workspace import Workspace, workspace

__all__ = ["tiled_forward", "ways"]

_SMALLEST = 2.0**-30  # sum of a row's weights, below which products with small values would lose digits


def tiled_forward(
    problem: Problem,
    *,
    lse: bool,
    shape: TileShape | None = None,
    few: bool | None = None,
    threads: int | None = None,
) -> Result:
    """Return out, and lse where it is asked for, of a problem without empty axes; the rest is for tests."""
    p = problem
    few = has_few_queries(p) if few is None else few
    if few and (found := decode(p, shape, lse=lse, threads=threads)) is not None:
        return found
    call = Call.of(p, shape, few)
    out = np.empty(p.sizes.out, p.out_dtype)
    logs = np.empty(p.sizes.out[:-1], p.dtype) if lse else None
    run_jobs((_job(call, where, out, logs) for where in call.jobs()), call.threads(threads))
    return Result(out, logs)


def _job(call: Call, where: Where, out: Any, lse: Any) -> Any:
    def job() -> None:
        with workspace() as space:
            forward_tile(call, where, out, lse, space)
        call.heads.done(*where[:2])

    return job


def forward_tile(call: Call, where: Where, out: Any, lse: Any, space: Workspace) -> None:
    """Compute one tile, by the first of three ways that can: bounded, with a lazy reference, or by the definition."""
    item, _, tile_plan = where
    place = call.place(where)
    rows = slice(*tile_plan.rows)
    target = out[item][place.heads[0] : place.heads[1], rows]
    logs = None if lse is None else lse[item][place.heads[0] : place.heads[1], rows]
    tile = Tile.of(call, where, place, space)
    bound = 0.0 if call.few else _bound(call, where, tile)
    tile.bound = math.inf if call.few else bound
    way = way_of(call, bound)
    bounded = way == "bounded" and bounded_tile(call, tile) and tile.is_finite()
    if bounded or (way != "exact" and _lazy(call, tile) and tile.is_finite()):
        tile.finish(target, logs)
        return
    for part, result in exact_forward(place, call.arrays(where)):
        target[:, part[0] : part[1]] = result.out
        if logs is not None:
            logs[:, part[0] : part[1]] = result.lse


def way_of(call: Call, bound: float) -> str:
    """Return the way that is tried first: ``"bounded"``, ``"lazy"`` or, by the definition, ``"exact"``."""
    rounding = bound * float(np.finfo(call.problem.dtype).eps)  # of a score, by another product not the same
    if not rounding < -call.exponential.floor / 16 or call.odd_sinks:
        return "exact"
    return "bounded" if call.problem.bias is None and bound <= call.exponential.bound and not call.few else "lazy"


def ways(call: Call) -> Iterator[str]:
    """Yield the way of each tile."""
    for where in call.jobs():
        with workspace() as space:
            tile = Tile.of(call, where, call.place(where), space)
            yield way_of(call, 0.0 if call.few else _bound(call, where, tile))
        call.heads.done(*where[:2])


def _bound(call: Call, where: Where, tile: Tile) -> float:
    """Return a bound on the absolute scores of a tile by Cauchy-Schwarz, in the exponential's unit."""
    bound = tile.largest_query() * tile.head.largest_key(where[2].span)
    cap = call.problem.softcap
    if cap is None or not math.isfinite(bound):
        return bound
    return min(bound, 1.0) * cap * call.exponential.unit  # queries are scaled for `s / cap`


def _lazy(call: Call, tile: Tile) -> bool:
    try:
        return lazy_tile(call, tile)
    except UnboundedBias:
        return False


def bounded_tile(call: Call, tile: Tile) -> bool:
    """Sum a tile's exponentials and weighted values without any shift; ``False`` where a row's are all small."""
    tile.reset()
    factors, softcap, exponential = tile.factors(extended=False), call.problem.softcap, call.exponential
    for segment in tile.place.tile.segments:
        scores = tile.scores(factors, segment)
        if softcap is not None:
            cap(scores, softcap * exponential.unit)
        exponential.function(scores, out=scores)
        if segment.masked[1]:
            hide(scores, tile.group, segment, seen_tile(tile.place, tile.plan, segment, None))
        tile.add(scores, segment)
    return float(tile.totals.min(where=tile.totals != 0, initial=1)) >= _SMALLEST
