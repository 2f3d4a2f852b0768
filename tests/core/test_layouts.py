"""The two layouts are one meaning: only query, key, value, out and their gradients change places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_np import Gradients, attention_scores, biases, dot_product_attention, dropout, jvp, masks, vjp
from tests.core.libraries import EACH_ONCE, Library

BATCH, HQ, HKV, LQ, LK, D, DV = (2, 3), 4, 2, 5, 6, 7, 8
RNG = np.random.default_rng(0)
Q, K, V = (RNG.normal(size=(*BATCH, *s)) for s in ((HQ, LQ, D), (HKV, LK, D), (HKV, LK, DV)))
DOUT, DLSE = RNG.normal(size=(*BATCH, HQ, LQ, DV)), RNG.normal(size=(*BATCH, HQ, LQ))


def swap(x: Any) -> Any:
    return np.swapaxes(x, -3, -2)


def call() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "mask": masks.causal() | masks.dense(rng.random((HQ, LQ, LK)) < 0.5),
        "bias": biases.alibi(HQ) + rng.normal(size=(3, HQ, LQ, LK)),
        "sinks": rng.normal(size=HQ),
        "dropout": dropout(0.25, keep=rng.random((*BATCH, HQ, LQ, LK)) < 0.75),
        "query_positions": np.array([3, 1, 0, 2, 2]),
        "softcap": 2.0,
    }


def test_results_agree() -> None:
    asked = {"return_lse": True, "return_weights": True, **call()}
    heads_first = dot_product_attention(Q, K, V, **asked)
    length_first = dot_product_attention(swap(Q), swap(K), swap(V), layout="BLHD", **asked)
    assert length_first.out.shape == (*BATCH, LQ, HQ, DV)
    np.testing.assert_array_equal(swap(length_first.out), heads_first.out)
    np.testing.assert_array_equal(length_first.lse, heads_first.lse)
    np.testing.assert_array_equal(length_first.weights, heads_first.weights)


def test_scores_agree() -> None:
    for stage in ("scaled", "masked"):
        first = attention_scores(Q, K, stage=stage, mask=masks.causal())  # type: ignore[arg-type]  # a word of the list
        other = attention_scores(swap(Q), swap(K), stage=stage, mask=masks.causal(), layout="BLHD")  # type: ignore[arg-type]  # as above
        np.testing.assert_array_equal(other, first)


def test_gradients_agree() -> None:
    first = vjp(Q, K, V, **call())[1](DOUT, DLSE)
    other = vjp(swap(Q), swap(K), swap(V), layout="BLHD", **call())[1](swap(DOUT), DLSE)
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(swap(getattr(other, name)), getattr(first, name))
    np.testing.assert_array_equal(other.sinks, first.sinks)
    np.testing.assert_array_equal(other.bias.right.array, first.bias.right.array)


def test_tangents_agree() -> None:
    moved = [np.random.default_rng(n).normal(size=x.shape) for n, x in enumerate((Q, K, V))]
    first = jvp(Q, K, V, Gradients(*moved), **call())[1]
    other = jvp(swap(Q), swap(K), swap(V), Gradients(*map(swap, moved)), layout="BLHD", **call())[1]
    np.testing.assert_array_equal(swap(other.out), first.out)
    np.testing.assert_array_equal(other.lse, first.lse)


@EACH_ONCE
def test_layouts_on_every_library(library: Library) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return dot_product_attention(q, k, v, mask=masks.causal(), layout="BLHD")

    got = library.numpy(library.call(attend, *(swap(x).astype(np.float32) for x in (Q, K, V))))
    np.testing.assert_allclose(swap(got), dot_product_attention(Q, K, V, mask=masks.causal()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["BHLD", "BLHD"])
def test_plain_arrays_are_one_head_in_either_layout(layout: str) -> None:
    q, k, v = Q[0, 0, 0], K[0, 0, 0], V[0, 0, 0]
    result = dot_product_attention(q, k, v, layout=layout, return_lse=True, return_weights=True)
    expected = dot_product_attention(q[None], k[None], v[None], return_lse=True, return_weights=True)
    for ours, theirs in zip(result, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs[0])
    found = vjp(q, k, v, layout=layout, sinks=np.zeros(1), mask=np.ones((LQ, LK), bool))[1](
        DOUT[0, 0, 0], DLSE[0, 0, 0]
    )
    assert [x.shape for x in (found.query, found.key, found.value, found.sinks)] == [(LQ, D), (LK, D), (LK, DV), (1,)]


def test_heads_without_a_batch() -> None:
    first = dot_product_attention(Q[0, 0], K[0, 0], V[0, 0])
    np.testing.assert_array_equal(first, dot_product_attention(Q, K, V)[0, 0])
    other = dot_product_attention(swap(Q[0, 0]), swap(K[0, 0]), swap(V[0, 0]), layout="BLHD")
    np.testing.assert_array_equal(swap(other), first)


def test_batch_axes_broadcast_in_either_layout() -> None:
    q, k, v = Q[:, :1], K[:1, :], V[0]
    expected = dot_product_attention(*(np.broadcast_to(x, (*BATCH, *x.shape[-3:])) for x in (q, k, v)))
    np.testing.assert_allclose(dot_product_attention(q, k, v), expected, rtol=1e-12)
    np.testing.assert_allclose(
        swap(dot_product_attention(swap(q), swap(k), swap(v), layout="BLHD")), expected, rtol=1e-12
    )
    found = vjp(q, k, v)[1](DOUT)
    whole = vjp(*(np.broadcast_to(x, (*BATCH, *x.shape[-3:])) for x in (q, k, v)))[1](DOUT)
    np.testing.assert_allclose(found.query, whole.query.sum(1, keepdims=True), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.key, whole.key.sum(0, keepdims=True), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.value, whole.value.sum(0), rtol=1e-9, atol=1e-12)
