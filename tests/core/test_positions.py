"""Positions belong to the call: every mask and bias reads the same ones, so that no caller can forget one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attention_np import attention_scores, biases, dot_product_attention, masks
from tests.core.libraries import EACH_ONCE, JITTED, Library

RNG = np.random.default_rng(0)
HEADS, LENGTH = 2, 9
Q, K, V = (RNG.normal(size=(3, h, LENGTH, d)) for h, d in ((HEADS, 7), (1, 7), (1, 4)))
TABLE = RNG.normal(size=(8, HEADS))

READERS: dict[str, Callable[[], dict[str, Any]]] = {
    "causal": lambda: {"mask": masks.causal()},
    "window": lambda: {"mask": masks.causal() & masks.sliding_window(3, 0)},
    "chunked": lambda: {"mask": masks.chunked(4) & masks.causal()},
    "dilated": lambda: {"mask": masks.dilated(2) & masks.causal()},
    "prefix": lambda: {"mask": masks.prefix(3) | masks.causal()},
    "global": lambda: {"mask": masks.causal() & (masks.global_tokens(2) | masks.sliding_window(1, 0))},
    "rule": lambda: {"mask": masks.rule(lambda b, h, i, j: (j <= i) & ((i + 2 * j + h) % 3 > 0)) | masks.causal()},
    "alibi": lambda: {"bias": biases.alibi(HEADS), "mask": masks.causal()},
    "relative": lambda: {"bias": biases.relative(TABLE, max_distance=6), "mask": masks.causal()},
    "bias rule": lambda: {"bias": biases.rule(lambda b, h, i, j: 0.1 * i * (j - i)), "mask": masks.causal()},
}
SHIFTABLE = ["causal", "window", "dilated", "alibi", "relative"]


@pytest.mark.parametrize("reader", READERS)
def test_a_decode_step_is_its_row_of_the_prefill(reader: str) -> None:
    call = READERS[reader]()
    prefill = dot_product_attention(Q, K, V, **call)
    for n in range(LENGTH):
        keys = max(n + 1, 3) if reader == "prefix" else n + 1  # a prefix is seen whole
        cache = K[..., :keys, :], V[..., :keys, :]
        step = dot_product_attention(Q[..., n : n + 1, :], *cache, query_positions=n, **call)
        np.testing.assert_allclose(step, prefill[..., n : n + 1, :], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reader", READERS)
def test_a_chunk_of_the_prefill_is_its_rows(reader: str) -> None:
    call = READERS[reader]()
    chunk = dot_product_attention(Q[..., 4:7, :], K, V, query_positions=4, **call)
    np.testing.assert_allclose(chunk, dot_product_attention(Q, K, V, **call)[..., 4:7, :], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reader", READERS)
def test_an_integer_is_where_counting_starts(reader: str) -> None:
    call = READERS[reader]()
    expected = dot_product_attention(Q, K, V, query_positions=5, key_positions=2, **call)
    steps = np.arange(LENGTH)
    for queries, keys in [
        (np.int8(5), np.uint64(2)),
        (np.array(5), np.array(2, np.uint8)),
        (5 + steps, 2 + steps),
        ((5 + steps).astype(np.uint8), (2 + steps).astype(np.int16)),
        (np.broadcast_to(5 + steps, (3, LENGTH)), (2 + steps)[None]),
        (5, 2 + steps),
    ]:
        got = dot_product_attention(Q, K, V, query_positions=queries, key_positions=keys, **call)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("reader", SHIFTABLE)
@pytest.mark.parametrize("shift", [7, -40])
def test_shifting_all_positions_together_changes_nothing(reader: str, shift: int) -> None:
    call = READERS[reader]()
    got = dot_product_attention(Q, K, V, query_positions=shift, key_positions=shift, **call)
    np.testing.assert_allclose(got, dot_product_attention(Q, K, V, **call), rtol=1e-12)


@pytest.mark.parametrize("reader", READERS)
def test_keys_may_lie_in_any_order(reader: str) -> None:
    call, order = READERS[reader](), np.random.default_rng(1).permutation(LENGTH)
    got = dot_product_attention(Q, K[..., order, :], V[..., order, :], key_positions=order, **call)
    np.testing.assert_allclose(got, dot_product_attention(Q, K, V, **call), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reader", READERS)
def test_positions_per_batch_item_are_calls_of_their_own(reader: str) -> None:
    call = READERS[reader]()
    queries, keys = np.array([[3], [0], [6]]) + np.arange(LENGTH), RNG.integers(0, 9, (3, LENGTH))
    got = dot_product_attention(Q, K, V, query_positions=queries, key_positions=keys, **call)
    for n in range(3):
        one = dot_product_attention(Q[n], K[n], V[n], query_positions=queries[n], key_positions=keys[n], **call)
        np.testing.assert_allclose(got[n], one, rtol=1e-10, atol=1e-12)


@EACH_ONCE
def test_positions_on_every_library(library: Library) -> None:
    q, k, v = (x.astype(np.float32) for x in (Q, K, V))
    queries, keys = (
        np.array([[3], [0], [6]], np.uint8) + np.arange(LENGTH, dtype=np.uint8),
        np.int8(2) + np.arange(LENGTH),
    )

    def attend(q: Any, k: Any, v: Any, queries: Any, keys: Any) -> Any:
        mask = masks.causal() & masks.sliding_window(4, None)
        call = {"mask": mask, "bias": biases.alibi(HEADS), "query_positions": queries, "key_positions": keys}
        return dot_product_attention(q, k, v, **call)

    for where in ((queries, keys), (np.array(4), np.array(1)), (4, 1)):
        expected = attend(Q, K, V, *where)
        np.testing.assert_allclose(library.numpy(library.call(attend, q, k, v, *where)), expected, rtol=2e-4, atol=1e-5)


def test_positions_may_be_mapped_over() -> None:
    jax = pytest.importorskip("jax", reason="needs JAX: `pip install jax`")
    q, k, v = (x.astype(np.float32) for x in (Q, K, V))
    starts = np.array([0, 4, -2])

    def attend(q: Any, k: Any, v: Any, start: Any) -> Any:
        return dot_product_attention(q, k, v, mask=masks.causal(), bias=biases.alibi(HEADS), query_positions=start)

    got = jax.jit(jax.vmap(attend))(*map(JITTED.to, (q, k, v, starts)))
    for n, start in enumerate(starts.tolist()):
        np.testing.assert_allclose(got[n], attend(Q[n], K[n], V[n], start), rtol=2e-4, atol=1e-5)


# causal_lower_right


@pytest.mark.parametrize("call", [{}, {"bias": biases.alibi(HEADS)}, {"bias": biases.relative(TABLE)}], ids=str)
@pytest.mark.parametrize("more", [masks.sliding_window(2, None), masks.prefix(2), ~masks.chunked(2)], ids=repr)
def test_lower_right_sets_the_positions_of_the_whole_call(call: dict[str, Any], more: Any) -> None:
    queries = Q[..., :4, :]
    got = dot_product_attention(queries, K, V, mask=masks.causal_lower_right() & more, **call)
    expected = dot_product_attention(queries, K, V, mask=masks.causal() & more, query_positions=LENGTH - 4, **call)
    np.testing.assert_array_equal(got, expected)
    assert not np.array_equal(got, dot_product_attention(queries, K, V, mask=masks.causal() & more, **call))


def test_lower_right_counts_wherever_it_stands_in_a_mask() -> None:
    bias, rows = biases.alibi(HEADS), slice(0, 4)
    plain = {"bias": bias, "query_positions": LENGTH - 4}
    for ours, theirs in [
        (masks.prefix(1) | masks.causal_lower_right(), masks.prefix(1) | masks.causal()),
        (masks.prefix(9) & ~(masks.dilated(2) & masks.causal_lower_right()), ~(masks.dilated(2) & masks.causal())),
    ]:
        np.testing.assert_array_equal(
            dot_product_attention(Q[..., rows, :], K, V, mask=ours, bias=bias),
            dot_product_attention(Q[..., rows, :], K, V, mask=theirs, **plain),
        )


def test_more_queries_than_keys_leave_the_first_rows_empty() -> None:
    scores = attention_scores(Q, K[..., :3, :], mask=masks.causal_lower_right())
    assert np.isneginf(scores).all(-1)[0, 0].tolist() == [True] * 6 + [False] * 3


@pytest.mark.parametrize("given", [1, -3, np.int64(2), np.array(0), np.arange(LENGTH)], ids=repr)
@pytest.mark.parametrize("name", ["query_positions", "key_positions"])
@pytest.mark.parametrize(
    "mask", [masks.causal_lower_right(), ~(masks.prefix(2) | masks.causal_lower_right() & masks.dilated(2))], ids=repr
)
def test_lower_right_beside_positions_is_an_error(mask: Any, name: str, given: Any) -> None:
    message = rf"`{name}` was given, but causal_lower_right\(\) sets the positions itself: use causal\(\)"
    with pytest.raises(ValueError, match=message):
        dot_product_attention(Q, K, V, mask=mask, **{name: given})
    with pytest.raises(ValueError, match=message):
        mask.array(LENGTH, LENGTH, batch=(3,), **{name: given})


# The range of positions


def test_positions_near_the_limit_are_exact() -> None:
    for first in (2**30 - LENGTH, -(2**30)):
        got = dot_product_attention(Q, K, V, mask=masks.causal(), query_positions=first, key_positions=first)
        np.testing.assert_array_equal(got, dot_product_attention(Q, K, V, mask=masks.causal()))
    far = JITTED.call(
        lambda q, k: attention_scores(
            q, k, mask=masks.causal(), query_positions=-(2**30), key_positions=2**30 - LENGTH
        ),
        Q,
        K,
    )
    assert np.isneginf(far).all()
