"""Masks and biases as callers give them: polarity, numbers for booleans, padding, broadcasting, packing."""

from typing import Any

import numpy as np
import pytest

from attention_np import biases, dot_product_attention, masks
from tests.core.field_reports import plain
from tests.core.field_reports.libraries import assert_same, attention, on_every_library, spread

QUERIES, KEYS = 3, 5
KEPT = np.array([[True, False, True, True, False], [False, True, True, False, False], [True, True, True, True, True]])


def problem(*batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return spread(*batch, 2, QUERIES, 4), spread(*batch, 2, KEYS, 4), spread(*batch, 2, KEYS, 7)


def test_true_means_may_attend_and_the_inverse_is_written() -> None:
    q, k, v = problem()
    kept, dropped = (plain.attention(q, k, v, mask=m).out for m in (KEPT, ~KEPT))
    assert_same(dot_product_attention(q, k, v, mask=KEPT), kept)
    assert_same(dot_product_attention(q, k, v, mask=~masks.dense(KEPT)), dropped)
    assert not np.allclose(kept, dropped)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64, np.uint8])
def test_numbers_are_never_a_mask(dtype: Any) -> None:
    """A float keep-mask of 0 and 1 would only be added: it is refused, as are integers."""
    with pytest.raises(TypeError, match=r"`mask` must be a mask or a boolean array, True = may attend.*are a `bias`"):
        dot_product_attention(*problem(), mask=KEPT.astype(dtype))


def test_booleans_are_never_a_bias() -> None:
    with pytest.raises(TypeError, match="booleans are a `mask`"):
        dot_product_attention(*problem(), bias=KEPT)


def test_a_float_padding_bias_hides_its_keys_and_adds_to_another() -> None:
    q, k, v = problem()
    padding, other = np.array([0, 0, -np.inf, 0, -np.inf]), spread(QUERIES, KEYS)
    expected = plain.attention(q, k, v, bias=other + padding)
    for bias in (other + padding, biases.dense(other) + padding, padding + biases.dense(other)):
        answer = dot_product_attention(q, k, v, bias=bias, return_weights=True)
        assert_same(answer.out, expected.out)
        assert not answer.weights[..., [2, 4]].any()
    assert_same(dot_product_attention(q, k, v, bias=other, mask=padding == 0), expected.out)


def test_a_bias_is_added_to_the_logits_not_to_keys_or_weights() -> None:
    q, k, v = problem()
    answer = dot_product_attention(q, k, v, bias=np.arange(5.0), return_weights=True)
    unbiased = plain.attention(q, k, v).weights * np.exp(np.arange(5.0))
    assert_same(answer.weights, unbiased / unbiased.sum(-1, keepdims=True))


@pytest.mark.parametrize(
    "shape", [(), (5,), (3, 1), (3, 5), (2, 1, 1), (2, 3, 5), (4, 1, 1, 5), (4, 2, 3, 5), (6, 1, 1, 1, 1)]
)
def test_masks_and_biases_broadcast_like_any_array(shape: tuple[int, ...]) -> None:
    """Every shape that broadcasts to (..., Hq, Lq, Lk) means what its broadcast means; all sizes differ."""
    q, k, v = problem(6, 4)
    mask, bias = spread(*shape) > -0.5, spread(*shape, seed=3)
    out = dot_product_attention(q, k, v, mask=mask, bias=bias)
    full = (6, 4, 2, 3, 5)
    broadcast = {"mask": np.broadcast_to(mask, full), "bias": np.broadcast_to(bias, full)}
    assert_same(out, dot_product_attention(q, k, v, **broadcast))
    item = (5, 3)
    one = {name: x[item] for name, x in broadcast.items()}
    assert_same(out[item], plain.attention(q[item], k[item], v[item], **one).out)


@pytest.mark.parametrize("shape", [(4,), (5, 3), (3, 3, 5), (4, 1, 1), (7, 1, 1, 5)])
def test_a_mask_cannot_enlarge_the_call(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"does not broadcast to \(\.\.\., Hq, Lq, Lk\)"):
        dot_product_attention(*problem(6), mask=np.ones(shape, dtype=bool))


