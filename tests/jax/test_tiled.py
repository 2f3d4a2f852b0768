"""JAX's tiled kernel equals the dense definition, forward and backward, with small tiles forced on ragged sizes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the kernel under test is JAX's")
import jax.numpy as jnp  # noqa: E402  after the skip

import attention_jax as attention  # noqa: E402
from attention_core.dense import dense_attention  # noqa: E402
from attention_core.problem import make_problem  # noqa: E402
from attention_jax import biases, masks  # noqa: E402
from attention_jax.flat import operands_of, spec_of, work_of  # noqa: E402
from attention_jax.kernel import tiled_attention  # noqa: E402

pytestmark = pytest.mark.usefixtures("double_precision")

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DEPTH, VALUE_DEPTH = 2, 4, 2, 11, 13, 7, 5
SMALL = (4, 4)  # rows and columns of a tile
TILES = {"heads share a tile": (64, 16), "one strip": (64, 4), "one key tile": (4, 16)}


def tiled(problem: Any, tiles: tuple[int, int] = SMALL) -> Any:
    return tiled_attention(spec_of(problem, *tiles), operands_of(problem))


def dense(problem: Any) -> Any:
    return dense_attention(problem)[:2]


def arrays(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {
        "query": (BATCH, HEADS, QUERIES, DEPTH),
        "key": (BATCH, KV_HEADS, KEYS, DEPTH),
        "value": (BATCH, KV_HEADS, KEYS, VALUE_DEPTH),
    }
    return {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}


def value_and_gradients(attend: Any, call: dict[str, Any], differentiable: dict[str, Any]) -> Any:
    rng = np.random.default_rng(7)
    dout = jnp.asarray(rng.normal(size=(BATCH, HEADS, QUERIES, VALUE_DEPTH)))
    dlse = jnp.asarray(rng.normal(size=(BATCH, HEADS, QUERIES)))

    def loss(arguments: dict[str, Any]) -> Any:
        out, lse = attend(make_problem(**arguments, **call))
        return (out * dout).sum() + (jnp.where(jnp.isfinite(lse), lse, 0) * dlse).sum(), (out, lse)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(differentiable)


def assert_equal(call: dict[str, Any], tiles: tuple[int, int] = SMALL, **differentiable: Any) -> None:
    given = {**arrays(), **differentiable}
    (_, results), gradients = value_and_gradients(partial(tiled, tiles=tiles), call, given)
    (_, expected), expected_gradients = value_and_gradients(dense, call, given)
    for ours, theirs in zip(
        jax.tree.leaves((results, gradients)), jax.tree.leaves((expected, expected_gradients)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-11)


RNG = np.random.default_rng(1)
STATIC = {
    "none": None,
    "causal": masks.causal(),
    "window": masks.sliding_window(3, 1),
    "dilated or global": masks.dilated(3) | masks.global_tokens(2),
    "chunked and causal": masks.chunked(4) & masks.causal(),
    "a rule": masks.rule(lambda batch, head, query, key: (query + key + head + batch) % 3 == 0),
    "nothing": masks.key_lengths(0),
}
TRACED = {
    "dense": lambda: masks.dense(jnp.asarray(RNG.random((BATCH, HEADS, QUERIES, KEYS)) < 0.5)),
    "segments": lambda: masks.segments(jnp.asarray([0] * 4 + [1] * 7), jnp.asarray([0] * 5 + [1] * 6 + [-1] * 2)),
    "lengths": lambda: masks.key_lengths(jnp.asarray([6, 0])) & masks.causal(),
    "query lengths": lambda: masks.query_lengths(jnp.asarray([5, 11])) & masks.sliding_window(2, None),
    "prefix or chunks": lambda: masks.prefix(jnp.asarray([2, 9])) | masks.chunked(4) & masks.causal(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STATIC)
def test_a_static_mask(name: str) -> None:
    assert_equal({"mask": STATIC[name], "query_positions": 2})


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_a_mask_of_arrays(name: str) -> None:
    assert_equal({"mask": TRACED[name]()})


@pytest.mark.slow
def test_positions_of_arrays() -> None:
    assert_equal(
        {
            "mask": masks.sliding_window(4, 0),
            "query_positions": jnp.asarray(3),
            "key_positions": jnp.asarray(RNG.integers(0, 20, (BATCH, KEYS))),
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [(BATCH, 1, QUERIES, KEYS), (HEADS, 1, KEYS), (QUERIES, 1), (BATCH, HEADS, QUERIES, KEYS)]
)
def test_a_dense_bias_and_its_gradient(shape: tuple[int, ...]) -> None:
    assert_equal({"mask": masks.causal()}, bias=jnp.asarray(RNG.normal(size=shape)))


@pytest.mark.slow
def test_lazy_biases_soft_cap_and_sinks_with_their_gradients() -> None:
    bias = (
        biases.alibi(jnp.asarray(RNG.normal(size=HEADS)))
        + biases.relative(jnp.asarray(RNG.normal(size=(8, HEADS))), max_distance=9)
        + biases.rule(lambda b, h, i, j, w: w[h] * jnp.sin(i - j), jnp.asarray(RNG.normal(size=HEADS)))
    )
    assert_equal({"mask": masks.causal(), "softcap": 2.0}, bias=bias, sinks=jnp.asarray(RNG.normal(size=HEADS)))


@pytest.mark.slow
def test_tiny_heads_that_share_a_tile() -> None:
    """XLA has aborted on products whose layout it chose itself; only the smallest sizes showed it."""
    rng = np.random.default_rng(2)
    given = [jnp.asarray(rng.normal(size=(2, length, depth))) for length, depth in ((3, 4), (5, 4), (5, 3))]

    def loss(impl: str, *given: Any) -> Any:
        out, lse, _ = attention.dot_product_attention(*given, impl=impl, return_lse=True)
        return (out**2).sum() + lse.sum()

    ours, expected = (jax.jit(jax.grad(partial(loss, impl), argnums=(0, 1, 2)))(*given) for impl in ("tiled", "dense"))
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("tiles", TILES)
def test_everything_at_once_in_tiles_of_every_shape(tiles: str) -> None:
    bias = biases.alibi(jnp.asarray(RNG.normal(size=HEADS))) + biases.dense(
        jnp.asarray(RNG.normal(size=(BATCH, HEADS, 1, KEYS)))
    )
    mask = masks.sliding_window(5, 1) & masks.key_lengths(jnp.asarray([9, 0]))
    call = {"mask": mask, "softcap": 2.0, "query_positions": 1, "dropout": attention.dropout(0.3, seed=5)}
    assert_equal(call, TILES[tiles], bias=bias, sinks=jnp.asarray(RNG.normal(size=HEADS)))


@pytest.mark.slow
@pytest.mark.parametrize("tiles", TILES)
def test_what_is_not_finite_in_tiles_of_every_shape(tiles: str) -> None:
    given = arrays()
    for name, head, place, bad in (("key", 0, 9, jnp.nan), ("value", 1, 4, jnp.inf), ("value", 0, 12, jnp.nan)):
        given[name] = given[name].at[0, head, place, 1].set(bad)
    given["key"] = given["key"].at[1, 1, 3].set(-jnp.inf)
    found, expected = (
        jax.jit(lambda given, attend=attend: attend(make_problem(**given, mask=masks.causal())))(given)
        for attend in (partial(tiled, tiles=TILES[tiles]), dense)
    )
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_dropout_by_seed() -> None:
    assert_equal({"mask": masks.causal(), "dropout": attention.dropout(0.3, seed=5)})


@pytest.mark.slow
def test_a_bias_of_minus_infinity_masks() -> None:
    bias = jnp.where(jnp.asarray(RNG.random((QUERIES, KEYS)) < 0.5), -jnp.inf, 0.0)
    assert_equal({"bias": bias})


@pytest.mark.slow
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, 1e30])
def test_what_is_masked_contributes_nothing_to_the_bit(bad: float) -> None:
    hidden = jnp.arange(KEYS) == 5
    call = {"mask": masks.dense(~hidden) & masks.causal(), "query_positions": 1}
    clean = arrays() | {name: jnp.where(hidden[:, None], 0.0, arrays()[name]) for name in ("key", "value")}
    dirty = clean | {name: jnp.where(hidden[:, None], bad, clean[name]) for name in ("key", "value")}
    expected, found = (value_and_gradients(tiled, call, given) for given in (clean, dirty))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_visible_nan_spoils_its_rows_only() -> None:
    given = arrays()
    given["key"] = given["key"].at[:, 0, 9].set(jnp.nan)
    (out, lse), (expected, _) = (
        jax.jit(lambda given, attend=attend: attend(make_problem(**given, mask=masks.causal())))(given)
        for attend in (tiled, dense)
    )
    np.testing.assert_allclose(out, expected, rtol=1e-12)  # NaN where NaN is, and nowhere else
    assert bool(jnp.isnan(lse[:, :2, 9:]).all())
    assert not bool(jnp.isnan(lse[:, 2:]).any())


@pytest.mark.slow
def test_vmap_over_masks_and_positions_equals_a_loop() -> None:
    given = arrays()
    lengths, starts = jnp.asarray([3, 13, 8]), jnp.asarray([0, 2, 5])

    def one(length: Any, start: Any) -> Any:
        mask = masks.key_lengths(length) & masks.causal()
        return tiled(make_problem(**given, mask=mask, query_positions=start))

    for mapped, single in zip(
        jax.vmap(one)(lengths, starts), zip(*map(one, lengths, starts), strict=True), strict=True
    ):
        np.testing.assert_allclose(mapped, jnp.stack(single), rtol=1e-12)


def test_a_narrow_window_takes_small_tiles_and_a_wide_mask_large_ones() -> None:
    x = jnp.zeros((1, 4096, 8))

    def plan(mask: Any) -> tuple[int, int]:
        problem = make_problem(x, x, x, mask=mask)
        work = work_of(spec_of(problem), operands_of(problem))
        return work.queries.size, int(work.schedule.visited.sum()) * work.queries.size * work.keys.size

    assert plan(masks.sliding_window(255, 0))[0] == plan(masks.chunked(128))[0] == 128
    assert plan(masks.causal())[0] == plan(None)[0] == 512
    assert plan(masks.sliding_window(255, 0))[1] < 4096 * 400
