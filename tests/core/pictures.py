"""Masks written a second time, pair by pair in plain Python: what the tests hold the package's masks against.

A rule is ``see(pair) -> bool`` for one :class:`Pair`; :func:`loop` asks it about every pair of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

BATCH, HEADS, QUERIES, KEYS = (2, 3), 2, 3, 5


class Pair(NamedTuple):
    """One query and one key of one head and batch item: their indices and their positions."""

    batch: tuple[int, ...]
    head: int
    query: int
    key: int
    query_position: int
    key_position: int


See = Callable[[Pair], bool]


def at(x: Any, shape: tuple[int, ...], index: tuple[int, ...]) -> int:
    """One number of an array that broadcasts to ``shape``, by counting axes from the right."""
    x = np.asarray(x)
    own = index[len(shape) - x.ndim :]
    return int(x[tuple(0 if size == 1 else i for i, size in zip(own, x.shape, strict=True))])


def position(positions: Any, batch: tuple[int, ...], index: int, item: tuple[int, ...], length: int) -> int:
    """The position of one query or key."""
    if np.ndim(positions) == 0:
        return int(positions) + index
    return at(positions, (*batch, length), (*item, index))


def loop(
    see: See,
    query_positions: Any = 0,
    key_positions: Any = 0,
    *,
    batch: tuple[int, ...] = BATCH,
    heads: int = HEADS,
    queries: int = QUERIES,
    keys: int = KEYS,
) -> np.ndarray:
    """Ask a rule about every pair."""
    seen = np.zeros((*batch, heads, queries, keys), bool)
    for item in product(*map(range, batch)):
        for h, i, j in product(range(heads), range(queries), range(keys)):
            q = position(query_positions, batch, i, item, queries)
            k = position(key_positions, batch, j, item, keys)
            seen[(*item, h, i, j)] = see(Pair(item, h, i, j, q, k))
    return seen


@dataclass(frozen=True)
class Picture:
    """A mask of the package, made of arrays that ``make(masks, *arrays)`` takes, and the same rule for one pair."""

    name: str
    make: Callable[..., Any]
    see: See
    arrays: tuple[np.ndarray, ...] = ()


def per_item(name: str, make: Callable[..., Any], index: Callable[[Pair], int], lengths: Any) -> Picture:
    """A mask that compares an index, or a position, with a length per batch item."""
    return Picture(name, make, lambda p: index(p) < at(lengths, BATCH, p.batch), (lengths,))


def _key(pair: Pair) -> int:
    return pair.key


def _query(pair: Pair) -> int:
    return pair.query


def _key_position(pair: Pair) -> int:
    return pair.key_position


LENGTHS = np.array([[-5, 0, 1], [3, 5, 99]])
UNSIGNED = np.array([0, 2, 255], np.uint8)
HUGE = np.array([[1], [2**64 - 1]], np.uint64)
QUERY_IDS = np.array([[[0, 1, -1]], [[2, 2, 7]]])
KEY_IDS = np.array([[0, 0, 1, -1, 2], [7, 2, 2, 0, -3], [1, 1, 1, -1, -1]], np.int8)
LARGE_IDS = np.array([2**64 - 1, 3, 2**63], np.uint64), np.array([-1, 2, 3, -1, 3])
SEEN = np.random.default_rng(5).random((*BATCH, HEADS, QUERIES, KEYS)) < 0.6
WEIGHTS = np.array([3, 1])

BY_POSITION = [
    Picture("causal", lambda m: m.causal(), lambda p: p.key_position <= p.query_position),
    Picture("window(1,0)", lambda m: m.sliding_window(1, 0), lambda p: 0 <= p.query_position - p.key_position <= 1),
    Picture("window(0,2)", lambda m: m.sliding_window(0, 2), lambda p: 0 <= p.key_position - p.query_position <= 2),
    Picture("window(1,1)", lambda m: m.sliding_window(1, 1), lambda p: abs(p.key_position - p.query_position) <= 1),
    Picture("window(-,1)", lambda m: m.sliding_window(None, 1), lambda p: p.key_position <= p.query_position + 1),
    Picture("window(2,-)", lambda m: m.sliding_window(2, None), lambda p: p.key_position >= p.query_position - 2),
    Picture("window(-,-)", lambda m: m.sliding_window(None, None), lambda p: True),
    Picture("window(huge)", lambda m: m.sliding_window(2**40, 2**31 - 2), lambda p: True),
    Picture("prefix(2)", lambda m: m.prefix(2), lambda p: p.key_position < 2),
    per_item("prefix(B)", lambda m, n: m.prefix(n), _key_position, np.array([[-1, 0, 2], [3, 5, 300]])),
    per_item("prefix(uint8)", lambda m, n: m.prefix(n), _key_position, UNSIGNED),
    Picture("chunked(3)", lambda m: m.chunked(3), lambda p: p.query_position // 3 == p.key_position // 3),
    Picture("chunked(huge)", lambda m: m.chunked(2**40), lambda p: (p.query_position < 0) == (p.key_position < 0)),
    Picture("dilated(2)", lambda m: m.dilated(2), lambda p: (p.query_position - p.key_position) % 2 == 0),
    Picture("dilated(3)", lambda m: m.dilated(3), lambda p: (p.key_position - p.query_position) % 3 == 0),
    Picture("global(2)", lambda m: m.global_tokens(2), lambda p: p.query_position < 2 or p.key_position < 2),
    Picture("global(0)", lambda m: m.global_tokens(0), lambda p: p.query_position < 0 or p.key_position < 0),
    Picture(
        "rule(positions)",
        lambda m: m.rule(lambda b, h, i, j: (i * 2 + j * 5 + h + b) % 3 == 1),
        lambda p: (p.query_position * 2 + p.key_position * 5 + p.head + p.batch[0] * 3 + p.batch[1]) % 3 == 1,
    ),
]

BY_INDEX = [
    Picture("key_lengths(2)", lambda m: m.key_lengths(2), lambda p: p.key < 2),
    Picture("key_lengths(-1)", lambda m: m.key_lengths(-1), lambda p: False),
    Picture("key_lengths(2**70)", lambda m: m.key_lengths(2**70), lambda p: True),
    Picture("key_lengths(-2**70)", lambda m: m.key_lengths(-(2**70)), lambda p: False),
    Picture("key_lengths(numpy)", lambda m: m.key_lengths(np.int16(4)), lambda p: p.key < 4),
    per_item("key_lengths(B)", lambda m, n: m.key_lengths(n), _key, LENGTHS),
    per_item("key_lengths(0-d)", lambda m, n: m.key_lengths(n), _key, np.array(3)),
    per_item("key_lengths(uint8)", lambda m, n: m.key_lengths(n), _key, UNSIGNED),
    per_item("key_lengths(uint64)", lambda m, n: m.key_lengths(n), _key, HUGE),
    Picture("query_lengths(2)", lambda m: m.query_lengths(2), lambda p: p.query < 2),
    per_item("query_lengths(B)", lambda m, n: m.query_lengths(n), _query, LENGTHS[:, :1]),
    per_item("query_lengths(int8)", lambda m, n: m.query_lengths(n), _query, LENGTHS.astype(np.int8)),
    Picture(
        "segments(B)",
        lambda m, q, k: m.segments(q, k),
        lambda p: (
            at(QUERY_IDS, (*BATCH, QUERIES), (*p.batch, p.query)) == at(KEY_IDS, (*BATCH, KEYS), (*p.batch, p.key)) >= 0
        ),
        (QUERY_IDS, KEY_IDS),
    ),
    Picture(
        "segments(uint64)",
        lambda m, q, k: m.segments(q, k),
        lambda p: int(LARGE_IDS[0][p.query]) == int(LARGE_IDS[1][p.key]) >= 0,
        LARGE_IDS,
    ),
    Picture("dense", lambda m, x: m.dense(x), lambda p: SEEN[(*p.batch, p.head, p.query, p.key)], (SEEN,)),
    Picture("dense(Lk)", lambda m, x: m.dense(x), lambda p: SEEN[0, 0, 0, 0, p.key], (SEEN[0, 0, 0, 0],)),
    Picture("dense(Lq,1)", lambda m, x: m.dense(x), lambda p: SEEN[0, 0, 0, p.query, 1], (SEEN[0, 0, 0, :, 1:2],)),
    Picture("dense(H,1,Lk)", lambda m, x: m.dense(x), lambda p: SEEN[0, 0, p.head, 1, p.key], (SEEN[0, 0, :, 1:2],)),
    Picture(
        "dense(B,1,1,Lq,Lk)",
        lambda m, x: m.dense(x),
        lambda p: SEEN[p.batch[0], 1, 1, p.query, p.key],
        (SEEN[:, 1:2, 1:2],),
    ),
    Picture("dense(0-d)", lambda m, x: m.dense(x), lambda p: True, (np.array(True),)),
    Picture(
        "rule(params)",
        lambda m, w: m.rule(lambda b, h, i, j, w, n: (w[h] * i + j + b) % n != 0, w, 4),
        lambda p: (WEIGHTS[p.head] * p.query_position + p.key_position + p.batch[0] * 3 + p.batch[1]) % 4 != 0,
        (WEIGHTS,),
    ),
]

COMPOSED = [
    Picture(
        "a & b",
        lambda m: m.causal() & m.sliding_window(1, None),
        lambda p: 0 <= p.query_position - p.key_position <= 1,
    ),
    Picture(
        "a | b", lambda m: m.prefix(2) | m.causal(), lambda p: p.key_position < 2 or p.key_position <= p.query_position
    ),
    Picture("~a", lambda m: ~m.causal(), lambda p: p.key_position > p.query_position),
    Picture(
        "~(a | b) & c",
        lambda m, n: ~(m.chunked(2) | m.key_lengths(n)) & m.causal(),
        lambda p: (
            p.query_position // 2 != p.key_position // 2
            and p.key >= at(LENGTHS, BATCH, p.batch)
            and p.key_position <= p.query_position
        ),
        (LENGTHS,),
    ),
    Picture(
        "array & a",
        lambda m, x: x & m.causal(),
        lambda p: SEEN[0, 0, 0, p.query, p.key] and p.key_position <= p.query_position,
        (SEEN[0, 0, 0],),
    ),
    Picture(
        "a & array",
        lambda m, x: m.causal() & x,
        lambda p: SEEN[0, 0, 0, p.query, p.key] and p.key_position <= p.query_position,
        (SEEN[0, 0, 0],),
    ),
    Picture(
        "array | ~a",
        lambda m, x: x | ~m.causal(),
        lambda p: SEEN[0, 0, 0, p.query, p.key] or p.key_position > p.query_position,
        (SEEN[0, 0, 0],),
    ),
    Picture(
        "a | array",
        lambda m, x: m.dilated(2) | x,
        lambda p: SEEN[0, 0, p.head, p.query, p.key] or (p.query_position - p.key_position) % 2 == 0,
        (SEEN[0, 0],),
    ),
]

ALL = [*BY_POSITION, *BY_INDEX, *COMPOSED]

POSITIONS: dict[str, tuple[Any, Any]] = {
    "defaults": (0, 0),
    "integers": (4, 1),
    "negative": (-2, -3),
    "numpy integers": (np.int16(4), np.uint8(2)),
    "0-d": (np.array(3), np.array(1, np.uint8)),
    "arrays": (np.array([5, 0, 3]), np.array([4, 1, 0, 2, 7])),
    "array and integer": (np.array([[[5, 0, 3]], [[-1, 2, 2]]]), 1),
    "per item": (np.array([[0, 1, 2], [2, 3, 4], [9, 9, -9]]), np.arange(30).reshape(2, 3, 5) % 7 - 2),
    "uint8": (np.array([0, 2, 250], np.uint8), np.array([3, 1, 0, 255, 249], np.uint8)),
    "int8": (np.array([-128, 0, 127], np.int8), np.array([-128, -1, 1, 126, 127], np.int8)),
    "mixed dtypes": (np.array([0, 2, 4], np.uint32), np.array([[-3, 1, 0, 4, 5]], np.int16)),
}