@on_every_library
def test_a_padding_mask_per_item_broadcasts_over_heads_and_queries(library: str) -> None:
    q, k, v = problem(2)
    padding = np.array([[True, True, False, True, False], [True] * 5])
    answer = attention(library, q, k, v, mask=padding[:, None, None, :])
    for item in range(2):
        left = padding[item]
        assert_same(answer.out[item], plain.attention(q[item], k[item][:, left], v[item][:, left]).out)


def test_batch_axes_of_query_and_key_broadcast_both_ways() -> None:
    q, k, v = spread(1, 4, 2, 3, 5), spread(6, 1, 2, 7, 5), spread(6, 1, 2, 7, 3)
    out = dot_product_attention(q, k, v)
    assert out.shape == (6, 4, 2, 3, 3)
    assert_same(out[5, 2], plain.attention(q[0, 2], k[5, 0], v[5, 0]).out)
    shared = dot_product_attention(q[0], k[0, 0], v[0, 0])
    assert_same(shared[3], plain.attention(q[0, 3], k[0, 0], v[0, 0]).out)


def test_padding_with_more_batch_axes_is_the_outer_product_of_its_items() -> None:
    """A padding mask (batch, blocks, L): valid rows see valid keys of their own item, the others nothing."""
    x, valid = spread(2, 3, 1, 4, 5), np.arange(4) < np.array([[4, 1, 2], [3, 4, 0]])[..., None]
    pairs = valid[..., :, None] & valid[..., None, :]
    expected = plain.attention(x, x, x, mask=pairs[:, :, None]).out
    assert_same(dot_product_attention(x, x, x, mask=masks.segments(np.where(valid, 0, -1))), expected)
    assert_same(dot_product_attention(x, x, x, mask=pairs[:, :, None]), expected)
    lengths = valid.sum(-1)
    assert_same(
        dot_product_attention(x, x, x, mask=masks.key_lengths(lengths) & masks.query_lengths(lengths)), expected
    )


@on_every_library
def test_key_lengths_alone_hide_the_padding(library: str) -> None:
    q, k, v = problem(4)
    v[:, :, 3:] = 1e6
    lengths = np.array([2, 3, 0, 1])
    answer = attention(library, q, k, v, mask=masks.key_lengths(lengths))
    for item, n in enumerate(lengths):
        assert_same(answer.out[item], plain.attention(q[item], k[item][:, :n], v[item][:, :n]).out)


def test_lengths_are_clamped_never_wrapped() -> None:
    q, k, v = problem(4)
    inside, outside = np.array([0, 5, 0, 5]), np.array([-1, 6, -(2**31), 2**31 - 1])
    for lengths in (masks.key_lengths, masks.query_lengths):
        expected = dot_product_attention(q, k, v, mask=lengths(inside))
        assert np.array_equal(dot_product_attention(q, k, v, mask=lengths(outside)), expected)


def test_a_mask_of_ones_never_undoes_packed_boundaries() -> None:
    q, k, v = spread(2, 6, 4), spread(2, 6, 4, seed=1), spread(2, 6, 3)
    packed = masks.segments(np.array([0, 0, 1, 1, 1, 2]))
    alone = dot_product_attention(q, k, v, mask=packed)
    assert np.array_equal(dot_product_attention(q, k, v, mask=packed & np.ones((6, 6), dtype=bool)), alone)
    spans = ((0, 2), (2, 5), (5, 6))
    apart = [plain.attention(q[:, a:b], k[:, a:b], v[:, a:b]).out for a, b in spans]
    assert_same(alone, np.concatenate(apart, axis=1))


def test_valid_keys_need_not_be_a_prefix() -> None:
    q, k, v = problem()
    holes = np.array([True, False, True, False, True])
    expected = plain.attention(q, k[:, holes], v[:, holes]).out
    assert_same(dot_product_attention(q, k, v, mask=holes), expected)
    queries, keys = np.zeros(QUERIES, int), np.where(holes, 0, -1)
    assert_same(dot_product_attention(q, k, v, mask=masks.segments(queries, keys)), expected)
    assert not np.allclose(expected, plain.attention(q, k[:, :3], v[:, :3]).out)
