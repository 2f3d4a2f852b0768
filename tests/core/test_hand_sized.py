"""Attention small enough to be computed by hand: one number after the other of the formula, with unequal sizes.

Scores are logarithms of small integers where they can be, so that weights are simple fractions. Every test takes the
package as ``core``: the mutants are held against the same tests.
"""

from math import exp, inf, log
from types import ModuleType

import numpy as np
import pytest

ONE = np.array([[1.0]])
TWO_QUERIES = np.array([[1.0], [2.0]])
THREE_KEYS = np.log(np.array([[1.0], [2.0], [3.0]]))  # against query 1: weights 1, 2, 3 of 6; against 2: 1, 4, 9 of 14
THREE_VALUES = np.array([[1.0, 0, 0, 2], [0, 1, 0, 2], [0, 0, 1, 5]])
SIXTHS, FOURTEENTHS = np.array([1, 2, 3]) / 6, np.array([1, 4, 9]) / 14


def close(found: np.ndarray, expected: object) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-15)


def visible(mask: object, queries: int, keys: int, **more: object) -> list[str]:
    """The dense mask of one head, a row a string."""
    return ["".join("x" if x else "." for x in row) for row in mask.array(queries, keys, xp=np, **more)[0]]


def test_out_lse_and_weights(core: ModuleType) -> None:
    out, lse, weights = core.dot_product_attention(
        TWO_QUERIES, THREE_KEYS, THREE_VALUES, scale=1.0, return_lse=True, return_weights=True
    )
    close(weights, [SIXTHS, FOURTEENTHS])
    close(out, [[1 / 6, 2 / 6, 3 / 6, 21 / 6], [1 / 14, 4 / 14, 9 / 14, 55 / 14]])
    close(lse, [log(6), log(14)])


def test_only_what_was_asked_for(core: ModuleType) -> None:
    arrays = TWO_QUERIES, THREE_KEYS, THREE_VALUES
    assert core.dot_product_attention(*arrays).shape == (2, 4)
    assert core.dot_product_attention(*arrays, return_lse=True).weights is None
    assert core.dot_product_attention(*arrays, return_weights=True).lse is None


def test_default_scale_is_one_by_the_root_of_depth(core: ModuleType) -> None:
    query, key = np.repeat(TWO_QUERIES, 4, axis=1), np.repeat(THREE_KEYS, 4, axis=1) / 2  # q.k = 2 q k, halved again
    out = core.dot_product_attention(query, key, THREE_VALUES)
    close(out[:, :3], [SIXTHS, FOURTEENTHS])


def test_depth_zero_weighs_all_keys_alike(core: ModuleType) -> None:
    out = core.dot_product_attention(np.ones((2, 0)), np.ones((3, 0)), THREE_VALUES)
    close(out, [[1 / 3, 1 / 3, 1 / 3, 3]] * 2)


def test_zero_and_negative_scale(core: ModuleType) -> None:
    close(core.dot_product_attention(ONE, THREE_KEYS, THREE_VALUES, scale=0.0)[0, :3], [1 / 3] * 3)
    close(core.dot_product_attention(ONE, THREE_KEYS, THREE_VALUES, scale=-1.0)[0, :3], [6 / 11, 3 / 11, 2 / 11])


def test_softcap(core: ModuleType) -> None:
    key = np.array([[2 * log(2)], [0.0]])  # 2 tanh(log 2) = 1.2
    out = core.dot_product_attention(ONE, key, np.eye(2), scale=1.0, softcap=2.0)
    close(out, [[exp(1.2) / (exp(1.2) + 1), 1 / (exp(1.2) + 1)]])


def test_softcap_comes_before_bias(core: ModuleType) -> None:
    key, bias = np.array([[2 * log(2)], [0.0]]), np.array([log(3), 0.0])
    out = core.dot_product_attention(ONE, key, np.eye(2), scale=1.0, softcap=2.0, bias=bias)
    close(out, [[3 * exp(1.2) / (3 * exp(1.2) + 1), 1 / (3 * exp(1.2) + 1)]])


def test_softcap_comes_before_mask(core: ModuleType) -> None:
    seen = np.array([True, True, False])
    out = core.dot_product_attention(ONE, 0 * THREE_KEYS, THREE_VALUES, softcap=0.5, mask=seen)
    close(out, [[1 / 2, 1 / 2, 0, 2]])


