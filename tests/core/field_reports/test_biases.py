"""ALiBi's slopes for any number of heads, and biases that read the positions of the call."""

import math

import numpy as np
import pytest

from attention_np import biases, dot_product_attention
from tests.core.field_reports import plain
from tests.core.field_reports.libraries import assert_same, attention, on_every_library, spread


def published_slopes(heads: int) -> list[float]:
    """The recipe of the ALiBi paper's code, for any number of heads."""
    lower = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (n + 1) / lower) for n in range(lower)]
    return slopes if lower == heads else slopes + published_slopes(2 * lower)[::2][: heads - lower]


def test_slopes_of_three_and_twelve_heads_as_published() -> None:
    assert_same(biases.alibi(3).slopes, [0.0625, 0.00390625, 0.25])
    assert_same(biases.alibi(12).slopes[8:], [0.70710678, 0.35355339, 0.1767767, 0.08838835], rtol=1e-7)


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 8, 12, 20, 71])
def test_slopes_are_the_published_ones_and_not_one_ratio(heads: int) -> None:
    assert_same(biases.alibi(heads).slopes, published_slopes(heads))
    if heads & (heads - 1):
        assert not np.allclose(biases.alibi(heads).slopes, [2 ** (-8 * (n + 1) / heads) for n in range(heads)])


def test_a_model_with_other_slopes_gives_its_own() -> None:
    q, k, v, slopes = spread(3, 4, 5), spread(3, 6, 5), spread(3, 6, 2), np.array([0.5, 0.2, 0.08])
    out = dot_product_attention(q, k, v, bias=biases.alibi(slopes), query_positions=np.array([2, 3, 4, 5]))
    distance = np.abs(np.arange(2, 6)[:, None] - np.arange(6))
    assert_same(out, plain.attention(q, k, v, bias=-slopes[:, None, None] * distance).out)


def t5_bucket(distance: int, buckets: int, bidirectional: bool, max_distance: int) -> int:
    """T5's bucket of ``key - query``, from its paper's description, by one logarithm."""
    first = 0
    if bidirectional:
        buckets //= 2
        first, distance = (buckets, distance) if distance > 0 else (0, -distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return first + min(exact + math.floor(share * (buckets - exact) + 1e-9), buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_a_decode_step_has_the_relative_bias_of_its_position(bidirectional: bool) -> None:
    """At position i the distances are -i..0, as in row i of the prompt; not 0..i, as for a query at position 0."""
    tokens, heads = 7, 2
    table = spread(8, heads)
    bias = biases.relative(table, bidirectional=bidirectional, max_distance=6)
    q, k, v = spread(heads, tokens, 4), spread(heads, tokens, 4, seed=1), spread(heads, tokens, 3)
    index = [[t5_bucket(j - i, 8, bidirectional, 6) for j in range(tokens)] for i in range(tokens)]
    expected = plain.attention(q, k, v, bias=np.moveaxis(table[np.array(index)], -1, 0))
    assert_same(dot_product_attention(q, k, v, bias=bias), expected.out)
    for i in range(tokens):
        step = dot_product_attention(q[:, i : i + 1], k, v, bias=bias, query_positions=i)
        assert_same(step, expected.out[:, i : i + 1])
    at_zero = dot_product_attention(q[:, 5:6], k, v, bias=bias)
    assert not np.allclose(at_zero, expected.out[:, 5:6])


@on_every_library
def test_distances_beyond_the_table_are_clamped_on_every_library(library: str) -> None:
    """JAX fills or clamps an index out of range in silence, so none is ever made."""
    table = spread(8, 2)
    q, k, v = spread(2, 1, 4), spread(2, 3, 4), spread(2, 3, 2)
    keys = np.array([-(10**6), 0, 10**6])
    answer = attention(library, q, k, v, bias=biases.relative(table, max_distance=6), key_positions=keys)
    expected = plain.attention(q, k, v, bias=table[[3, 0, 7]].T[:, None, :])
    assert_same(answer.out, expected.out)
