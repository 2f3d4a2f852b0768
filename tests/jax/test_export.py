"""``jax.export`` saves functions that take masks, biases, dropout and layers, and reads them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the kernel under test is JAX's")
pytest.importorskip("flatbuffers", reason="jax.export writes files by flatbuffers: pip install flatbuffers")
import jax.numpy as jnp  # noqa: E402  after the skip
from jax import export  # noqa: E402

import attention_jax as attention  # noqa: E402
from attention_jax import biases, masks  # noqa: E402

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 3)), jnp.float32)


def every_second(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query + key) % 2 == 0


def again(fn: Callable[..., Any], *given: Any) -> Any:
    """What the saved and reread function returns."""
    return export.deserialize(export.export(jax.jit(fn))(*given).serialize()).call(*given)


def attend(x: Any, call: dict[str, Any]) -> Any:
    return attention.dot_product_attention(x, x, x, **call)


@pytest.mark.parametrize(
    "call",
    [
        {"mask": masks.key_lengths(jnp.asarray(3)) & masks.sliding_window(2, None) | masks.global_tokens(1)},
        {"mask": masks.rule(every_second) & ~masks.dilated(3), "dropout": attention.dropout(0.5, seed=jnp.asarray(7))},
        {
            "bias": biases.alibi(2) + biases.dense(jnp.ones((5, 5))),
            "mask": masks.segments(jnp.asarray([0, 0, 1, 1, -1])),
        },
    ],
    ids=["lengths", "rule", "bias"],
)
def test_a_saved_call_gives_the_same(call: dict[str, Any]) -> None:
    np.testing.assert_allclose(again(attend, X, call), attend(X, call), rtol=1e-6)


@pytest.mark.slow
def test_a_saved_layer_gives_the_same() -> None:
    layer = attention.init(
        attention.MultiHeadAttentionWrapper, jax.random.key(0), d_in=3, d_out_kq=2, d_out_v=4, num_heads=2
    )
    np.testing.assert_allclose(again(lambda layer, x: layer(x), layer, X), layer(X), rtol=1e-6)


@pytest.mark.slow
def test_the_tiled_kernel_is_saved_too() -> None:
    mask = masks.key_lengths(jnp.asarray(3)) & masks.causal()

    def gradient(x: Any, mask: Any) -> Any:
        return jax.grad(lambda x: (attention.dot_product_attention(x, x, x, mask=mask, impl="tiled") ** 2).sum())(x)

    np.testing.assert_allclose(again(gradient, X, mask), gradient(X, mask), rtol=1e-6)


def test_a_function_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="define it by `def`"):
        again(attend, X, {"mask": masks.rule(lambda batch, head, query, key: query >= key)})