def test_stages_of_the_scores(core: ModuleType) -> None:
    call = {"scale": 2.0, "softcap": 4.0, "bias": np.array([0.5, 0.0]), "mask": np.array([True, False])}
    key = np.array([[2 * log(2)], [2 * log(3)]])
    stages = {
        "scaled": [4 * log(2), 4 * log(3)],
        "capped": [4 * 0.6, 4 * 0.8],
        "biased": [2.9, 3.2],
        "masked": [2.9, -inf],
    }
    for stage, expected in stages.items():
        close(core.attention_scores(ONE, key, stage=stage, **call), [expected])


def test_bias_is_not_scaled(core: ModuleType) -> None:
    bias = np.array([log(2), 0.0, 0.0])
    out = core.dot_product_attention(ONE, 0 * THREE_KEYS, THREE_VALUES, scale=3.0, bias=bias)
    close(out[0, :3], [1 / 2, 1 / 4, 1 / 4])


def test_sink_is_in_the_denominator_and_the_lse_only(core: ModuleType) -> None:
    result = core.dot_product_attention(
        TWO_QUERIES, THREE_KEYS, THREE_VALUES, scale=1.0, sinks=np.array([log(4)]), return_lse=True, return_weights=True
    )
    close(result.weights, [[0.1, 0.2, 0.3], [1 / 18, 4 / 18, 9 / 18]])
    close(result.out[0], [0.1, 0.2, 0.3, 2.1])
    close(result.lse, [log(10), log(18)])


def test_sink_is_neither_scaled_nor_capped_nor_biased_nor_masked(core: ModuleType) -> None:
    call = {"scale": 3.0, "softcap": 0.1, "bias": np.full(3, log(2)), "mask": np.array([True, True, False])}
    result = core.dot_product_attention(
        ONE, 0 * THREE_KEYS, THREE_VALUES, sinks=np.array([log(5)]), return_lse=True, **call
    )
    close(result.out, [[2 / 9, 2 / 9, 0, 8 / 9]])
    close(result.lse, [log(9)])


def test_a_sink_a_head(core: ModuleType) -> None:
    query = np.ones((3, 1, 1))
    out = core.dot_product_attention(query, np.zeros((1, 2, 1)), np.ones((1, 2, 1)), sinks=np.array([-inf, log(2), 0]))
    close(out[:, 0, 0], [1, 1 / 2, 2 / 3])


def test_a_row_that_sees_nothing(core: ModuleType) -> None:
    close(core.dot_product_attention(TWO_QUERIES, THREE_KEYS, THREE_VALUES, mask=np.array(False)), np.zeros((2, 4)))
    mask = np.array([[False] * 3, [True, False, True]])
    for sinks, lse in ((None, -inf), (np.array([-inf]), -inf), (np.array([0.7]), 0.7)):
        result = core.dot_product_attention(
            TWO_QUERIES, THREE_KEYS, THREE_VALUES, mask=mask, sinks=sinks, return_lse=True, return_weights=True
        )
        close(result.out[0], [0] * 4)
        close(result.weights[0], [0] * 3)
        close(result.lse[0], lse)


def test_no_keys_at_all(core: ModuleType) -> None:
    for sinks, lse in ((None, -inf), (np.array([0.7]), 0.7)):
        result = core.dot_product_attention(
            TWO_QUERIES, THREE_KEYS[:0], THREE_VALUES[:0], sinks=sinks, return_lse=True, return_weights=True
        )
        close(result.out, np.zeros((2, 4)))
        close(result.lse, [lse, lse])
        assert result.weights.shape == (2, 0)


