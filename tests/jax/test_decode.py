"""Decoding against a cache of static size: the work is proportional to the part that is filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the kernel under test is JAX's")
import jax.numpy as jnp  # noqa: E402  after the skip
from jax import lax  # noqa: E402

import attention_jax as attention  # noqa: E402
from attention_core.problem import make_problem  # noqa: E402
from attention_jax import biases, masks  # noqa: E402
from attention_jax.flat import operands_of, spec_of  # noqa: E402
from attention_jax.kernel import tiled_attention  # noqa: E402

HEADS, KV_HEADS, CAPACITY, DEPTH, VALUE_DEPTH, TILE = 4, 2, 30, 3, 5, 4
LENGTHS = (0, 1, 4, 5, 12, 29, 30)


def arrays(seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    shapes = ((HEADS, 1, DEPTH), (KV_HEADS, CAPACITY, DEPTH), (KV_HEADS, CAPACITY, VALUE_DEPTH))
    query, key, value = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
    return query, key, value


def test_a_scan_over_lengths_visits_the_tiles_that_they_fill() -> None:
    visited: set[int] = set()
    query, key, value = arrays()

    def counting(batch: Any, head: Any, i: Any, j: Any) -> Any:
        jax.debug.callback(lambda j: visited.add(int(j.min())), j)
        return jnp.zeros(jnp.broadcast_shapes(head.shape, i.shape, j.shape), jnp.float32)

    def step(carry: Any, length: Any) -> Any:
        mask = masks.key_lengths(length)
        problem = make_problem(query, key, value, mask=mask, bias=biases.rule(counting), query_positions=length)
        return carry, tiled_attention(spec_of(problem, TILE * HEADS, TILE), operands_of(problem))[0]

    counts = []
    run = jax.jit(lambda lengths: lax.scan(step, 0, lengths)[1])
    for length in LENGTHS:
        visited.clear()
        jax.block_until_ready(run(jnp.asarray([length])))
        jax.effects_barrier()
        counts.append(len(visited))
    assert counts == [-(-length // TILE) for length in LENGTHS]
    assert run._cache_size() == 1


def test_decoding_step_by_step_is_the_whole_causal_call() -> None:
    _, key, value = arrays()
    queries = jnp.asarray(np.random.default_rng(1).normal(size=(HEADS, CAPACITY, DEPTH)), jnp.float32)

    def step(cache: Any, n: Any) -> Any:
        keys, values = (  # what is not filled yet holds NaN
            lax.dynamic_update_slice_in_dim(x, lax.dynamic_slice_in_dim(new, n, 1, 1), n, 1)
            for x, new in zip(cache, (key, value), strict=True)
        )
        query = lax.dynamic_slice_in_dim(queries, n, 1, 1)
        out = attention.dot_product_attention(
            query, keys, values, mask=masks.key_lengths(n + 1), query_positions=n, impl="tiled"
        )
        return (keys, values), out[:, 0]

    empty = tuple(jnp.full_like(x, jnp.nan) for x in (key, value))
    decoded = jax.jit(lambda: lax.scan(step, empty, jnp.arange(CAPACITY))[1])()
    whole = attention.dot_product_attention(queries, key, value, mask=masks.causal(), impl="dense")
    np.testing.assert_allclose(decoded.swapaxes(0, 1), whole, rtol=2e-5, atol=2e-6)
