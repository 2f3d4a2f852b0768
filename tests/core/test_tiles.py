"""What a mask says of a tile: never wrong, sharp where intervals allow it, and ``MIXED`` of what is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attention_core.masks import Visibility
from attention_core.masks.draw import mask_pairs
from attention_core.pairs import Pairs
from attention_core.sizes import Sizes
from attention_np import masks
from tests.core.libraries import EACH, Library

BATCH, HEADS, QUERIES, KEYS = (2, 3), 2, 12, 17
SIZES = Sizes(BATCH, HEADS, HEADS, QUERIES, KEYS, 1, 1)
EMPTY, MIXED, FULL = Visibility

Rng = np.random.Generator

LEAVES: list[Callable[[Rng], Any]] = [
    lambda rng: masks.causal(),
    lambda rng: masks.sliding_window(int(rng.integers(0, 6)), int(rng.integers(0, 6))),
    lambda rng: masks.sliding_window(None, int(rng.integers(0, 9))),
    lambda rng: masks.sliding_window(int(rng.integers(0, 9)), None),
    lambda rng: masks.prefix(int(rng.integers(-2, 20))),
    lambda rng: masks.prefix(rng.integers(-2, 20, size=(2, 1))),
    lambda rng: masks.chunked(int(rng.integers(1, 9))),
    lambda rng: masks.dilated(int(rng.integers(1, 5))),
    lambda rng: masks.global_tokens(int(rng.integers(0, 6))),
    lambda rng: masks.key_lengths(int(rng.integers(-2, 20))),
    lambda rng: masks.key_lengths(rng.integers(-2, 20, size=BATCH)),
    lambda rng: masks.query_lengths(rng.integers(-2, 14, size=3)),
    lambda rng: masks.segments(np.sort(rng.integers(-1, 4, (3, QUERIES))), np.sort(rng.integers(-1, 4, (3, KEYS)))),
    lambda rng: masks.segments(rng.integers(-1, 2, (*BATCH, QUERIES)), rng.integers(-1, 2, KEYS)),
    lambda rng: masks.dense(rng.random((HEADS, QUERIES, KEYS)) < rng.choice([0.05, 0.5, 0.95])),
    lambda rng: masks.dense(rng.random((*BATCH, 1, 1, KEYS)) < 0.5),
    lambda rng: masks.rule(lambda batch, head, query, key: (query + key + head) % 3 > 0),
]


def draw_mask(rng: Rng, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.2:
        return LEAVES[rng.integers(len(LEAVES))](rng)
    kind = rng.integers(3)
    if kind == 0:
        return ~draw_mask(rng, depth - 1)
    left, right = draw_mask(rng, depth - 1), draw_mask(rng, depth - 1)
    return left & right if kind == 1 else left | right


def draw_span(rng: Rng, length: int) -> tuple[int, int]:
    start, stop = np.sort(rng.integers(0, length + 1, 2))
    return (int(start), int(stop)) if start < stop else (0, length)


def draw_positions(rng: Rng) -> tuple[Any, Any]:
    kind = rng.integers(4)
    if kind == 0:
        return 0, 0
    if kind == 1:
        return int(rng.integers(-9, 20)), np.array(rng.integers(-9, 20))
    if kind == 2:
        return np.sort(rng.integers(0, 20, (3, QUERIES))).astype(np.uint8), int(rng.integers(-5, 5))
    return rng.integers(-9, 20, QUERIES), rng.integers(-9, 20, (*BATCH, KEYS))


def truth(seen: np.ndarray) -> Visibility:
    return FULL if seen.all() else MIXED if seen.any() else EMPTY


def whole(
    mask: Any, query_positions: Any = 0, key_positions: Any = 0, sizes: Sizes = SIZES
) -> tuple[Pairs, np.ndarray]:
    pairs = mask_pairs(mask, sizes, query_positions, key_positions, np)
    return pairs, np.broadcast_to(mask.visible(pairs), pairs.shape)


@pytest.mark.parametrize("seed", range(150))
def test_never_wrong(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = draw_mask(rng, 3)
    pairs, seen = whole(mask, *draw_positions(rng))
    for _ in range(8):
        queries, keys, heads = draw_span(rng, QUERIES), draw_span(rng, KEYS), draw_span(rng, HEADS)
        item = (int(rng.integers(2)), int(rng.integers(3))) if rng.random() < 0.5 else None
        tile = pairs.tile(queries, keys, heads, item)
        part = (seen if item is None else seen[item])[..., slice(*heads), slice(*queries), slice(*keys)]
        np.testing.assert_array_equal(np.broadcast_to(mask.visible(tile), tile.shape), part)
        answer = mask.visibility(tile)
        assert answer in (MIXED, truth(part)), (
            f"{mask!r} says {answer!r} of {queries} x {keys}, which is {truth(part)!r}"
        )


SHARP = [
    masks.causal(),
    masks.sliding_window(3, 0),
    masks.sliding_window(0, 5),
    masks.sliding_window(2, 2),
    masks.sliding_window(None, None),
    masks.prefix(7),
    masks.chunked(4),
    masks.chunked(1),
    masks.dilated(1),
    masks.dilated(3),
    masks.global_tokens(3),
    masks.key_lengths(9),
    masks.key_lengths(-3),
    masks.query_lengths(5),
    masks.key_lengths(np.array(11)),
    masks.segments(np.arange(QUERIES) // 5, np.arange(KEYS) // 5),
    masks.segments(np.full(QUERIES, -1), np.full(KEYS, -1)),
    masks.dense(np.arange(KEYS) < 8),
    masks.dense(np.random.default_rng(0).random((QUERIES, KEYS)) < 0.5),
    ~masks.causal(),
    ~masks.prefix(7),
]


@pytest.mark.parametrize("first", [(0, 0), (3, 0), (-4, 5), (np.array(6), np.array(1, np.int8))], ids=str)
@pytest.mark.parametrize("mask", SHARP, ids=repr)
def test_sharp_by_intervals(mask: Any, first: tuple[Any, Any]) -> None:
    pairs, seen = whole(mask, *first, sizes=Sizes((), 1, 1, QUERIES, KEYS, 1, 1))
    for size in (1, 2, 3, 5):
        for i in range(0, QUERIES, size):
            for j in range(0, KEYS, size):
                queries, keys = (i, min(i + size, QUERIES)), (j, min(j + size, KEYS))
                exact = truth(seen[0, slice(*queries), slice(*keys)])
                assert mask.visibility(pairs.tile(queries, keys)) is exact, (queries, keys)


def test_causal_sets_aside_nearly_half_of_the_tiles() -> None:
    drawing = (masks.causal() & masks.key_lengths(64)).draw(64, 64, tile=8)
    kinds = [kind for row in drawing.tiles for kind in row]
    assert [kinds.count(kind) for kind in (FULL, MIXED, EMPTY)] == [28, 8, 28]


def test_one_item_is_sharper_than_the_batch() -> None:
    mask = masks.key_lengths(np.array([4, 16])) & masks.segments(np.zeros((2, 8), int), np.array([[0] * 16, [1] * 16]))
    pairs, _ = whole(mask, sizes=Sizes((2,), 1, 1, 8, 16, 1, 1))
    tile = ((0, 8), (8, 16))
    assert mask.visibility(pairs.tile(*tile)) is MIXED
    assert mask.visibility(pairs.tile(*tile, item=(0,))) is EMPTY
    assert mask.visibility(pairs.tile((0, 8), (0, 4), item=(0,))) is FULL
    assert mask.visibility(pairs.tile(*tile, item=(1,))) is EMPTY


def test_a_composition_knows_what_one_part_settles() -> None:
    unknown = masks.rule(lambda batch, head, query, key: key >= 0)
    pairs, _ = whole(unknown)
    above, below = ((0, 4), (8, 16)), ((8, 12), (0, 4))
    assert (unknown & masks.causal()).visibility(pairs.tile(*above)) is EMPTY
    assert (unknown & masks.causal()).visibility(pairs.tile(*below)) is MIXED
    assert (unknown | masks.causal()).visibility(pairs.tile(*below)) is FULL
    assert (~(unknown | masks.causal())).visibility(pairs.tile(*below)) is EMPTY
    assert unknown.visibility(pairs.tile(*below)) is MIXED


@pytest.mark.parametrize("mask", [draw(np.random.default_rng(1)) for draw in LEAVES], ids=repr)
def test_a_tile_without_pairs_may_be_called_anything(mask: Any) -> None:
    pairs, _ = whole(mask)
    for queries, keys in (((0, 0), (0, 4)), ((3, 5), (2, 2))):
        assert mask.visibility(pairs.tile(queries, keys)) in Visibility


TRACED: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    "key_lengths": (masks.key_lengths, np.array([0, 0, 0])),
    "query_lengths": (masks.query_lengths, np.array([0, 0, 0])),
    "prefix": (masks.prefix, np.array([99, 99, 99])),
    "segments": (lambda x: masks.segments(x, x), np.zeros(QUERIES, int)),
    "dense": (masks.dense, np.ones((QUERIES, QUERIES), bool)),
}


@pytest.mark.parametrize("kind", TRACED)
def test_traced_values_are_mixed(kind: str) -> None:
    jax = pytest.importorskip("jax", reason="needs JAX: `pip install jax`")
    import jax.numpy as jnp

    make, known = TRACED[kind]
    sizes = Sizes(BATCH, HEADS, HEADS, QUERIES, QUERIES, 1, 1)
    answers = []

    def ask(x: Any) -> Any:
        mask = make(x)
        answers.append(mask.visibility(mask_pairs(mask, sizes, 0, 0, jnp)))
        return x

    ask(jnp.asarray(known))
    jax.jit(ask)(jnp.asarray(known))
    assert answers == [FULL if kind in ("prefix", "segments", "dense") else EMPTY, MIXED]


def test_traced_positions_are_mixed_and_integers_beside_them_are_not() -> None:
    jax = pytest.importorskip("jax", reason="needs JAX: `pip install jax`")
    import jax.numpy as jnp

    answers = {}

    def ask(positions: Any, first: Any) -> Any:
        for name, where in {"array": (positions, 0), "start": (first, 0), "integer": (50, 0)}.items():
            mask = masks.causal()
            answers[name] = mask.visibility(mask_pairs(mask, SIZES, *where, jnp))
        prefix = masks.prefix(KEYS) | masks.causal()
        answers["prefix"] = prefix.visibility(mask_pairs(prefix, SIZES, positions, 0, jnp))
        return positions

    jax.jit(ask)(jnp.arange(QUERIES) + 50, jnp.asarray(50))
    assert answers == {"array": MIXED, "start": MIXED, "integer": FULL, "prefix": FULL}


@EACH
def test_tiles_on_every_library(library: Library) -> None:
    """What is asked of arrays inside a trace, even of constants, is either known for certain or mixed."""
    rng = np.random.default_rng(2)
    lengths, ids, dense = rng.integers(0, 17, BATCH), np.arange(KEYS) // 6, rng.random((QUERIES, KEYS)) < 0.9
    answers: list[Visibility] = []

    def ask(lengths: Any, ids: Any, dense: Any, positions: Any) -> Any:
        parts = masks.key_lengths(lengths), masks.segments(ids[:QUERIES], ids), masks.dense(dense), masks.causal()
        for mask in parts:
            pairs = mask_pairs(mask, SIZES, positions, 0, library.xp)
            answers.extend(mask.visibility(pairs.tile((0, 4), keys)) for keys in ((0, 3), (4, 7), (12, 17)))
        return positions

    library.call(ask, lengths, ids, dense, np.arange(QUERIES) + 8)
    known = [truth(np.arange(*keys) < lengths[..., None]) for keys in ((0, 3), (4, 7), (12, 17))]
    known += [FULL, MIXED, EMPTY, *(truth(dense[:4, slice(*keys)]) for keys in ((0, 3), (4, 7), (12, 17)))]
    known += [FULL, FULL, EMPTY]  # causal, queries at 8 to 11
    assert answers == ([MIXED] * 12 if library.jit else known)
