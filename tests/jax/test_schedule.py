"""Which tiles a static mask leaves: asked about many at once, the answer is that of asking about each."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax", reason="the kernel under test is JAX's")

from attention_core.masks import Visibility, chunked, dilated, global_tokens, prefix, sliding_window
from attention_core.pairs import Pairs
from attention_core.sizes import Sizes
from attention_jax.schedule import Schedule, make_schedule, tiling_of

QUERIES, KEYS = 37, 53
MASKS = {
    "none": None,
    "causal": sliding_window(None, 0),
    "window": sliding_window(6, 2),
    "chunked": chunked(10) & sliding_window(None, 0),
    "dilated": dilated(3),
    "prefix or window": prefix(9) | sliding_window(3, 0),
    "global": global_tokens(2) | sliding_window(1, 1),
    "all but a window": ~sliding_window(20, 5),
    "nothing": sliding_window(0, 0) & ~sliding_window(0, 0),
}


def schedule_of(mask: object, rows: int, columns: int, most: int | None = None) -> tuple[Schedule | None, Pairs]:
    sizes = Sizes((), 1, 1, QUERIES, KEYS, 4, 4)
    pairs = Pairs(np, (), (0, 1), (0, QUERIES), (0, KEYS), query_positions=7)
    return make_schedule(mask, pairs, sizes, tiling_of(QUERIES, rows), tiling_of(KEYS, columns), most), pairs


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("tiles", [(4, 4), (5, 16), (64, 3), (9, 64), (1, 1)])
def test_every_tile_is_what_the_mask_says_of_it(name: str, tiles: tuple[int, int]) -> None:
    schedule, pairs = schedule_of(MASKS[name], *tiles)
    assert schedule is not None
    queries, keys = tiling_of(QUERIES, tiles[0]), tiling_of(KEYS, tiles[1])
    for row in range(queries.count):
        full, mixed = np.split(schedule.order[row, : schedule.visited[row]], [schedule.full[row]])
        for column in range(keys.count):
            tile = pairs.tile(queries.span((row, row + 1)), keys.span((column, column + 1)))
            code = Visibility.FULL if MASKS[name] is None else MASKS[name].visibility(tile)
            if keys.overlaps and column == keys.count - 1:
                code = min(code, Visibility.MIXED)
            assert (column in full, column in mixed) == (code == Visibility.FULL, code == Visibility.MIXED)


@pytest.mark.parametrize("tiles", [(4, 4), (5, 16)])
def test_no_visible_pair_is_left_out(tiles: tuple[int, int]) -> None:
    for mask in (each for each in MASKS.values() if each is not None):
        schedule, pairs = schedule_of(mask, *tiles)
        assert schedule is not None
        met = np.zeros((QUERIES, KEYS), bool)
        queries, keys = tiling_of(QUERIES, tiles[0]), tiling_of(KEYS, tiles[1])
        for row, count in enumerate(schedule.visited):
            for column in schedule.order[row, :count]:
                met[slice(*queries.span((row, row + 1))), slice(*keys.span((column, column + 1)))] = True
        assert not (np.broadcast_to(mask.visible(pairs), met.shape) & ~met).any()


def test_a_narrow_mask_is_asked_little_and_others_not_without_end() -> None:
    narrow, tiles = sliding_window(2, 0), (1, 1)
    assert schedule_of(narrow, *tiles, most=500)[0] is not None  # of 37 x 53 tiles
    assert schedule_of(dilated(3), *tiles, most=500)[0] is None
