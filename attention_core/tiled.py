"""Attention in linear memory, in plain Array API code: for libraries that have no kernel of their own.

Tiles of queries and keys, one after the other: forward by the online softmax (Rabe and Staats 2021; Dao et al. 2022),
backward from query, key, value, out and lse, five products a tile. What happens within a tile is the dense
definition's: a tile is a smaller problem. Tiles that the mask leaves empty cost nothing, and full ones no mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isqrt, prod
from typing import Any

from .accumulate import Accumulator, accumulator
from .arrays import Array, cast, device_of
from .dense import drop, over_keys, pair_products, scores, visible_pairs
from .gradient import finish_gradients, pair_gradients, row_terms
from .masks import Visibility
from .pairs import Span
from .problem import Gradients, Problem, Result
from .softmax import Online, is_rounded, online_step, weights_from_lse

__all__ = ["cannot_be_tiled", "should_be_tiled", "tiled_attention", "tiled_vjp"]

_PAIRS_AT_ONCE = 2**22  # 16 MiB of float32 scores
_LARGE = 2**24  # pairs from which their scores are not worth holding at once

Tile = tuple[int, int]
"""Sizes of a tile: queries and keys."""


def cannot_be_tiled(problem: Problem, weights: bool) -> str | None:
    """Name what this kernel lacks: it never holds all weights."""
    return 'it never holds the weights: `return_weights` needs `impl="dense"`' if weights else None


def should_be_tiled(problem: Problem) -> bool:
    """Say whether all scores at once would take too much memory."""
    return prod(problem.sizes.scores) > _LARGE


def tiled_attention(problem: Problem, *, lse: bool = True, weights: bool = False, tile: Tile | None = None) -> Result:
    """Attention a tile at a time; ``weights`` are never held, see :func:`cannot_be_tiled`."""
    xp, p = problem.xp, problem
    queries, keys = _spans(p, tile)
    rows = [_attend(p, span, keys) for span in queries]
    out = xp.concat([out for out, _ in rows], axis=-2)
    return Result(out, xp.concat([part for _, part in rows], axis=-1) if lse else None)


def _attend(problem: Problem, queries: Span, keys: list[Span]) -> tuple[Array, Array]:
    """Return out and lse of a tile's queries."""
    xp, p = problem.xp, problem
    out = _zeros(p, (p.sizes.heads, queries[1] - queries[0], p.sizes.value_depth))
    state = Online.start(xp, _first_scores(p, queries))
    for _, tile in _tiles(p, queries, keys):
        visible = visible_pairs(tile)
        exponentials, factor, state = online_step(state, scores(tile, "masked", visible))
        out = out * factor + over_keys(tile, drop(tile, exponentials), visible, cast(xp, tile.value, p.dtype))
    return cast(xp, state.normalise(out), p.out_dtype), state.lse()


def _first_scores(problem: Problem, queries: Span) -> Array:
    """Return the sink of each row, or ``-inf``: ``(..., Hq, Lq, 1)``."""
    xp, p = problem.xp, problem
    rows = _zeros(p, (p.sizes.heads, queries[1] - queries[0], 1))
    return rows - xp.inf if p.sinks is None else rows + cast(xp, p.sinks, p.dtype)[:, None, None]


