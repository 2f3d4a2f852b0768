"""Sliding windows, and caches as positions: what a token sees is the same in a prompt and one step at a time."""

import numpy as np
import pytest

from attention_np import biases, dot_product_attention, masks
from tests.core.field_reports import plain
from tests.core.field_reports.libraries import assert_same, attention, on_every_library, spread

BOUNDS = [(0, 0), (1, 0), (3, 0), (0, 2), (2, 1), (None, 0), (None, 2), (1, None), (None, None), (10**12, 10**12)]


@pytest.mark.parametrize(("left", "right"), BOUNDS)
@pytest.mark.parametrize(("queries", "keys", "start"), [(4, 6, 0), (4, 6, 2), (5, 3, -2), (1, 6, 5)])
def test_a_window_counts_extra_keys_on_each_side(left: int, right: int, queries: int, keys: int, start: int) -> None:
    bounds = [plain.INF if bound is None else bound for bound in (left, right)]
    expected = plain.window(queries, keys, *bounds, start)
    window = masks.sliding_window(left, right)
    assert np.array_equal(window.array(queries, keys, query_positions=start, xp=np)[0], expected)
    q, k, v = spread(2, queries, 4), spread(2, keys, 4), spread(2, keys, 3)
    out = dot_product_attention(q, k, v, mask=window, query_positions=start)
    assert_same(out, plain.attention(q, k, v, mask=expected).out)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_causal_window_of_w_keys_sees_w_keys(width: int) -> None:
    seen = masks.sliding_window(width - 1, 0).array(6, 6, xp=np)[0]
    assert seen.sum(-1).tolist() == [min(i + 1, width) for i in range(6)]
    assert seen.diagonal().all()


def test_a_symmetric_band_is_bounded_on_both_sides() -> None:
    band = masks.sliding_window(2, 2).array(6, 6, xp=np)[0]
    assert np.array_equal(band, band.T)
    assert band.sum(-1).tolist() == [3, 4, 5, 5, 4, 3]


def test_zero_is_a_number_and_not_off() -> None:
    """0 for every optional number means 0; what cannot be 0 says so."""
    q, k, v = spread(2, 3, 4), spread(2, 5, 4), spread(2, 5, 3)
    assert_same(dot_product_attention(q, k, v, mask=masks.sliding_window(0, 0)), v[:, :3])
    assert_same(dot_product_attention(q, k, v, scale=0), np.broadcast_to(v.mean(-2, keepdims=True), (2, 3, 3)))
    for nothing in (masks.key_lengths(0), masks.query_lengths(0), masks.prefix(0), masks.global_tokens(0)):
        assert not dot_product_attention(q, k, v, mask=nothing).any()
    sunk = dot_product_attention(q, k, v, sinks=np.zeros(2))
    assert_same(sunk, plain.attention(q, k, v, sinks=[0, 0]).out)
    assert not np.allclose(sunk, dot_product_attention(q, k, v))
    with pytest.raises(ValueError, match="`softcap` must be positive, and None means no cap; got 0"):
        dot_product_attention(q, k, v, softcap=0)
    with pytest.raises(ValueError, match="`size` must be at least 1; got 0"):
        masks.chunked(0)


def test_a_negative_bound_is_an_error() -> None:
    with pytest.raises(ValueError, match="`left` must be at least 0; got -1"):
        masks.sliding_window(-1, 0)


TOKENS, CAPACITY = 7, 8
MASKS = [
    masks.causal(),
    masks.sliding_window(2, 0),
    masks.causal() & masks.chunked(3),
    masks.causal() & masks.dilated(2),
]


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_a_row_of_a_prompt_is_the_decode_step_at_its_position(mask: masks.Mask) -> None:
    q, k, v = spread(2, TOKENS, 4), spread(2, TOKENS, 4, seed=1), spread(2, TOKENS, 3)
    bias = biases.alibi(2)
    prompt = dot_product_attention(q, k, v, mask=mask, bias=bias)
    for i in range(TOKENS):
        now, past = slice(i, i + 1), slice(0, i + 1)
        step = dot_product_attention(q[:, now], k[:, past], v[:, past], mask=mask, bias=bias, query_positions=i)
        assert_same(step, prompt[:, now])


def test_a_window_evicts_nothing_that_it_still_sees() -> None:
    """With as many tokens as the window holds, the newest sees them all; one more, and the oldest goes."""
    window = masks.sliding_window(CAPACITY - 1, 0)
    assert window.array(1, CAPACITY, query_positions=CAPACITY - 1, xp=np)[0, 0].tolist() == [True] * CAPACITY
    assert window.array(1, CAPACITY + 1, query_positions=CAPACITY, xp=np)[0, 0].tolist() == [False] + [True] * CAPACITY


@on_every_library
def test_unfilled_slots_of_a_cache_are_not_seen(library: str) -> None:
    """A cache of fixed capacity, three slots filled: the query at position 2 sees exactly those."""
    q, k, v = spread(2, 1, 4), np.full((2, CAPACITY, 4), np.nan), np.full((2, CAPACITY, 3), np.nan)
    k[:, :3], v[:, :3] = spread(2, 3, 4), spread(2, 3, 3)
    answer = attention(library, q, k, v, mask=masks.causal(), query_positions=np.array([2]))
    assert_same(answer.out, plain.attention(q, k[:, :3], v[:, :3]).out)


def test_chunked_prefill_into_a_cache_with_an_offset_an_item() -> None:
    """Two new queries an item, written behind 4 and 1 keys: each item has its own triangle."""
    lengths, q, k, v = np.array([4, 1]), spread(2, 1, 2, 4), spread(2, 1, CAPACITY, 4), spread(2, 1, CAPACITY, 3)
    positions = lengths[:, None] + np.arange(2)
    out = dot_product_attention(q, k, v, mask=masks.causal(), query_positions=positions)
    for item, n in enumerate(lengths):
        expected = plain.attention(q[item], k[item], v[item], mask=plain.causal(2, CAPACITY, int(n)))
        assert_same(out[item], expected.out)


@pytest.mark.parametrize("newest", [5, 6, 11])
def test_a_ring_of_slots_is_read_by_position_in_any_order(newest: int) -> None:
    """Slot ``p % 4`` holds position p; with the slots' positions given, order by slot or by time is the same."""
    ring, window = np.arange(newest - 3, newest + 1), masks.sliding_window(2, 0)
    by_slot = ring[np.argsort(ring % 4)]
    assert by_slot.tolist() != ring.tolist() or newest % 4 == 3
    q, k, v = spread(2, 1, 4), spread(2, 4, 4), spread(2, 4, 3)
    expected = plain.attention(q, k[:, 1:], v[:, 1:]).out  # the three newest, by time
    order = by_slot - by_slot.min()
    out = dot_product_attention(q, k[:, order], v[:, order], mask=window, query_positions=newest, key_positions=by_slot)
    assert_same(out, expected)
    assert_same(dot_product_attention(q, k, v, mask=window, query_positions=newest, key_positions=newest - 3), expected)
