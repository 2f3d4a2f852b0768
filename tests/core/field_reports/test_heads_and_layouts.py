"""Grouped heads, value depth, head depth and its default scale, and the two layouts by name."""

import numpy as np
import pytest

from attention_np import CrossAttention, MultiHeadAttentionWrapper, dot_product_attention
from tests.core.field_reports import plain
from tests.core.field_reports.libraries import assert_same, attention, on_every_library, spread


@on_every_library
def test_grouped_heads_are_repeated_heads_in_turn(library: str) -> None:
    """Query heads 0 1 2 read key head 0 and 3 4 5 key head 1: repeated, never tiled."""
    q, k, v = spread(2, 6, 3, 4), spread(2, 2, 5, 4), spread(2, 2, 5, 7)
    answer = attention(library, q, k, v)
    repeated = plain.attention(q, np.repeat(k, 3, axis=-3), np.repeat(v, 3, axis=-3))
    tiled = plain.attention(q, np.tile(k, (3, 1, 1)), np.tile(v, (3, 1, 1)))
    assert_same(answer.out, repeated.out)
    assert not np.allclose(tiled.out, repeated.out)


@pytest.mark.parametrize("heads", [1, 3, 5])
def test_key_heads_must_divide_query_heads(heads: int) -> None:
    with pytest.raises(ValueError, match=f"`key` has 2 heads, which does not divide the {heads} heads of `query`"):
        dot_product_attention(spread(heads, 3, 4), spread(2, 5, 4), spread(2, 5, 7))


@pytest.mark.parametrize("value_depth", [1, 3, 8])
def test_the_output_has_the_depth_of_value_and_the_scale_that_of_query(value_depth: int) -> None:
    q, k, v = spread(2, 3, 5), spread(2, 4, 5), spread(2, 4, value_depth)
    out = dot_product_attention(q, k, v)
    assert out.shape == (2, 3, value_depth)
    assert_same(out, plain.attention(q, k, v, scale=5**-0.5).out)


@pytest.mark.parametrize("depth", [1, 3, 7, 33])
def test_any_head_depth_has_its_own_default_scale(depth: int) -> None:
    """Padding the depth with zeros changes no dot product, but it does change the default scale."""
    q, k, v = spread(3, depth), spread(5, depth), spread(5, 2)
    expected = plain.attention(q, k, v, scale=depth**-0.5).out
    padded = [np.pad(x, ((0, 0), (0, 8 * depth))) for x in (q, k)]
    assert_same(dot_product_attention(q, k, v), expected)
    assert_same(dot_product_attention(*padded, v, scale=depth**-0.5), expected)
    assert not np.allclose(dot_product_attention(*padded, v), expected)


def test_a_layer_scales_by_the_depth_of_a_head_not_of_the_embedding() -> None:
    x, heads, depth, embedding = spread(5, 6), 3, 2, 6
    weights = [spread(embedding, depth, seed=n) for n in range(3 * heads)]
    names = ("W_query", "W_key", "W_value")
    state = {f"heads.{h}.{name}": weights[3 * h + n] for h in range(heads) for n, name in enumerate(names)}
    out = MultiHeadAttentionWrapper.from_state_dict(state)(x)
    projected = [[x @ weights[3 * h + n] for n in range(3)] for h in range(heads)]
    by_head = [plain.attention(*head, scale=depth**-0.5).out for head in projected]
    assert_same(out, np.concatenate(by_head, axis=-1))
    by_embedding = [plain.attention(*head, scale=embedding**-0.5).out for head in projected]
    assert not np.allclose(out, np.concatenate(by_embedding, axis=-1))


def test_the_scale_argument_matters() -> None:
    """With scales that are not the default by accident: 0.125 is that of depth 64."""
    q, k, v = spread(3, 64), spread(5, 64), spread(5, 2)
    assert np.array_equal(dot_product_attention(q, k, v, scale=0.125), dot_product_attention(q, k, v))
    outs = [dot_product_attention(q, k, v, scale=scale) for scale in (0.1, 0.3, 1.0, 0.0, -0.3)]
    for out, scale in zip(outs, (0.1, 0.3, 1.0, 0.0, -0.3), strict=True):
        assert_same(out, plain.attention(q, k, v, scale=scale).out)
    assert all(not np.allclose(a, b) for n, a in enumerate(outs) for b in outs[:n])


@on_every_library
def test_a_layout_is_named_and_the_two_agree(library: str) -> None:
    q, k, v = spread(2, 3, 4, 5), spread(2, 3, 6, 5), spread(2, 3, 6, 7)
    swapped = [np.swapaxes(x, 1, 2) for x in (q, k, v)]
    expected = plain.attention(q, k, v)
    answer = attention(library, *swapped, layout="BLHD")
    assert_same(answer.out, np.swapaxes(expected.out, 1, 2))
    assert_same(answer.weights, expected.weights)  # (..., Hq, Lq, Lk) in both
    assert_same(answer.lse, expected.lse)


def test_arrays_in_the_other_layout_are_refused_or_plainly_different() -> None:
    """Where heads and length could be swapped unseen the results differ; where they cannot, it is an error."""
    x = spread(1, 4, 8, 3)
    right, wrong = (dot_product_attention(x, x, x, layout=layout) for layout in ("BHLD", "BLHD"))
    assert not np.allclose(right, wrong)
    q, k = spread(2, 3, 4, 5), spread(2, 3, 6, 5)
    with pytest.raises(ValueError, match="`key` has 6 heads, which does not divide the 4 heads of `query`"):
        dot_product_attention(q, k, k, layout="BLHD")


@pytest.mark.parametrize("layout", ["BSHD", "bhld", "", -2, 2, None])
def test_an_axis_is_never_given_by_number(layout: object) -> None:
    """Nothing to normalise: attention is over axis L of a named layout, and other words are refused."""
    with pytest.raises(ValueError, match='`layout` must be "BHLD" or "BLHD"'):
        dot_product_attention(spread(2, 3, 4), spread(2, 3, 4), spread(2, 3, 4), layout=layout)


def test_weights_sum_to_one_over_keys_not_over_queries() -> None:
    q, k, v = spread(2, 3, 4), spread(2, 5, 4), spread(2, 5, 6)
    weights = dot_product_attention(q, k, v, return_weights=True).weights
    assert weights.shape == (2, 3, 5)
    assert_same(weights.sum(-1), np.ones((2, 3)))
    assert not np.allclose(weights.sum(-2), 1)
    layer = CrossAttention(spread(3, 4), spread(3, 4, seed=1), spread(3, 5))
    steps = layer.steps(spread(2, 3), spread(6, 3))
    assert_same(steps["attn_weights"].sum(-1), np.ones(2))