def tiled_vjp(
    problem: Problem,
    result: Result,
    out_cotangent: Array,
    lse_cotangent: Array | None,
    *,
    tile: Tile | None = None,
) -> Gradients:
    """Return the gradients of a problem, a tile at a time, from what :func:`tiled_attention` gave."""
    xp, p = problem.xp, problem
    queries, keys = _spans(p, tile)
    dout = cast(xp, out_cotangent, p.dtype)
    row = row_terms(p, cast(xp, result.out, p.dtype), dout, lse_cotangent)
    bias = None if p.bias is None else accumulator(xp, p.bias, p.dtype)
    dkey = [_zeros(p, (p.sizes.kv_heads, stop - start, p.sizes.depth)) for start, stop in keys]
    dvalue = [_zeros(p, (p.sizes.kv_heads, stop - start, p.sizes.value_depth)) for start, stop in keys]
    dquery = []
    for i, span in enumerate(queries):
        dquery.append(_zeros(p, (p.sizes.heads, span[1] - span[0], p.sizes.depth)))
        for j, part in _gradients_of_rows(p, span, keys, result.lse, row, dout):
            dquery[i], dkey[j], dvalue[j] = dquery[i] + part.query, dkey[j] + part.key, dvalue[j] + part.value
            if bias is not None:
                bias.add((i, j), part.bias)
    query, key, value = (xp.concat(parts, axis=-2) for parts in (dquery, dkey, dvalue))
    return finish_gradients(p, Gradients(query, key, value, _bias(p, bias, queries, keys)), result.lse, row)


def _gradients_of_rows(
    problem: Problem, queries: Span, keys: list[Span], lse: Any, row: Array, dout: Array
) -> Iterator[tuple[int, Gradients]]:
    """Yield what each tile of these queries adds, with the number of its keys."""
    xp, p = problem.xp, problem
    lse, row, dout = lse[..., slice(*queries)], row[..., slice(*queries)], dout[..., slice(*queries), :]
    met = _meet(p, queries, keys) if is_rounded(xp, lse) else None
    for j, tile in _tiles(p, queries, keys):
        visible = visible_pairs(tile)
        masked = scores(tile, "masked", visible)
        weights = weights_from_lse(xp, masked, lse) if met is None else met.weights(masked)
        dp = drop(tile, pair_products(tile, dout, cast(xp, tile.value, p.dtype), visible))
        yield j, pair_gradients(tile, visible, weights, dp, row, dout)


def _meet(problem: Problem, queries: Span, keys: list[Span]) -> Online:
    """Return the softmax of a tile's queries: a product more, where their lse is rounded to what loses the sum."""
    state = Online.start(problem.xp, _first_scores(problem, queries))
    for _, tile in _tiles(problem, queries, keys):
        _, _, state = online_step(state, scores(tile, "masked", visible_pairs(tile)))
    return state


def _bias(problem: Problem, total: Accumulator | None, queries: list[Span], keys: list[Span]) -> object:
    pairs = problem.pairs()
    return None if total is None else total.total([[pairs.tile(rows, columns) for columns in keys] for rows in queries])


def _tiles(problem: Problem, queries: Span, keys: list[Span]) -> Iterator[tuple[int, Problem]]:
    """Yield the tiles of these queries that the mask leaves, without the mask where it hides nothing."""
    for number, span in enumerate(keys):
        tile = problem.tile(queries, span)
        seen = Visibility.FULL if tile.mask is None else tile.mask.visibility(tile.pairs())
        if seen is not Visibility.EMPTY:
            yield number, replace(tile, mask=None) if seen is Visibility.FULL else tile


def _spans(problem: Problem, tile: Tile | None) -> tuple[list[Span], list[Span]]:
    """Cut queries and keys into tiles of some ``_PAIRS_AT_ONCE`` pairs; at least one tile, which may hold nothing."""
    sizes = problem.sizes
    area = _PAIRS_AT_ONCE // max(1, prod(sizes.batch) * sizes.heads)
    rows = min(sizes.queries, max(16, isqrt(area))) or 1
    queries, keys = tile or (rows, max(16, area // rows))
    return _cut(sizes.queries, queries), _cut(sizes.keys, keys)


def _cut(length: int, step: int) -> list[Span]:
    return [(start, min(start + step, length)) for start in range(0, length, step)] or [(0, 0)]


def _zeros(problem: Problem, shape: tuple[int, ...]) -> Array:
    p = problem
    return p.xp.zeros((*p.sizes.batch, *shape), dtype=p.dtype, device=device_of(p.xp, p.query))
