"""In which dtype is computed, what large and small numbers do, and what the array libraries differ in."""

from typing import Any

import array_api_strict
import ml_dtypes
import numpy as np
import pytest

from attention_np import attention_scores, biases, dot_product_attention, masks
from tests.core.field_reports import plain
from tests.core.field_reports.libraries import assert_same, attention, on_every_library, spread

BFLOAT16 = ml_dtypes.bfloat16
SIXTEEN_BITS = [np.float16, BFLOAT16]


@on_every_library
def test_float64_is_computed_in_float64(library: str) -> None:
    """Accuracy, not only the dtype: the error is that of float64."""
    q, k, v = spread(2, 5, 8), spread(2, 7, 8), spread(2, 7, 3)
    answer, expected = attention(library, q, k, v), plain.attention(q, k, v)
    for name in ("out", "lse", "weights"):
        assert getattr(answer, name).dtype == np.float64
        assert_same(getattr(answer, name), getattr(expected, name), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("dtype", [*SIXTEEN_BITS, np.float32])
def test_sixteen_bits_are_computed_in_float32_and_rounded_once(dtype: Any) -> None:
    q, k, v = (x.astype(dtype) for x in (spread(2, 5, 8), spread(2, 7, 8), spread(2, 7, 3)))
    answer = dot_product_attention(q, k, v, return_lse=True, return_weights=True)
    expected = plain.attention(q, k, v)
    assert [x.dtype for x in answer] == [dtype, np.float32, np.float32]
    assert_same(answer.weights, expected.weights, rtol=1e-5)
    assert_same(answer.lse, expected.lse, rtol=1e-5)
    epsilon = float(ml_dtypes.finfo(dtype).eps)
    assert_same(answer.out, expected.out, rtol=0.51 * epsilon, atol=1e-5)


def test_products_too_large_for_float16_do_not_overflow() -> None:
    q = np.full((2, 4), 200, np.float16)
    k, v = np.stack([np.full(4, x, np.float16) for x in (100, 200, 150)]), np.arange(3, dtype=np.float16)[:, None]
    with np.errstate(over="ignore"):
        assert (q[:1] @ k[1]).dtype == np.float16
        assert np.isinf((q[:1] @ k[1])[0])
    assert dot_product_attention(q, k, v).tolist() == [[1], [1]]


@pytest.mark.parametrize("level", [-6e4, -1e30, 6e4, 1e30])
def test_only_differences_of_logits_matter(level: float) -> None:
    """No running maximum starts at a finite number, so no level of the logits is too low or too high."""
    q, k, v = np.array([[1.0]]), np.array([[level], [level * (1 + 1e-12)]]), np.array([[1.0], [3.0]])
    expected = plain.attention(q, k, v, scale=1.0)
    assert_same(dot_product_attention(q, k, v, scale=1.0), expected.out)
    shifted = dot_product_attention(np.array([[1.0]]), np.array([[0.0], [1.0]]), v, scale=1.0, bias=np.full(2, -1e5))
    assert_same(shifted, plain.attention([[1.0]], [[0.0], [1.0]], v, scale=1.0).out)


@pytest.mark.parametrize("score", [60.0, 1e3, 1e30, -1e30])
def test_a_soft_cap_saturates_and_never_overflows(score: float) -> None:
    cap = 20.0
    capped = attention_scores(np.array([[score]]), np.array([[1.0], [0.0]]), scale=1.0, softcap=cap, stage="capped")
    assert_same(capped, [[np.copysign(cap * min(1, np.tanh(abs(score) / cap)), score), 0]])


def test_a_soft_cap_comes_before_bias_and_mask() -> None:
    """So hidden keys stay hidden, and a bias is neither capped nor scaled; a length past a tile's end is no key."""
    q, k, v = spread(2, 3, 4), spread(2, 67, 4), spread(2, 67, 5)
    call = {"softcap": 0.7, "scale": 0.6, "bias": spread(3, 67)}
    lengths, seen = masks.key_lengths(65), np.arange(67) < 65
    answer = dot_product_attention(q, k, v, mask=lengths, **call, return_weights=True)
    expected = plain.attention(q, k, v, mask=seen, **call)
    assert_same(answer.out, expected.out)
    assert not answer.weights[..., 65:].any()
    cut = {**call, "bias": call["bias"][:, :65]}
    assert_same(dot_product_attention(q, k[:, :65], v[:, :65], **cut), expected.out)


@pytest.mark.parametrize("scale", [-0.7, -1e-3, 0.0, 3.0])
def test_a_scale_of_any_sign_multiplies_the_product_and_not_the_bias(scale: float) -> None:
    q, k, v, bias = spread(2, 3, 4), spread(2, 5, 4), spread(2, 5, 7), spread(3, 5)
    answer = dot_product_attention(q, k, v, scale=scale, bias=bias, return_weights=True)
    assert_same(answer.weights, plain.attention(q, k, v, scale=scale, bias=bias).weights)
    biased = attention_scores(q, k, scale=scale, bias=bias, stage="biased")
    assert_same(biased - attention_scores(q, k, scale=scale, stage="scaled"), np.broadcast_to(bias, biased.shape))


@on_every_library
def test_a_sink_takes_its_share_wherever_the_logits_lie(library: str) -> None:
    """A logit a head in the denominator: shifted with the maximum, not scaled, capped, biased or masked."""
    q, k, v = spread(2, 3, 4), spread(2, 5, 4), spread(2, 5, 7)
    for level in (-40.0, 0.0, 40.0):
        call = {"bias": np.full(5, level), "softcap": 3.0, "sinks": np.array([level - 1, level + 2])}
        answer, expected = attention(library, q, k, v, **call), plain.attention(q, k, v, **call)
        assert_same(answer.weights, expected.weights)
        assert_same(answer.lse, expected.lse)
        if library == "jax":
            break  # a level is enough to compile


def test_a_sink_moves_with_the_logits_and_minus_infinity_is_none() -> None:
    q, k, v = spread(2, 3, 4), spread(2, 5, 4), spread(2, 5, 7)
    near, far = (dot_product_attention(q, k, v, bias=np.full(5, x), sinks=np.array([x, x + 1])) for x in (0.0, -300.0))
    assert_same(near, far)
    assert_same(dot_product_attention(q, k, v, sinks=np.full(2, -np.inf)), plain.attention(q, k, v).out)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
@pytest.mark.parametrize("keys", [257, 512, 4096])
def test_many_equal_weights_still_sum_to_one(dtype: Any, keys: int) -> None:
    """A running sum of ones in bfloat16 sticks at 256, in float16 at 2048: sums are taken in float32."""
    q, k, v = np.zeros((1, 2), dtype), np.zeros((keys, 2), dtype), np.ones((keys, 1), dtype)
    answer = dot_product_attention(q, k, v, return_lse=True, return_weights=True)
    assert_same(answer.weights, np.full((1, keys), 1 / keys), rtol=1e-6)
    assert_same(answer.lse, [np.log(keys)], rtol=1e-6)
    assert answer.out == 1


def test_the_scaled_query_is_not_rounded_back_to_sixteen_bits() -> None:
    scale = 128**-0.5
    q, k = np.array([[1 + 2**-7, 0]], BFLOAT16), np.array([[1, 0]], BFLOAT16)
    exact, rounded = (1 + 2**-7) * scale, float(BFLOAT16((1 + 2**-7) * scale))
    assert abs(exact - rounded) > 1e-5
    assert_same(attention_scores(q, k, scale=scale, stage="scaled"), [[exact]], rtol=1e-7)


@on_every_library
def test_dtypes_promote_as_arrays_do(library: str) -> None:
    q, k, v = spread(3, 4).astype(np.float16), spread(5, 4).astype(np.float32), spread(5, 2).astype(np.float32)
    answer = attention(library, q, k, v)
    assert answer.out.dtype == np.float32
    assert_same(answer.out, plain.attention(q, k, v).out, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.bool_, np.complex64])
