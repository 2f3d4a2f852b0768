"""Tiles of any size give what the dense definition gives, out, lse and every gradient, in linear memory."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import attention_core
import attention_np as attention
from attention_core.dense import dense_attention
from attention_core.gradient import dense_vjp
from attention_core.problem import Gradients, Problem, Result, make_problem
from attention_core.tiled import tiled_attention, tiled_vjp

from .libraries import JITTED, NUMPY, Library
from .recipes import MASKS, Recipe, recipes

OTHERS = ["array_api_strict", pytest.param("torch", marks=pytest.mark.torch)]
TILES = st.sampled_from([(1, 1), (2, 3), (3, 2), (1, 4), (4, 1), (16, 16)])


def problem_of(recipe: Recipe, library: Library, **more: Any) -> Problem:
    call = recipe.draw()
    return make_problem(*call.inputs(library.to), **{**call.options(attention_core, library.to), **more})


def leaves(x: Any) -> list[Any]:
    """All arrays of results and gradients, in order."""
    if isinstance(x, (Result, Gradients)):
        return [leaf for part in x for leaf in leaves(part)]
    if hasattr(x, "arrays"):
        return list(x.arrays())
    return [] if x is None else [x]


def cotangents(problem: Problem, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    shape = problem.sizes.out
    return rng.normal(size=shape).astype(dtype), rng.normal(size=shape[:-1]).astype(dtype)


def by_both(problem: Problem, library: Library, tile: tuple[int, int] | None, dlse: bool = True) -> tuple[Any, Any]:
    """Out, lse and gradients of a problem, by tiles and by the definition."""
    out, lse = map(library.to, cotangents(problem))
    lse = lse if dlse else None
    tiled, dense = tiled_attention(problem, tile=tile), dense_attention(problem, weights=False)
    return (
        [*leaves(tiled), *leaves(tiled_vjp(problem, tiled, out, lse, tile=tile))],
        [*leaves(dense), *leaves(dense_vjp(problem, out, lse))],
    )


def assert_equal(found: list[Any], expected: list[Any], library: Library, tolerance: float = 1e-10) -> None:
    assert len(found) == len(expected)
    for a, b in zip(map(library.numpy, found), map(library.numpy, expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@settings(max_examples=200)
@given(recipes(), TILES, st.booleans())
def test_numpy(recipe: Recipe, tile: tuple[int, int], dlse: bool) -> None:
    assert_equal(*by_both(problem_of(recipe, NUMPY), NUMPY, tile, dlse), NUMPY)


@settings(max_examples=50)
@given(recipes(), TILES)
def test_against_the_loops(recipe: Recipe, tile: tuple[int, int]) -> None:
    expected = recipe.draw().expected()
    found = tiled_attention(problem_of(recipe, NUMPY), tile=tile)
    np.testing.assert_allclose(found.out, expected.out, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.lse, expected.lse, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", OTHERS)
def test_other_libraries(name: str) -> None:
    library = Library(name)

    @settings(max_examples=40, phases=(Phase.explicit, Phase.reuse, Phase.generate))
    @given(recipes(), TILES)
    def check(recipe: Recipe, tile: tuple[int, int]) -> None:
        assert_equal(*by_both(problem_of(recipe, library), library, tile), library)

    check()


FEATURES = [
    Recipe(mask="causal", bias="sum", sinks=True, softcap=0.8, rate=0.25, seed=1),
    Recipe(mask="segments", bias="relative", group=3, scale=-0.7, keys=6, seed=2),
    Recipe(mask="-inf bias", bias="dense", queries=4, keys=7, value_depth=1, seed=3),
]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", FEATURES, ids=lambda recipe: recipe.mask)
def test_jax_jitted(recipe: Recipe, double_precision: None) -> None:
    call = recipe.draw()

    def both(*arrays: Any) -> Any:
        of_jax = call.with_arrays(**dict(zip(call.arrays, arrays, strict=True)))
        options = {**of_jax.options(attention_core, lambda x: x)}
        problem = make_problem(*of_jax.inputs(lambda x: x), **options)
        return by_both(problem, JITTED, (2, 3))

    found, expected = JITTED.call(both, *call.arrays.values())
    assert_equal(found, expected, JITTED)


@pytest.mark.parametrize("name", ["numpy", *OTHERS])
def test_by_its_name(name: str) -> None:
    library = Library(name)
    call = FEATURES[0].draw()
    options = call.options(attention_core, library.to)
    expected = call.expected()
    found = attention_core.dot_product_attention(*call.inputs(library.to), **options, impl="tiled", return_lse=True)
    np.testing.assert_allclose(library.numpy(found.out), expected.out, rtol=1e-10)
    np.testing.assert_allclose(library.numpy(found.lse), expected.lse, rtol=1e-10)
    result, pullback = attention_core.vjp(*call.inputs(library.to), **options, impl="tiled")
    gradients = pullback(library.to(expected.out))
    _, dense = attention_core.vjp(*call.inputs(library.to), **options, impl="dense")
    assert_equal(leaves(gradients), leaves(dense(library.to(expected.out))), library)
    np.testing.assert_array_equal(library.numpy(result.out), library.numpy(found.out))


@pytest.mark.parametrize("mask", ["causal", "dense", "none"])
def test_seeded_dropout_drops_the_same_pairs(mask: str) -> None:
    problem = problem_of(Recipe(mask=mask, keys=11, queries=6, seed=5), NUMPY, dropout=attention_core.dropout(0.4, 9))
    for tile in ((2, 3), (5, 4), (1, 1)):
        assert_equal(*by_both(problem, NUMPY, tile), NUMPY)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed; the `test` extra brings it")
    cast = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    call = Recipe(mask="causal", bias="sum", sinks=True, keys=9, queries=7, seed=6).draw()

    def to(x: Any) -> Any:
        return x.astype(cast) if x.dtype == np.float64 else x

    problem = make_problem(*call.inputs(to), **call.options(attention_core, to))
    found, expected = by_both(problem, Library("numpy"), (2, 4))
    epsilon = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}[dtype]
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        scale = np.abs(b.astype(np.float64)).max()
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=0, atol=8 * epsilon * scale)


def test_batch_axes_that_broadcast() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 1, 4, 5, 2)), rng.normal(size=(2, 2, 7, 2)), rng.normal(size=(1, 2, 7, 3))
    mask, bias = rng.random((3, 2, 1, 1, 7)) < 0.8, rng.normal(size=(2, 1, 5, 1))
    problem = make_problem(q, k, v, mask=mask, bias=bias, query_positions=np.arange(5) + 2)
    assert_equal(*by_both(problem, NUMPY, (2, 3)), NUMPY)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 1), (1, 7), (4, 1, 1), (4, 5, 1), (4, 1, 7), (2, 1, 5, 7)])
def test_a_dense_bias_has_a_gradient_of_its_own_shape(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(2, 4, 5, 3)), rng.normal(size=(2, 2, 7, 3)), rng.normal(size=(2, 2, 7, 2))
    for mask in (None, attention.masks.causal(), attention.masks.key_lengths(0)):
        problem = make_problem(q, k, v, mask=mask, bias=rng.normal(size=shape))
        assert_equal(*by_both(problem, NUMPY, (2, 3)), NUMPY)


def test_a_rule_with_a_pullback_of_its_own() -> None:
    def values(batch: Any, head: Any, query: Any, key: Any, slope: Any, count: Any) -> Any:
        return slope[head] * (key - query) / count

    def pullback(batch: Any, head: Any, query: Any, key: Any, slope: Any, count: Any, cotangent: Any) -> Any:
        by_head = np.sum(cotangent * (key - query) / count, axis=(0, 2, 3))
        whole = np.zeros_like(slope)
        whole[head[:, 0, 0]] = by_head
        return whole, None

    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(2, 4, 5, 3)), rng.normal(size=(2, 2, 7, 3)), rng.normal(size=(2, 2, 7, 2))
    rule = attention.biases.rule(values, rng.normal(size=4), np.asarray([3]), vjp=pullback)
    problem = make_problem(q, k, v, mask=attention.masks.causal(), bias=rule + attention.biases.alibi(4))
    (*found, _), (*expected, _) = by_both(problem, NUMPY, (2, 3))
    assert_equal(found, expected, NUMPY)


# Masked pairs count for nothing, visible NaN spoils its row


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("mask", ["causal", "dense", "-inf bias"])
def test_what_stands_in_masked_pairs_counts_for_nothing(mask: str, poison: float) -> None:
    recipe = Recipe(mask=mask, queries=5, keys=9, softcap=3.0, sinks=True, seed=8)
    call = recipe.draw()
    visible = call.visible()
    visible[..., 4] = False
    kept = {"mask": visible}
    problems = []
    for value in (0.0, poison):
        key, values = call.key.copy(), call.value.copy()
        key[..., 4, :] = values[..., 4, :] = value
        spoilt = call.with_arrays(key=key, value=values)
        options = spoilt.options(attention_core, np.asarray) | kept
        problems.append(make_problem(*spoilt.inputs(np.asarray), **options))
    found, expected = (by_both(problem, NUMPY, (2, 3))[0] for problem in reversed(problems))
    assert_equal(found, expected, NUMPY)
    assert all(np.isfinite(x).all() for x in found[2:])


@pytest.mark.parametrize("where", ["key", "value"])
def test_a_visible_nan_spoils_its_rows_and_no_other(where: str) -> None:
    call = Recipe(mask="causal", queries=6, keys=6, seed=8).draw()
    spoilt = {where: call.arrays[where].copy()}
    spoilt[where][:, :, 3] = np.nan
    call = call.with_arrays(**spoilt)
    problem = make_problem(*call.inputs(np.asarray), **call.options(attention_core, np.asarray))
    found, expected = by_both(problem, NUMPY, (2, 4))
    assert np.isnan(found[0][:, :, 3:]).all()
    assert np.isfinite(found[0][:, :, :3]).all()
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-12)
    dquery, expected_dquery = found[2], expected[2]
    np.testing.assert_allclose(dquery[:, :, :3], expected_dquery[:, :, :3], rtol=1e-10)


def test_dead_rows_take_no_cotangent() -> None:
    problem = problem_of(Recipe(mask="query_lengths", queries=4, keys=5, seed=1), NUMPY)
    dead = np.isneginf(tiled_attention(problem).lse)
    assert dead.any()
    out, lse = cotangents(problem)
    gradients = []
    for garbage in (0.0, np.nan):
        out[dead], lse[dead] = garbage, garbage
        gradients.append(leaves(tiled_vjp(problem, tiled_attention(problem, tile=(2, 3)), out, lse, tile=(2, 3))))
    assert_equal(gradients[1], gradients[0], NUMPY)


# What it costs


class Counting(attention_core.Mask):
    """Causal, counting the tiles that it is asked to draw."""

    def __init__(self) -> None:
        object.__setattr__(self, "drawn", [])

    def visible(self, pairs: Any) -> Any:
        self.__dict__["drawn"].append((pairs.queries, pairs.keys))
        return attention.masks.causal().visible(pairs)

    def visibility(self, pairs: Any) -> Any:
        return attention.masks.causal().visibility(pairs)


def test_only_mixed_tiles_are_drawn() -> None:
    x = np.random.default_rng(0).normal(size=(1, 12, 4))
    mask = Counting()
    problem = make_problem(x, x, x, mask=mask)
    result = tiled_attention(problem, tile=(3, 3))
    diagonal = [((n, n + 3), (n, n + 3)) for n in range(0, 12, 3)]
    assert mask.__dict__["drawn"] == diagonal
    tiled_vjp(problem, result, x, None, tile=(3, 3))
    assert mask.__dict__["drawn"] == 2 * diagonal


def test_empty_tiles_are_never_read() -> None:
    x = np.random.default_rng(0).normal(size=(1, 8, 4))
    spoilt = x.copy()
    spoilt[:, 4:] = np.nan
    mask = attention.masks.key_lengths(4)
    found, expected = (tiled_attention(make_problem(x, y, y, mask=mask), tile=(8, 4)) for y in (spoilt, x))
    np.testing.assert_array_equal(found.out, expected.out)
    np.testing.assert_array_equal(found.lse, expected.lse)


@pytest.mark.parametrize("bias", [None, attention.biases.alibi(1)])
def test_memory_is_linear(bias: Any) -> None:
    length = 4096
    x = np.random.default_rng(0).normal(size=(1, length, 8)).astype(np.float32)
    problem = make_problem(x, x, x, mask=attention.masks.causal(), bias=bias)
    tracemalloc.start()
    result = tiled_attention(problem, tile=(256, 256))
    tiled_vjp(problem, result, x, result.lse, tile=(256, 256))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < length * length * 4 / 8  # an eighth of one array of scores


# Which calls take it


def test_it_refuses_weights_by_name() -> None:
    x = np.ones((3, 2))
    with pytest.raises(NotImplementedError, match=r"cannot do this call: it never (holds|forms) the weights"):
        attention.dot_product_attention(x, x, x, impl="tiled", return_weights=True)


@pytest.mark.torch
def test_auto_takes_it_for_large_calls_of_a_library_without_a_kernel() -> None:
    import torch

    small, large = torch.zeros(1, 8, 2), torch.zeros(1, 4097, 2)
    assert attention_core.which_kernel(large, large, large).impl == "tiled"
    assert attention_core.which_kernel(large, large, large, return_weights=True).impl == "dense"
    choice = attention_core.which_kernel(small, small, small)
    assert choice.impl == "dense"
    assert "tiled" in choice.refused


def test_default_tiles_cut_large_calls() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(70, 4, 130, 2)).astype(np.float32) for _ in range(3))
    found = attention.dot_product_attention(q, k, v, mask=attention.masks.causal(), impl="tiled")
    expected = attention.dot_product_attention(q, k, v, mask=attention.masks.causal(), impl="dense")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", [name for name in MASKS if name != "none"])
def test_every_mask_by_small_tiles(mask: str) -> None:
    problem = problem_of(Recipe(mask=mask, queries=7, keys=9, start=2, seed=3), NUMPY)
    assert_equal(*by_both(problem, NUMPY, (3, 2)), NUMPY)


@pytest.mark.parametrize(
    "sizes",
    [
        {"keys": 0},
        {"queries": 0},
        {"depth": 0},
        {"value_depth": 0},
        {"batch": 0},
    ],
    ids=lambda sizes: next(iter(sizes)),
)
def test_no_elements(sizes: dict[str, int]) -> None:
    problem = problem_of(Recipe(**{"bias": "sum", "sinks": True, "mask": "causal", **sizes}), NUMPY)
    assert_equal(*by_both(problem, NUMPY, (2, 3)), NUMPY)
    assert_equal(*by_both(problem, NUMPY, None), NUMPY)


@pytest.mark.slow
def test_jax_differentiates_through_it(double_precision: None) -> None:
    jax = pytest.importorskip("jax", reason="the `jax` extra is not installed")
    import attention_jax

    call = Recipe(mask="causal", queries=4, keys=6, sinks=True, seed=2).draw()

    def gradient(impl: str) -> Any:
        def loss(q: Any) -> Any:
            options = call.options(attention_core, jax.numpy.asarray)
            inputs = call.inputs(jax.numpy.asarray)[1:]
            return (attention_jax.dot_product_attention(q, *inputs, **options, impl=impl) ** 2).sum()

        return np.asarray(jax.jit(jax.grad(loss))(jax.numpy.asarray(call.query)))

    np.testing.assert_allclose(gradient("tiled"), gradient("dense"), rtol=1e-9)
