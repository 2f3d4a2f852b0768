"""Row intervals and plans: each visible pair is looked at exactly once, and no other."""

import numpy as np
import pytest

from attention_core import masks
from attention_core.masks.intervals import row_intervals
from attention_core.pairs import Pairs
from attention_core.problem import make_problem
from attention_np.plan import ASK, TileShape, plans_of

from .problems import MASKS, random_sizes
from .test_forward import rng_of


@pytest.mark.parametrize("mask", MASKS)
def test_a_plan_looks_at_every_visible_pair_once(mask: str) -> None:
    rng = rng_of(mask, "plan")
    for _ in range(6):
        s = random_sizes(rng)
        q, k = np.ones((s.batch, s.heads, s.queries, 2)), np.ones((s.batch, s.kv_heads, s.keys, 2))
        p = make_problem(q, k, k, mask=MASKS[mask](rng, s), query_positions=int(rng.integers(-3, 5)))
        visible = (
            np.ones(p.sizes.scores) if p.mask is None else np.broadcast_to(p.mask.visible(p.pairs()), p.sizes.scores)
        )
        counted = np.zeros(p.sizes.scores)
        for (item, head), plan in plans_of(p, TileShape(*map(int, rng.integers(1, 12, 3)))).items():
            for tile in plan.tiles:
                block = counted[item][head * s.group : (head + 1) * s.group, slice(*tile.rows)]
                seen = visible[item][head * s.group : (head + 1) * s.group, slice(*tile.rows)]
                for segment in tile.segments:
                    keys = slice(*segment.keys)
                    shown = np.ones((s.group, tile.rows[1] - tile.rows[0], segment.keys[1] - segment.keys[0]))
                    part = slice(*segment.masked)
                    if segment.pattern == ASK:
                        shown *= seen[..., keys]
                    elif segment.masked[0] < segment.masked[1]:
                        shown[:, part] = plan.pattern(segment.pattern, np.dtype("f8"))
                    block[:, slice(*segment.rows), keys] += shown[:, slice(*segment.rows)]
        np.testing.assert_array_equal(counted, visible)


KNOWN = (
    "none",
    "causal",
    "window",
    "two-sided",
    "key lengths",
    "query lengths",
    "prefix",
    "chunked",
    "segments",
    "not",
)


@pytest.mark.parametrize("mask", KNOWN)
def test_intervals_are_exactly_what_the_mask_sees(mask: str) -> None:
    rng = rng_of(mask, "intervals")
    for _ in range(20):
        s = random_sizes(rng)._replace(batch=1)
        made = MASKS[mask](rng, s)
        whole = Pairs(np, (1,), (0, 1), (0, s.queries), (0, s.keys), int(rng.integers(-3, 5)), int(rng.integers(-3, 5)))
        pairs = whole.tile(whole.queries, whole.keys, item=(0,))
        bounds = row_intervals(made, pairs)
        assert bounds is not None
        start, stop = bounds
        found = (np.arange(s.keys) >= start[:, None]) & (np.arange(s.keys) < stop[:, None])
        expected = np.ones(found.shape) if made is None else np.broadcast_to(made.visible(pairs), (1, *found.shape))[0]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mask", ["dense", "rule", "dilated"])
def test_other_masks_have_no_intervals(mask: str) -> None:
    s = random_sizes(rng_of(mask))._replace(batch=1, group=1, kv_heads=1)
    pairs = Pairs(np, (1,), (0, 1), (0, s.queries), (0, s.keys)).tile((0, s.queries), (0, s.keys), item=(0,))
    assert row_intervals(MASKS[mask](rng_of(mask), s), pairs) is None


def test_a_plan_is_kept_by_what_the_mask_holds() -> None:
    ids = np.repeat([0, 1, 2], 9)
    shape, x = TileShape(4, 4, 2), np.ones((1, 27, 3))
    first, same = (plans_of(make_problem(x, x, x, mask=masks.segments(each)), shape) for each in (ids, ids.copy()))
    assert first[(), 0] is same[(), 0]
    problem = make_problem(x, x, x, mask=masks.segments(ids))
    ids[8] = 1
    assert plans_of(problem, shape)[(), 0].tiles[2] != first[(), 0].tiles[2]
