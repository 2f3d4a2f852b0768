"""Gradients and vmap under JAX: of a bias in another dtype, of second order, and over a batch with its masks."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attention_np import dot_product_attention, masks, vjp
from tests.core.field_reports import plain
from tests.core.field_reports.libraries import assert_same, evaluate, on_every_library, spread


@pytest.fixture
def jax() -> Any:
    pytest.importorskip("attention_jax", reason="attention_jax needs the `jax` extra")
    return pytest.importorskip("jax")


@on_every_library
def test_a_float32_bias_beside_bfloat16_has_a_sound_gradient(library: str) -> None:
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in (spread(3, 2, 4, 8), spread(3, 2, 6, 8), spread(3, 2, 6, 5)))
    bias = spread(1, 2, 4, 6).astype(np.float32)

    def bias_gradient(q: Any, k: Any, v: Any, bias: Any, cotangent: Any) -> Any:
        return vjp(q, k, v, bias=bias)[1](cotangent).bias

    cotangent = spread(3, 2, 4, 5).astype(ml_dtypes.bfloat16)
    gradient = evaluate(library, bias_gradient, q, k, v, bias, cotangent)
    assert gradient.dtype == np.float32
    assert gradient.shape == bias.shape
    assert_same(gradient.sum(-1), np.zeros((1, 2, 4)), atol=1e-4)
    weights, expected = plain.attention(q, k, v, bias=bias).weights, np.zeros(bias.shape)
    for index in np.ndindex(weights.shape[:-1]):
        item, head, row = index
        pulled = v[item, head].astype(float) @ cotangent[index].astype(float)
        expected[0, head, row] += weights[index] * (pulled - weights[index] @ pulled)
    assert_same(gradient, expected, rtol=1e-3, atol=1e-3)


def test_a_gradient_penalty_has_the_gradient_of_finite_differences(jax: Any) -> None:
    """The gradient of ``|d(out . w)/dq|^2`` with respect to k, a derivative of second order."""
    q, k, v, w = spread(2, 3), spread(4, 3), spread(4, 2), spread(2, 2)

    def penalty(k: Any) -> Any:
        def loss(q: Any) -> Any:
            out = dot_product_attention(q, k, jax.numpy.asarray(v), mask=masks.causal(), query_positions=2)
            return jax.numpy.sum(out * w)

        return jax.numpy.sum(jax.grad(loss)(jax.numpy.asarray(q)) ** 2)

    with jax.enable_x64(True):
        gradient, value = np.asarray(jax.jit(jax.grad(penalty))(k)), jax.jit(penalty)
        step = 1e-5
        for index in ((0, 0), (2, 1), (3, 2)):
            moved = np.zeros_like(k)
            moved[index] = step
            difference = (value(k + moved) - value(k - moved)) / (2 * step)
            assert_same(gradient[index], difference, rtol=1e-6, atol=1e-8)


def test_vmap_with_grouped_heads_and_masks_is_a_loop(jax: Any) -> None:
    """Four query heads on two key heads, and masks of three kinds mapped along with the arrays."""
    q, k, v = spread(3, 4, 5, 6), spread(3, 2, 7, 6), spread(3, 2, 7, 2)
    dense, lengths = spread(3, 5, 7) > -0.5, np.array([7, 0, 4])
    ids, key_ids = np.arange(3)[:, None] + np.arange(5) // 2, np.arange(3)[:, None] + np.arange(7) // 3

    def one(q: Any, k: Any, v: Any, dense: Any, lengths: Any, ids: Any, key_ids: Any) -> Any:
        mask = masks.dense(dense) & masks.key_lengths(lengths) | masks.segments(ids, key_ids)
        return dot_product_attention(q, k, v, mask=mask)

    arguments = (q, k, v, dense, lengths, ids, key_ids)
    with jax.enable_x64(True):
        mapped = np.asarray(jax.jit(jax.vmap(one))(*map(jax.numpy.asarray, arguments)))
    for item in range(3):
        seen = dense[item] & (np.arange(7) < lengths[item]) | (ids[item][:, None] == key_ids[item])
        assert_same(mapped[item], plain.attention(q[item], k[item], v[item], mask=seen).out)