@pytest.mark.parametrize("which", ["query", "key", "value"])
def test_other_kinds_of_numbers_are_refused_not_truncated(dtype: Any, which: str) -> None:
    arrays = {"query": np.eye(2), "key": 3 * np.eye(2), "value": np.array([[10.0, 20], [30, 40]])}
    arrays[which] = arrays[which].astype(dtype)
    with pytest.raises(TypeError, match=f"`{which}` has dtype {np.dtype(dtype)}; attention needs float16"):
        dot_product_attention(**arrays)


def test_float16_beside_bfloat16_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`query` is float16 but `(key|value)` is bfloat16"):
        dot_product_attention(np.ones((2, 3), np.float16), np.ones((4, 3), BFLOAT16), np.ones((4, 3), BFLOAT16))


def test_python_numbers_beside_arrays_work_in_the_strictest_library() -> None:
    """Integers for scale, cap, positions and slopes, on a library that promotes nothing by itself."""
    q, k, v = (array_api_strict.asarray(x) for x in (spread(2, 3, 4), spread(2, 5, 4), spread(2, 5, 7)))
    call = {"scale": 1, "softcap": 2, "query_positions": 2, "mask": masks.causal() & masks.sliding_window(3, 0)}
    out = dot_product_attention(q, k, v, **call, bias=biases.alibi(2))
    distance = np.abs(2 + np.arange(3)[:, None] - np.arange(5))
    bias, seen = -np.array([2.0**-4, 2.0**-8])[:, None, None] * distance, plain.window(3, 5, 3, 0, 2)
    expected = plain.attention(np.asarray(q), np.asarray(k), np.asarray(v), mask=seen, bias=bias, scale=1, softcap=2)
    assert_same(np.asarray(out), expected.out)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_no_number_of_the_call_widens_the_result(dtype: Any) -> None:
    """NumPy's scalars are numbers; arrays of no axes are not, since libraries disagree how they promote."""
    q, k, v = (x.astype(dtype) for x in (spread(3, 4), spread(5, 4), spread(5, 2)))
    for half in (0.5, np.float64(0.5), np.float32(0.5), np.float16(0.5)):
        out = dot_product_attention(q, k, v, scale=half, softcap=half, bias=np.zeros(5), sinks=np.zeros(1))
        assert out.dtype == dtype
    with pytest.raises(TypeError, match=r"`scale` must be a Python number.*belongs into `query`"):
        dot_product_attention(q, k, v, scale=np.array(0.5))


def test_bfloat16_works_under_numpy_which_does_not_know_it() -> None:
    with pytest.raises((TypeError, ValueError)):
        np.finfo(BFLOAT16)
    q, k, v = (x.astype(BFLOAT16) for x in (spread(2, 3, 4), spread(2, 5, 4), spread(2, 5, 7)))
    mask = masks.causal() | masks.prefix(2)
    out = dot_product_attention(q, k, v, mask=mask, bias=spread(3, 5).astype(BFLOAT16), softcap=4.0)
    assert out.dtype == BFLOAT16
    seen = plain.causal(3, 5) | (np.arange(5) < 2)
    expected = plain.attention(q, k, v, mask=seen, bias=spread(3, 5).astype(BFLOAT16), softcap=4.0)
    assert_same(out.astype(np.float32), expected.out, rtol=2**-8, atol=1e-5)
