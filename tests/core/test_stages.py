"""The scores by stage, scale, cap, sinks and grouped heads, each against the formula written out for one pair."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from attention_np import attention_scores, biases, dot_product_attention, masks
from tests.core.libraries import EACH_ONCE, Library

B, HQ, HKV, LQ, LK, D, DV = 3, 4, 2, 5, 6, 7, 8
RNG = np.random.default_rng(0)
Q, K, V = (RNG.normal(size=(B, h, length, d)) for h, length, d in ((HQ, LQ, D), (HKV, LK, D), (HKV, LK, DV)))
BIAS, SEEN = RNG.normal(size=(HQ, LQ, LK)), RNG.random((B, 1, LQ, LK)) < 0.6
SINKS = np.array([0.3, -np.inf, 2.0, -1.5])
STAGES = ["scaled", "capped", "biased", "masked"]


def one_score(b: int, h: int, i: int, j: int, stage: str, scale: float, softcap: float | None) -> float:
    s = scale * sum(float(Q[b, h, i, d]) * float(K[b, h // (HQ // HKV), j, d]) for d in range(D))
    if stage == "scaled":
        return s
    s = s if softcap is None else softcap * math.tanh(s / softcap)
    if stage == "capped":
        return s
    s = s + float(BIAS[h, i, j])
    return s if stage == "biased" or SEEN[b, 0, i, j] else -math.inf


def all_scores(stage: str, scale: float, softcap: float | None) -> np.ndarray:
    scores = np.empty((B, HQ, LQ, LK))
    for b, h, i, j in product(range(B), range(HQ), range(LQ), range(LK)):
        scores[b, h, i, j] = one_score(b, h, i, j, stage, scale, softcap)
    return scores


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("scale", [None, 0.7, -2, 0.0])
@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_is_its_line_of_the_formula(stage: Any, scale: float | None, softcap: float | None) -> None:
    got = attention_scores(Q, K, stage=stage, scale=scale, softcap=softcap, bias=BIAS, mask=SEEN)
    expected = all_scores(stage, 1 / math.sqrt(D) if scale is None else scale, softcap)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("stage", STAGES)
@EACH_ONCE
def test_stages_on_every_library(library: Library, stage: Any) -> None:
    def score(q: Any, k: Any, bias: Any, seen: Any) -> Any:
        return attention_scores(q, k, stage=stage, softcap=1.5, bias=bias, mask=seen)

    got = library.numpy(library.call(score, *(x.astype(np.float32) for x in (Q, K, BIAS)), SEEN))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, all_scores(stage, 1 / math.sqrt(D), 1.5), rtol=1e-4, atol=1e-5)


def test_the_masked_stage_is_what_softmax_takes() -> None:
    call = {"bias": BIAS, "mask": SEEN, "softcap": 2.0}
    scores = attention_scores(Q, K, **call)
    result = dot_product_attention(Q, K, V, sinks=SINKS, return_lse=True, return_weights=True, **call)
    total = np.exp(scores).sum(-1) + np.exp(SINKS)[:, None]
    np.testing.assert_allclose(result.weights, np.exp(scores) / total[..., None], rtol=1e-12)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(result.lse, np.log(total), rtol=1e-12)
    out = np.einsum("bhij,bhjd->bhid", result.weights, np.repeat(V, HQ // HKV, axis=1))
    np.testing.assert_allclose(result.out, out, rtol=1e-12)


def test_scores_before_the_mask_do_not_depend_on_it() -> None:
    for stage in STAGES[:3]:
        masked = attention_scores(Q, K, stage=stage, bias=BIAS, mask=SEEN)  # type: ignore[arg-type]  # a word of the table
        np.testing.assert_array_equal(masked, attention_scores(Q, K, stage=stage, bias=BIAS))  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_scores_have_the_compute_dtype(dtype: Any) -> None:
    got = attention_scores(Q.astype(dtype), K.astype(dtype), bias=BIAS, mask=SEEN)
    assert got.dtype == (np.float64 if dtype == np.float64 else np.float32)


def test_plain_arrays_have_plain_scores() -> None:
    scores = attention_scores(Q[0, 0], K[0, 0], mask=masks.causal())
    assert scores.shape == (LQ, LK)
    np.testing.assert_array_equal(scores, attention_scores(Q[:1, :1], K[:1, :1], mask=masks.causal())[0, 0])


# Scale


def test_scale_is_a_number_of_any_kind() -> None:
    expected = dot_product_attention(Q, K, V, scale=2.0)
    for scale in (2, np.float32(2), np.float64(2), np.int64(2)):
        np.testing.assert_array_equal(dot_product_attention(Q, K, V, scale=scale), expected)


def test_scale_belongs_to_the_scores_as_a_factor_of_query_does() -> None:
    np.testing.assert_allclose(
        dot_product_attention(Q, K, V, scale=-1.5), dot_product_attention(-1.5 * Q, K, V, scale=1.0), rtol=1e-10
    )


def test_scale_0_is_the_mean_of_the_visible_values() -> None:
    got = dot_product_attention(Q, K, V, scale=0.0, mask=masks.causal())
    for i in range(LQ):
        np.testing.assert_allclose(got[:, :2, i], np.stack([V[:, 0, : i + 1].mean(1)] * 2, axis=1), rtol=1e-12)


# Cap, bias, mask in this order


def test_the_cap_comes_before_bias_and_mask() -> None:
    q, k = np.array([[10.0]]), np.array([[10.0], [10.0], [-10.0]])
    bias, seen = np.array([0.0, 100.0, 0.0]), np.array([True, True, False])
    scores = attention_scores(q, k, softcap=5.0, bias=bias, mask=seen)
    np.testing.assert_allclose(scores, [[5.0, 105.0, -np.inf]], rtol=1e-12)


def test_a_large_cap_changes_little_and_a_small_one_flattens() -> None:
    plain = dot_product_attention(Q, K, V)
    np.testing.assert_allclose(dot_product_attention(Q, K, V, softcap=1e8), plain, rtol=1e-10)
    flat = dot_product_attention(Q, K, V, softcap=1e-9)
    np.testing.assert_allclose(
        flat[:, :2], np.broadcast_to(V[:, :1].mean(2, keepdims=True), flat[:, :2].shape), rtol=1e-7
    )


# Sinks


def test_a_sink_of_minus_infinity_is_no_sink() -> None:
    expected = dot_product_attention(Q, K, V, mask=SEEN, return_lse=True)
    got = dot_product_attention(Q, K, V, mask=SEEN, sinks=np.full(HQ, -np.inf), return_lse=True)
    np.testing.assert_array_equal(got.out, expected.out)
    np.testing.assert_array_equal(got.lse, expected.lse)


def test_a_sink_is_neither_scaled_nor_capped_biased_or_masked() -> None:
    call: dict[str, Any] = {
        "scale": 0.0,
        "softcap": 0.1,
        "bias": np.full(LK, 3.0),
        "return_weights": True,
        "return_lse": True,
    }
    result = dot_product_attention(Q, K, V, sinks=np.full(HQ, 7.0), **call)
    total = LK * math.exp(3) + math.exp(7)
    np.testing.assert_allclose(result.weights, math.exp(3) / total, rtol=1e-12)
    np.testing.assert_allclose(result.lse, math.log(total), rtol=1e-12)
    nothing = dot_product_attention(Q, K, V, sinks=SINKS, mask=masks.prefix(0), return_lse=True)
    np.testing.assert_array_equal(nothing.lse, np.broadcast_to(SINKS[:, None], (B, HQ, LQ)))
    assert not nothing.out.any()


# Grouped heads and a depth of value of its own


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_grouped_heads_are_repeated_heads(kv_heads: int) -> None:
    rng = np.random.default_rng(kv_heads)
    q, k, v = (rng.normal(size=(2, h, n, d)) for h, n, d in ((6, 3, 7), (kv_heads, 5, 7), (kv_heads, 5, 11)))
    bias = biases.alibi(6) + rng.normal(size=(6, 3, 5))
    call = {"bias": bias, "mask": masks.causal(), "query_positions": 1}
    got = dot_product_attention(q, k, v, **call)
    k, v = (np.repeat(x, 6 // kv_heads, axis=1) for x in (k, v))
    assert got.shape == (2, 6, 3, 11)
    np.testing.assert_allclose(got, dot_product_attention(q, k, v, **call), rtol=1e-12)
    heads = (
        [q[:, h : h + 1] for h in range(6)],
        [k[:, h : h + 1] for h in range(6)],
        [v[:, h : h + 1] for h in range(6)],
    )
    for h, (query, key, value) in enumerate(zip(*heads, strict=True)):
        one = {**call, "bias": biases.alibi(np.array([bias.left.slopes[h]])) + bias.right.array[h]}
        np.testing.assert_allclose(got[:, h : h + 1], dot_product_attention(query, key, value, **one), rtol=1e-12)
