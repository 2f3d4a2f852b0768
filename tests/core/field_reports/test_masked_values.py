"""What stands at a masked pair counts for nothing, forward and backward: NaN, infinities, huge logits."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attention_np import dot_product_attention, masks, vjp
from tests.core.field_reports import plain
from tests.core.field_reports.libraries import assert_same, attention, evaluate, on_every_library, spread

POISONS = (np.nan, np.inf, -np.inf, 1e30)
HEADS, QUERIES, KEYS, DEPTH, VALUE_DEPTH, HIDDEN = 2, 3, 5, 4, 6, 3


def problem(poison: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Key and value number ``HIDDEN`` are poisoned in one component each."""
    q, k, v = spread(HEADS, QUERIES, DEPTH), spread(HEADS, KEYS, DEPTH), spread(HEADS, KEYS, VALUE_DEPTH)
    k[:, HIDDEN, 1] = v[:, HIDDEN, 2] = poison
    return q, k, v


def gradients_of_everything(q: Any, k: Any, v: Any, **call: Any) -> Any:
    result, pullback = vjp(q, k, v, **call)
    return result.out, result.lse, pullback(result.out, result.lse)[:3]


@pytest.mark.parametrize("poison", POISONS)
def test_a_poisoned_key_that_is_masked_counts_as_zeros_to_the_bit(poison: float) -> None:
    mask = np.arange(KEYS) != HIDDEN
    clean, poisoned = (gradients_of_everything(*problem(x), mask=mask) for x in (0.0, poison))
    for a, b in zip((*clean[:2], *clean[2]), (*poisoned[:2], *poisoned[2]), strict=True):
        assert np.array_equal(a, b)


def test_a_poisoned_key_that_is_masked_counts_for_nothing_under_jit() -> None:
    poisons = (0.0, *POISONS)
    batch = [np.stack(x) for x in zip(*map(problem, poisons), strict=True)]
    out, lse, gradients = evaluate("jax", gradients_of_everything, *batch, mask=np.arange(KEYS) != HIDDEN)
    for x in (out, lse, *gradients):
        for poisoned in x[1:]:
            assert_same(poisoned, x[0])


@on_every_library
def test_a_masked_key_is_a_deleted_key(library: str) -> None:
    q, k, v = problem(np.nan)
    left = np.arange(KEYS) != HIDDEN
    assert_same(attention(library, q, k, v, mask=left).out, plain.attention(q, k[:, left], v[:, left]).out)


def test_a_poisoned_key_that_one_row_sees_poisons_that_row_only() -> None:
    q, k, v = problem(np.nan)
    mask = np.ones((QUERIES, KEYS), dtype=bool)
    mask[1:, HIDDEN] = False
    out = dot_product_attention(q, k, v, mask=mask)
    assert np.isnan(out[:, 0]).all()
    assert_same(out[:, 1:], plain.attention(q, k, v, mask=mask).out[:, 1:])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("level", [-60000.0, -2e4, 0.0, 2e4, 60000.0])
def test_no_level_of_the_visible_logits_reaches_a_fill_value(dtype: Any, level: float) -> None:
    """Logits near the smallest 16-bit number, where a fill of -1e4, -5e4 or the dtype's minimum would win."""
    q, k = np.array([[1.0]], dtype), np.array([[0.0], [1.0], [0.0], [3.0]], dtype)
    v, mask = np.array([[1.0], [2.0], [64.0], [4.0]], dtype), np.array([True, True, False, True])
    bias = np.full(4, level)
    expected = plain.attention([[1.0]], k[mask].astype(float), v[mask].astype(float), scale=1.0)
    answer = dot_product_attention(q, k, v, mask=mask, bias=bias, scale=1.0, return_weights=True)
    assert answer.weights[0, 2] == 0
    assert_same(answer.weights[:, mask], expected.weights, rtol=1e-2 if level else 1e-6)
    nothing = dot_product_attention(q, k, v, mask=np.zeros(4, dtype=bool), bias=bias, scale=1.0)
    assert nothing.dtype == dtype
    assert nothing == 0


def test_the_lowest_float16_as_a_bias_stays_finite_beside_low_logits() -> None:
    lowest = np.float16(-65504)
    with np.errstate(over="ignore"):
        assert lowest + np.float16(-16) == -np.inf  # what goes wrong where the sum is taken in float16
        assert np.float16(-1e9) == -np.inf
    q, k, v = (
        np.array([[4.0]], np.float16),
        np.array([[-4.0], [-8.0]], np.float16),
        np.array([[1.0], [3.0]], np.float16),
    )
    answer = dot_product_attention(q, k, v, bias=np.full(2, lowest), scale=1.0, return_weights=True)
    assert_same(answer.weights, plain.attention(q, k, v, scale=1.0).weights, rtol=1e-2, atol=1e-8)


def test_document_boundaries_are_the_documents_apart_in_three_ways() -> None:
    lengths, q, k, v = (3, 1, 4), spread(2, 8, 4), spread(2, 8, 4, seed=1), spread(2, 8, 5)
    ids = np.repeat(np.arange(3), lengths)
    allowed = (ids[:, None] == ids) & plain.causal(8, 8)
    spans = [slice(int(stop) - n, int(stop)) for n, stop in zip(lengths, np.cumsum(lengths), strict=True)]
    apart = [
        plain.attention(q[:, s], k[:, s], v[:, s], mask=plain.causal(s.stop - s.start, s.stop - s.start)) for s in spans
    ]
    expected = np.concatenate([part.out for part in apart], axis=1)
    assert_same(dot_product_attention(q, k, v, mask=masks.segments(ids) & masks.causal()), expected)
    assert_same(dot_product_attention(q, k, v, mask=allowed), expected)
    assert_same(dot_product_attention(q, k, v, bias=np.where(allowed, 0.0, -np.inf)), expected)


@on_every_library
def test_a_masked_logit_far_above_the_others_has_gradient_zero(library: str) -> None:
    """The exponential of the masked logit would overflow: its gradient is 0, and that of the others by hand."""
    q, k, v = [[1.0]], [[1.0], [1.0], [1000.0]], [[1.0], [0.0], [5.0]]

    def key_gradient(q: Any, k: Any, v: Any, mask: Any, one: Any) -> Any:
        return vjp(q, k, v, scale=1.0, mask=mask)[1](one).key

    arrays = [np.array(x) for x in (q, k, v)]
    found = evaluate(library, key_gradient, *arrays, np.array([True, True, False]), np.ones((1, 1)))
    assert_same(found, [[0.25], [-0.25], [0.0]])


def test_an_all_minus_infinity_row_has_finite_gradients_without_any_repair() -> None:
    q, k, v = spread(QUERIES, DEPTH), spread(KEYS, DEPTH), spread(KEYS, VALUE_DEPTH)
    bias = np.zeros((QUERIES, KEYS))
    bias[1] = -np.inf
    result, pullback = vjp(q, k, v, bias=bias)
    gradients = pullback(np.ones_like(result.out), np.ones_like(result.lse))
    assert all(np.isfinite(x).all() for x in gradients[:4])
    assert not gradients.query[1].any()
    assert not gradients.bias[1].any()
    result, pullback = vjp(q[::2], k, v)
    others = pullback(np.ones_like(result.out), np.ones_like(result.lse))
    assert_same(gradients.query[::2], others.query)
    assert_same(gradients.value, others.value)
