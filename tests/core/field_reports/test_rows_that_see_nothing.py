"""A query that sees no key: out 0, weights 0, lse -inf, gradients 0, whatever made it so; and calls of size 0."""

import numpy as np
import pytest

from attention_np import Mask, dot_product_attention, masks, vjp
from tests.core.field_reports import plain
from tests.core.field_reports.libraries import assert_same, attention, on_every_library, spread

HEADS, QUERIES, KEYS, DEPTH, VALUE_DEPTH = 2, 3, 5, 4, 7
# The middle row of each sees nothing.
ROW_OF_NONE = {
    "dense": masks.dense(np.array([[True] * 5, [False] * 5, [True, False, True, True, False]])),
    "segments": masks.segments(np.array([0, -1, 1]), np.array([0, 0, 1, 1, -1])),
    "rule": masks.rule(lambda batch, head, query, key: (query != 1) & (key < 4)),
    "window off the keys": masks.sliding_window(0, 0) & ~masks.prefix(2) | masks.global_tokens(1) & ~masks.prefix(1),
}


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return spread(HEADS, QUERIES, DEPTH), spread(HEADS, KEYS, DEPTH), spread(HEADS, KEYS, VALUE_DEPTH)


@on_every_library
def test_a_row_that_sees_nothing_is_zero_and_leaves_the_others_alone(library: str) -> None:
    q, k, v = problem()
    mask = np.ones((QUERIES, KEYS), dtype=bool)
    mask[1] = False
    answer, unmasked = attention(library, q, k, v, mask=mask), plain.attention(q, k, v)
    assert_same(answer.out[:, 1], np.zeros((HEADS, VALUE_DEPTH)), rtol=0, atol=0)
    assert_same(answer.weights[:, 1], np.zeros((HEADS, KEYS)), rtol=0, atol=0)
    assert_same(answer.lse[:, 1], [-np.inf] * HEADS)
    assert_same(answer.out[:, ::2], unmasked.out[:, ::2])
    assert_same(answer.lse[:, ::2], unmasked.lse[:, ::2])


@pytest.mark.parametrize("mask", ROW_OF_NONE.values(), ids=ROW_OF_NONE)
def test_every_kind_of_mask_that_empties_a_row_gives_zeros_and_zero_gradients(mask: Mask) -> None:
    q, k, v = problem()
    seen = mask.array(QUERIES, KEYS, xp=np)[0]
    empty = ~seen.any(axis=-1)
    assert empty[1]
    result, pullback = vjp(q, k, v, mask=mask)
    assert_same(result.out, plain.attention(q, k, v, mask=seen).out)
    assert not result.out[:, empty].any()
    gradients = pullback(np.ones_like(result.out), np.ones_like(result.lse))
    assert all(np.isfinite(x).all() for x in gradients[:3])
    assert not gradients.query[:, empty].any()


@pytest.mark.parametrize("low", [-1e4, -3e38, -1e300])
def test_a_finite_bias_is_never_a_mask(low: float) -> None:
    """The same bias along a row shifts its logits and keeps its weights; one that swallows them leaves the mean."""
    q, k, v = problem()
    bias = np.zeros((QUERIES, KEYS))
    bias[1] = low
    expected = plain.attention(q, k, v).out
    if low < -1e30:
        expected[:, 1] = v.mean(axis=-2)
    answer = dot_product_attention(q, k, v, bias=bias, return_weights=True)
    assert_same(answer.out, expected)
    assert_same(answer.weights.sum(-1), np.ones((HEADS, QUERIES)))


def test_a_bias_of_minus_infinity_is_a_mask() -> None:
    q, k, v = problem()
    bias = np.zeros((QUERIES, KEYS))
    bias[1], bias[2, 3] = -np.inf, -np.inf
    out = dot_product_attention(q, k, v, bias=bias)
    assert np.array_equal(out, dot_product_attention(q, k, v, mask=bias == 0))
    assert not out[:, 1].any()


def test_an_item_of_length_zero_is_zero_beside_one_that_is_not() -> None:
    q, k, v = spread(2, 1, QUERIES, DEPTH), spread(2, 1, KEYS, DEPTH), spread(2, 1, KEYS, VALUE_DEPTH)
    out = dot_product_attention(q, k, v, mask=masks.key_lengths(np.array([4, 0])))
    assert_same(out[0], plain.attention(q[0], k[0, :, :4], v[0, :, :4]).out)
    assert not out[1].any()


@pytest.mark.parametrize(
    ("library", "empty"),
    [
        *(("numpy", each) for each in ("batch", "heads", "queries", "keys", "depth", "value_depth")),
        ("jax", "keys"),
    ],
)
def test_any_size_may_be_zero(library: str, empty: str) -> None:
    sizes = {"batch": 2, "heads": 3, "queries": 4, "keys": 5, "depth": 6, "value_depth": 7, empty: 0}
    batch, heads, queries, keys, depth, value_depth = sizes.values()
    v = spread(batch, heads, keys, value_depth)
    answer = attention(library, spread(batch, heads, queries, depth), spread(batch, heads, keys, depth), v)
    assert answer.out.shape == (batch, heads, queries, value_depth)
    if empty == "keys":
        assert not answer.out.any()
        assert (answer.lse == -np.inf).all()
    if empty == "depth":  # all logits are 0
        assert_same(answer.out, np.broadcast_to(v.mean(axis=-2, keepdims=True), answer.out.shape))


def test_without_keys_the_gradients_are_zeros_of_the_right_shapes() -> None:
    q, k, v = spread(2, 4), spread(0, 4), spread(0, 3)
    result, pullback = vjp(q, k, v)
    gradients = pullback(np.ones_like(result.out), np.ones_like(result.lse))
    assert [x.shape for x in gradients[:3]] == [(2, 4), (0, 4), (0, 3)]
    assert not gradients.query.any()


def test_queries_without_key_heads_are_an_error_not_a_crash() -> None:
    with pytest.raises(ValueError, match="`key` has 0 heads, which does not divide the 4 heads of `query`"):
        dot_product_attention(np.ones((2, 4, 8, 16)), np.ones((2, 0, 8, 16)), np.ones((2, 0, 8, 16)))
    assert dot_product_attention(np.ones((2, 0, 8, 16)), np.ones((2, 0, 3, 16)), np.ones((2, 0, 3, 5))).shape == (
        2,
        0,
        8,
        5,
    )