@pytest.mark.parametrize("empty", ["batch", "heads", "queries", "keys", "depth", "value_depth"])
def test_every_empty_size_has_a_shape_and_gradients(core: ModuleType, empty: str) -> None:
    sizes = {"batch": 2, "heads": 4, "queries": 3, "keys": 5, "depth": 7, "value_depth": 6} | {empty: 0}
    batch, heads, queries, keys, depth, value_depth = sizes.values()
    query, key = np.ones((batch, heads, queries, depth)), np.ones((batch, heads // 2, keys, depth))
    value = np.ones((batch, heads // 2, keys, value_depth))
    bias, sinks, mask = np.zeros((keys,)), np.zeros(heads), core.masks.causal()
    result, pullback = core.vjp(query, key, value, mask=mask, bias=bias, sinks=sinks, softcap=1.0)
    gradients = pullback(np.ones_like(result.out), np.ones_like(result.lse))
    assert result.out.shape == (batch, heads, queries, value_depth)
    assert result.lse.shape == (batch, heads, queries)
    for gradient, argument in zip(gradients, (query, key, value, bias, sinks), strict=True):
        assert gradient.shape == argument.shape
        assert np.isfinite(gradient).all()


def test_query_heads_are_grouped_by_neighbours(core: ModuleType) -> None:
    query, key = np.ones((4, 1, 1)), np.zeros((2, 3, 1))
    value = np.array([1.0, 10.0])[:, None, None] * np.ones((2, 3, 1))
    close(core.dot_product_attention(query, key, value)[:, 0, 0], [1, 1, 10, 10])


def test_layouts(core: ModuleType) -> None:
    query, key = np.ones((2, 4, 1)), np.zeros((3, 2, 1))  # (L, H, D)
    value = np.array([1.0, 10.0])[None, :, None] * np.array([1.0, 2.0, 6.0])[:, None, None]
    out, lse, _ = core.dot_product_attention(query, key, value, layout="BLHD", return_lse=True)
    close(out, np.tile([[3.0], [3.0], [30.0], [30.0]], (2, 1, 1)))
    close(lse, np.full((4, 2), log(3)))


def test_batch_axes_broadcast_together(core: ModuleType) -> None:
    query, key = np.ones((1, 1, 2, 1)), np.zeros((3, 1, 1, 5, 1))
    value = np.arange(2.0)[None, :, None, None, None] * np.ones((1, 2, 1, 5, 4))
    result = core.dot_product_attention(query, key, value, return_lse=True, return_weights=True)
    close(result.out, np.broadcast_to(np.arange(2.0)[:, None, None, None], (3, 2, 1, 2, 4)))
    assert result.lse.shape == (3, 2, 1, 2)
    assert result.weights.shape == (3, 2, 1, 2, 5)


def test_dropout_rescales_and_leaves_lse_and_weights(core: ModuleType) -> None:
    dropout = core.dropout(0.75, keep=np.array([True, False, True]))
    result = core.dot_product_attention(
        ONE, THREE_KEYS, THREE_VALUES, scale=1.0, dropout=dropout, return_lse=True, return_weights=True
    )
    close(result.out, [[4 / 6, 0, 12 / 6, 68 / 6]])
    close(result.weights, [SIXTHS])
    close(result.lse, [log(6)])


def test_masks_drawn_by_hand(core: ModuleType) -> None:
    m = core.masks
    assert visible(m.causal(), 3, 5) == ["x....", "xx...", "xxx.."]
    assert visible(m.causal(), 3, 5, query_positions=2) == ["xxx..", "xxxx.", "xxxxx"]
    assert visible(m.causal_lower_right(), 3, 5) == ["xxx..", "xxxx.", "xxxxx"]
    assert visible(m.causal_lower_right(), 4, 2) == ["..", "..", "x.", "xx"]
    assert visible(m.sliding_window(1, 2), 4, 6) == ["xxx...", "xxxx..", ".xxxx.", "..xxxx"]
    assert visible(m.sliding_window(0, None), 3, 4) == ["xxxx", ".xxx", "..xx"]
    assert visible(m.key_lengths(2), 2, 4) == ["xx..", "xx.."]
    assert visible(m.query_lengths(1), 2, 4) == ["xxxx", "...."]
    assert visible(m.segments(np.array([0, 1, -1]), np.array([-1, 1, 0, 0])), 3, 4) == ["..xx", ".x..", "...."]
    assert visible(m.prefix(2), 2, 4, key_positions=1) == ["x...", "x..."]
    assert visible(m.chunked(2), 3, 4, query_positions=1) == ["xx..", "..xx", "..xx"]
    assert visible(m.dilated(3), 2, 5) == ["x..x.", ".x..x"]
    assert visible(m.global_tokens(1), 3, 4) == ["xxxx", "x...", "x..."]
    assert visible(m.causal() & m.prefix(1), 2, 3) == ["x..", "x.."]
    assert visible(m.causal() | m.prefix(2), 3, 4) == ["xx..", "xx..", "xxx."]
    assert visible(~m.causal(), 2, 3) == [".xx", "..x"]


def test_a_mask_in_a_call(core: ModuleType) -> None:
    out = core.dot_product_attention(TWO_QUERIES, THREE_KEYS, THREE_VALUES, scale=1.0, mask=core.masks.causal())
    close(out, [[1, 0, 0, 2], [1 / 5, 4 / 5, 0, 2]])
    out = core.dot_product_attention(
        TWO_QUERIES, THREE_KEYS, THREE_VALUES, scale=1.0, mask=core.masks.causal(), query_positions=np.array([2, 0])
    )
    close(out, [[1 / 6, 2 / 6, 3 / 6, 21 / 6], [1, 0, 0, 2]])


def test_a_bias_of_minus_infinity_masks_and_a_very_negative_one_does_not(core: ModuleType) -> None:
    bias = np.array([[-inf, 0.0, -inf], [-1e30, -inf, -1e30]])
    out, lse, _ = core.dot_product_attention(TWO_QUERIES, 0 * THREE_KEYS, THREE_VALUES, bias=bias, return_lse=True)
    close(out, [[0, 1, 0, 2], [1 / 2, 0, 1 / 2, 3.5]])
    close(lse, [0, -1e30])


def test_scores_far_from_zero(core: ModuleType) -> None:
    for far in (-3e4, 3e4):
        result = core.dot_product_attention(
            ONE, THREE_KEYS + far, THREE_VALUES, scale=1.0, mask=np.array([True, True, False]), return_lse=True
        )
        np.testing.assert_allclose(result.out, [[1 / 3, 2 / 3, 0, 2]], rtol=1e-10)
        np.testing.assert_allclose(result.lse, [far + log(3)], rtol=1e-15)


def test_alibi(core: ModuleType) -> None:
    out = core.dot_product_attention(
        np.ones((2, 1, 1)), np.zeros((1, 3, 1)), THREE_VALUES[None], bias=core.biases.alibi(np.log([2.0, 4.0])),
        query_positions=1,
    )  # fmt: skip
    close(out[:, 0, :3], [[1 / 4, 1 / 2, 1 / 4], [1 / 6, 4 / 6, 1 / 6]])
    assert core.biases.alibi(6).slopes == (1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8)


def test_relative_buckets(core: ModuleType) -> None:
    table = np.arange(8.0)[:, None]  # 4 a side: 0 | 1 | 2-3 | 4 and more before; the same plus 4 after
    bias = core.biases.relative(table, max_distance=8)
    scores = core.attention_scores(np.zeros((2, 1)), np.zeros((9, 1)), bias=bias, query_positions=4, stage="biased")
    close(scores, [[3, 2, 2, 1, 0, 5, 6, 6, 7], [3, 3, 2, 2, 1, 0, 5, 6, 6]])
    bias = core.biases.relative(table[:4], bidirectional=False, max_distance=8)
    scores = core.attention_scores(np.zeros((1, 1)), np.zeros((7, 1)), bias=bias, query_positions=5, stage="biased")
    close(scores, [[3, 3, 2, 2, 1, 0, 0]])


def test_merge(core: ModuleType) -> None:
    outs = [np.array([[2.0, 0]]), np.array([[6.0, 4]]), np.array([[np.nan, np.inf]])]
    out, lse = core.merge(outs, [np.array([log(3)]), np.array([0.0]), np.array([-inf])])
    close(out, [[3, 1]])
    close(lse, [log(4)])


def test_precision_of_float64_and_of_16_bits(core: ModuleType) -> None:
    key = np.array([[0.0], [1e-12]])
    weights = core.dot_product_attention(ONE, key, np.eye(2), scale=1.0, return_weights=True).weights
    assert weights[0, 1] - weights[0, 0] == pytest.approx(5e-13, rel=1e-3)
    half = np.float16
    result = core.dot_product_attention(
        ONE.astype(half),
        np.array([[0], [9.0]], half),
        np.array([[0], [1.0]], half),
        return_lse=True,
        return_weights=True,
    )
    assert result.out.dtype == half
    assert result.lse.dtype == result.weights.dtype == np.float32
    np.testing.assert_allclose(result.weights, [[1 / (1 + exp(9)), 1 / (1 + exp(-9))]], rtol=1e-6)


def test_arguments_are_not_modified(core: ModuleType) -> None:
    arrays = tuple(x.copy() for x in (ONE, THREE_KEYS, THREE_VALUES))
    for x in arrays:
        x.flags.writeable = False
    _, pullback = core.vjp(*arrays, softcap=1.0, mask=core.masks.causal())
    pullback(np.ones((1, 4)))
