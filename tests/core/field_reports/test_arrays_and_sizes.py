"""Any strides and no changed inputs; lengths beside a tile's; long calls, whose masks are never drawn up whole."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from attention_core.masks import Visibility
from attention_core.pairs import Pairs
from attention_np import (
    Gradients,
    SelfAttention,
    biases,
    dot_product_attention,
    dropout,
    jvp,
    masks,
    vjp,
)
from tests.core.field_reports import plain
from tests.core.field_reports.libraries import assert_same, spread


def with_strides(x: np.ndarray, kind: str) -> np.ndarray:
    """An array of the same values, laid out otherwise."""
    if kind == "fortran":
        return np.asfortranarray(x)
    if kind == "reversed":
        return x[..., ::-1, ::-1].copy()[..., ::-1, ::-1]
    if kind == "every other":
        wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan)
        wide[..., ::2] = x
        return wide[..., ::2]
    if kind == "transposed":
        return np.swapaxes(np.ascontiguousarray(np.swapaxes(x, -1, -2)), -1, -2)
    view = x.view()
    view.flags.writeable = False
    return view


@pytest.mark.parametrize("kind", ["fortran", "reversed", "every other", "transposed", "read-only"])
def test_only_values_matter_not_strides(kind: str) -> None:
    arrays = spread(2, 3, 4), spread(2, 5, 4), spread(2, 5, 7)
    strided = [with_strides(x, kind) for x in arrays]
    assert [x.tolist() for x in strided] == [x.tolist() for x in arrays]
    assert_same(
        dot_product_attention(*strided, mask=masks.causal()), plain.attention(*arrays, mask=plain.causal(3, 5)).out
    )


def test_broadcast_arrays_without_strides_are_arrays() -> None:
    q, k, v = spread(1, 3, 4), spread(1, 5, 4), spread(1, 5, 7)
    wide = [np.broadcast_to(x, (6, 2, *x.shape[1:])) for x in (q, k, v)]
    out = dot_product_attention(*wide)
    assert out.shape == (6, 2, 3, 7)
    assert_same(out[4, 1], plain.attention(q[0], k[0], v[0]).out)


def test_nothing_given_is_ever_changed() -> None:
    """Forward, pullback and tangents; the cotangents as well, which may be used again."""
    given = {
        "query": spread(2, 3, 4), "key": spread(2, 5, 4), "value": spread(2, 5, 7), "bias": spread(3, 5),
        "sinks": spread(2), "mask": spread(3, 5) > -1, "keep": spread(2, 3, 5) > -1, "table": spread(8, 2),
        "out_cotangent": spread(2, 3, 7), "lse_cotangent": spread(2, 3), "positions": np.array([4, 2, 0]),
    }  # fmt: skip
    before = {name: x.copy() for name, x in given.items()}
    call: dict[str, Any] = {
        "mask": given["mask"] & masks.causal(),
        "bias": given["bias"] + biases.relative(given["table"]),
        "sinks": given["sinks"],
        "softcap": 3.0,
        "dropout": dropout(0.5, keep=given["keep"]),
        "query_positions": given["positions"],
    }
    arrays = given["query"], given["key"], given["value"]
    result, pullback = vjp(*arrays, **call)
    first, again = (pullback(given["out_cotangent"], given["lse_cotangent"]) for _ in range(2))
    jvp(*arrays, Gradients(*arrays), **call)
    assert np.array_equal(result.out, dot_product_attention(*arrays, **call))
    assert np.array_equal(first.key, again.key)
    for name, x in given.items():
        assert np.array_equal(x, before[name]), name


def test_a_layer_is_a_pure_function() -> None:
    x, weights = spread(5, 3), [spread(3, 4), spread(3, 4, seed=1), spread(3, 6)]
    layer, before = SelfAttention(*weights), x.copy()
    first = layer(x)
    assert np.array_equal(x, before)
    assert np.array_equal(layer(x), first)
    assert_same(first, plain.attention(*(x @ w for w in weights)).out)


@pytest.mark.parametrize("keys", [1, 127, 128, 129, 130, 2049])
@pytest.mark.parametrize("queries", [1, 5])
def test_lengths_beside_a_power_of_two_count_exactly_their_keys(queries: int, keys: int) -> None:
    """Columns past the end of the keys have no weight, with a mask and without."""
    q, k, v = spread(queries, 3), spread(keys, 3), spread(keys, 2)
    answer = dot_product_attention(q, k, v, return_lse=True)
    expected = plain.attention(q, k, v)
    assert_same(answer.out, expected.out)
    assert_same(answer.lse, expected.lse)
    padded = [np.concatenate([x, np.full((7, x.shape[1]), np.nan)]) for x in (k, v)]
    assert_same(dot_product_attention(q, *padded, mask=masks.key_lengths(keys)), expected.out)


KINDS = {
    "causal": masks.causal(),
    "window": masks.sliding_window(3, 1),
    "chunks": masks.chunked(4) | masks.global_tokens(1),
    "lengths": masks.key_lengths(7) & masks.query_lengths(9),
    "prefix": masks.prefix(3) & ~masks.dilated(3),
    "segments": masks.segments(np.repeat([0, 1, 2, -1], [4, 1, 5, 1]), np.repeat([0, 1, 2], [3, 5, 2])),
}


@pytest.mark.parametrize("mask", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("tile", [1, 3, 4, 16])
def test_what_a_mask_says_of_a_tile_is_true_also_where_the_end_cuts_it(mask: masks.Mask, tile: int) -> None:
    queries, keys = 11, 10
    pairs, seen = Pairs(np, (), (0, 1), (0, queries), (0, keys)), mask.array(queries, keys, xp=np)[0]
    for i in range(0, queries, tile):
        for j in range(0, keys, tile):
            rows, columns = (i, min(i + tile, queries)), (j, min(j + tile, keys))
            cut, said = seen[slice(*rows), slice(*columns)], mask.visibility(pairs.tile(rows, columns))
            assert said is Visibility.MIXED or (cut.all() if said is Visibility.FULL else not cut.any())


LONG = 2**20 + 3  # far beyond 46340, the last length whose square fits 31 bits


@pytest.mark.parametrize(
    "mask", [masks.causal(), masks.sliding_window(5, 2), masks.chunked(7), masks.dilated(3)], ids=repr
)
@pytest.mark.parametrize("corner", [46340, 2**20 - 9])
def test_a_tile_far_out_is_the_same_as_one_at_home(mask: masks.Mask, corner: int) -> None:
    """Beyond 2^31 pairs an index in 32 bits wraps; here a tile knows its rows and columns only."""
    pairs = Pairs(np, (), (0, 1), (0, LONG), (0, LONG)).tile((corner, corner + 4), (corner - 3, corner + 6))
    at_home = mask.array(4, 9, query_positions=corner, key_positions=corner - 3, xp=np)[0]
    assert np.array_equal(np.broadcast_to(mask.visible(pairs), pairs.shape)[0], at_home)
    assert 0 < at_home.sum() < at_home.size


@pytest.mark.parametrize("shift", [46341, 2**24 + 1, 2**30 - 100])
def test_positions_shifted_together_change_nothing(shift: int) -> None:
    q, k, v = spread(2, 3, 4), spread(2, 5, 4), spread(2, 5, 7)
    call = {"mask": masks.sliding_window(2, 0), "bias": biases.alibi(2)}
    out = dot_product_attention(q, k, v, **call, query_positions=shift + 2, key_positions=shift)
    assert_same(out, dot_product_attention(q, k, v, **call, query_positions=2))


@pytest.mark.parametrize("position", [2**31, -(2**31), 2**40])
def test_positions_whose_distances_could_wrap_are_refused(position: int) -> None:
    with pytest.raises(ValueError, match="so that distances fit 32 bits"):
        dot_product_attention(spread(2, 3), spread(4, 3), spread(4, 3), key_positions=position)


def test_a_mask_over_a_million_tokens_costs_a_tile() -> None:
    """Batched as well: nothing of the size of queries times keys is made unless asked for."""
    ids, lengths = np.arange(LONG) // 1000, np.arange(32) * 1000
    tracemalloc.start()
    try:
        mask = masks.causal() & masks.sliding_window(4096, 0) & masks.segments(ids) & masks.key_lengths(lengths)
        pairs = Pairs(np, (32,), (0, 1), (0, LONG), (0, LONG))
        tile = pairs.tile((500_000, 500_128), (499_900, 500_028), item=(31,))
        said, seen = mask.visibility(tile), np.broadcast_to(mask.visible(tile), tile.shape)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (said, seen.any()) == (Visibility.EMPTY, False)  # longer than any length
    assert peak < 4 * 2**20
