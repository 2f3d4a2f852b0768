"""A tile by the dense definition itself: for what is not finite, where only the definition says what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attention_core import masks
from attention_core.biases import dense as dense_bias
from attention_core.dense import dense_attention
from attention_core.dropout import dropout
from attention_core.pairs import Span
from attention_core.problem import Problem, Result
from attention_core.sizes import Sizes

from .scores import Place

__all__ = ["exact_rows", "part_of"]

_SCORES = 2**17  # of one part, so that the definition's intermediate arrays stay small


def exact_rows(place: Place) -> Iterator[tuple[Span, Span]]:
    """Cut a tile into runs of rows for the definition; yields each run and the keys that the tile looks at."""
    (first, last), keys = place.tile.rows, place.tile.span
    step = max(1, _SCORES // max(1, (keys[1] - keys[0]) * (place.heads[1] - place.heads[0])))
    for row in range(0, last - first, step):
        yield (row, min(row + step, last - first)), keys


def exact_forward(place: Place, arrays: tuple[Any, Any, Any]) -> Iterator[tuple[Span, Result]]:
    """Yield the results of runs of rows of a tile: ``out (G, rows, Dv)`` and ``lse (G, rows)``."""
    for rows, keys in exact_rows(place):
        yield rows, dense_attention(part_of(place, arrays, rows, keys), lse=True, weights=False)


def part_of(place: Place, arrays: tuple[Any, Any, Any], rows: Span, keys: Span) -> Problem:
    """Return a problem of some rows and keys; ``arrays`` are the item's query heads and their key and value head."""
    p, (query, key, value) = place.problem, arrays
    pairs = place.pairs(rows, keys)
    first = place.tile.rows[0]
    part = slice(first + rows[0], first + rows[1])
    group = place.heads[1] - place.heads[0]
    sizes = Sizes((), group, 1, rows[1] - rows[0], keys[1] - keys[0], p.sizes.depth, p.sizes.value_depth)
    dropped = p.dropout is not None and p.dropout.rate != 0
    return replace(
        p,
        sizes=sizes,
        query=query[:, part],
        key=key[None, keys[0] : keys[1]],
        value=value[None, keys[0] : keys[1]],
        mask=None if p.mask is None else masks.dense(p.mask.visible(pairs)),
        bias=None if p.bias is None else dense_bias(np.broadcast_to(p.bias.values(pairs, p.dtype), pairs.shape)),
        sinks=None if p.sinks is None else p.sinks[place.heads[0] : place.heads[1]],
        dropout=dropout(p.dropout.rate, keep=np.asarray(p.dropout.kept(pairs))) if dropped and p.dropout else None,
        query_positions=0,
        key_positions=0,
    )
