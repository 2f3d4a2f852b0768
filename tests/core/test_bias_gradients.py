"""The gradient of every bias: by tile, beside finite differences, on every library, and as the caller's own ``vjp``."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from attention_np import biases, masks, vjp
from tests.core.held_biases import Array, held, problem, whole
from tests.core.libraries import EACH_ONCE, Library
from tests.core.pictures import BATCH, HEADS, KEYS, POSITIONS, QUERIES


def summed(arrays: list[tuple[Any, ...]]) -> list[Array]:
    return [np.sum(np.stack(same), axis=0) for same in zip(*arrays, strict=True)]


@pytest.mark.parametrize("kind", ["alibi", "relative", "relative, causal", "rule"])
@pytest.mark.parametrize("by_item", [False, True])
def test_gradients_of_tiles_sum_to_the_gradient_of_the_whole(kind: str, by_item: bool) -> None:
    bias, pairs = held()[kind](), whole(*POSITIONS["per item"])
    cotangent = np.random.default_rng(6).normal(size=pairs.shape)
    parts = []
    for heads, queries, keys in product([(0, 1), (1, 2)], [(0, 1), (1, 3)], [(0, 2), (2, 5)]):
        for item in product(*map(range, BATCH)) if by_item else (None,):
            part = (cotangent if item is None else cotangent[item])[..., slice(*heads), slice(*queries), slice(*keys)]
            parts.append(
                tuple(x for x in bias.vjp(pairs.tile(queries, keys, heads, item), part).arrays() if x is not None)
            )
    expected = [x for x in bias.vjp(pairs, cotangent).arrays() if x is not None]
    for got, one in zip(summed(parts), expected, strict=True):
        np.testing.assert_allclose(got, one, rtol=1e-10, atol=1e-12)


def test_gradient_of_a_dense_tile_is_the_tile_of_the_gradient() -> None:
    bias, pairs = held()["dense"](), whole()
    cotangent = np.random.default_rng(6).normal(size=pairs.shape)
    full = bias.vjp(pairs, cotangent).array
    np.testing.assert_allclose(full, cotangent.sum(0), rtol=1e-12)
    tile = pairs.tile((1, 3), (2, 5), (1, 2))
    part = bias.vjp(tile, cotangent[..., 1:2, 1:3, 2:5]).array
    np.testing.assert_allclose(part, full[:, 1:2, 1:3, 2:5], rtol=1e-12)


@pytest.mark.parametrize("kind", held())
def test_gradient_is_the_finite_difference(kind: str) -> None:
    q, k, v = problem()
    bias = held()[kind]()
    call = {"mask": masks.sliding_window(3, 1), "query_positions": 1}
    rng = np.random.default_rng(9)
    dout, dlse = rng.normal(size=(*BATCH, HEADS, QUERIES, 4)), rng.normal(size=(*BATCH, HEADS, QUERIES))
    gradient = vjp(q, k, v, bias=bias, **call)[1](dout, dlse).bias
    assert type(gradient) is type(bias)

    def loss() -> float:
        result = vjp(q, k, v, bias=bias, **call)[0]
        return float((result.out * dout).sum() + (result.lse * dlse).sum())

    got = [x for x in gradient.arrays() if x is not None]
    for x, slope in zip(bias.arrays(), got, strict=True):
        assert slope.shape == x.shape
        for index in list(np.ndindex(x.shape))[:: max(1, x.size // 12)]:
            kept, step = x[index], 1e-5
            x[index] = kept + step
            above = loss()
            x[index] = kept - step
            below = loss()
            x[index] = kept
            assert slope[index] == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-8), index


def test_gradients_reach_arrays_only() -> None:
    q, k, v = problem()
    x = np.zeros((QUERIES, KEYS), np.float32)
    gradient = vjp(q, k, v, bias=biases.alibi(HEADS) + x)[1](np.ones((*BATCH, HEADS, QUERIES, 4))).bias
    assert gradient.left == biases.alibi(HEADS)
    assert gradient.right.array.shape == x.shape
    assert gradient.right.array.dtype == x.dtype


def test_gradient_of_an_array_is_an_array() -> None:
    q, k, v = problem()
    x, dout = np.zeros((QUERIES, KEYS)), np.ones((*BATCH, HEADS, QUERIES, 4))
    plain, value = (vjp(q, k, v, bias=bias)[1](dout).bias for bias in (x, biases.dense(x)))
    assert isinstance(plain, np.ndarray)
    np.testing.assert_array_equal(plain, value.array)


@EACH_ONCE
def test_a_rule_without_vjp_has_gradients_where_the_library_has(library: Library) -> None:
    q, k, v = (x.astype(np.float32) for x in problem())
    dout = np.ones((*BATCH, HEADS, QUERIES, 4), np.float32)

    def gradient(q: Any, k: Any, v: Any, w: Any, dout: Any) -> Any:
        bias = biases.rule(lambda b, h, i, j, w, sign: w * library.xp.astype(i - j, w.dtype) * sign, w, -1.0)
        return vjp(q, k, v, bias=bias)[1](dout * v[..., :1, :3, :]).bias.params[0]

    weight = np.array(0.5, np.float32)
    if library.name != "jax":
        with pytest.raises(NotImplementedError, match=r"give the rule its own vjp, biases\.rule\(fn, \.\.\., vjp="):
            library.call(gradient, q, k, v, weight, dout)
        return
    slope = biases.rule(
        lambda b, h, i, j, w: -w * (i - j), weight, vjp=lambda b, h, i, j, w, cotangent: ((-(i - j) * cotangent).sum(),)
    )
    expected = vjp(q, k, v, bias=slope)[1](dout * v[..., :1, :3, :]).bias.params[0]
    np.testing.assert_allclose(library.call(gradient, q, k, v, weight, dout), expected, rtol=1e-4, atol=1e-5)


@EACH_ONCE
def test_gradients_of_tables_and_slopes_on_every_library(library: Library) -> None:
    q, k, v = (x.astype(np.float32) for x in problem())
    table = np.random.default_rng(1).normal(size=(8, HEADS)).astype(np.float32)
    slopes = np.array([0.5, 0.1], np.float32)
    dout = np.random.default_rng(2).normal(size=(*BATCH, HEADS, QUERIES, 4)).astype(np.float32)

    def gradients(q: Any, k: Any, v: Any, dout: Any, table: Any, slopes: Any) -> Any:
        bias = biases.relative(table, max_distance=4) + biases.alibi(slopes)
        found = vjp(q, k, v, bias=bias)[1](dout).bias
        return found.left.table, found.right.slopes

    expected = gradients(*(x.astype(np.float64) for x in (q, k, v, dout, table, slopes)))
    for got, right in zip(library.call(gradients, q, k, v, dout, table, slopes), expected, strict=True):
        np.testing.assert_allclose(library.numpy(got), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, r"cotangent of each of the 2 parameters; got None"),
        ((np.zeros(HEADS),), r"cotangent of each of the 2 parameters; got 1"),
        (np.zeros(2), r"cotangent of each of the 2 parameters; got an array of float64"),
        ((np.zeros(3), None), r"cotangent of shape \(3,\) for a parameter of shape \(2,\)"),
        ((0.5, None), r"cotangent of shape \(\) for a parameter of shape \(2,\)"),
    ],
)
def test_the_callers_vjp_is_checked(returned: Any, message: str) -> None:
    bias = biases.rule(lambda b, h, i, j, w, n: w[h] * n, np.ones(HEADS), 2.0, vjp=lambda *given: returned)
    pullback = vjp(*problem(), bias=bias)[1]
    with pytest.raises(ValueError, match=message):
        pullback(np.ones((*BATCH, HEADS, QUERIES, 4)))


def test_the_callers_vjp_is_given_what_the_rule_was_given() -> None:
    seen: list[Any] = []

    def pull(*given: Any) -> Any:
        seen.extend(given)
        return given[4], None, np.zeros(3, int)

    ids = np.array([4, 5, 6])
    bias = biases.rule(lambda b, h, i, j, w, n, ids: w[h] + n * 0.0, np.ones(HEADS, np.float32), 2.0, ids, vjp=pull)
    gradient = vjp(*problem(), bias=bias)[1](np.ones((*BATCH, HEADS, QUERIES, 4))).bias
    assert [np.shape(x) for x in seen] == [(2, 3, 1, 1, 1), (2, 1, 1), (3, 1), (1, 5), (2,), (), (3,), (2, 3, 2, 3, 5)]
    assert gradient.params[0].dtype == np.float32
    assert gradient.params[1] == 2.0, "Python numbers are constants"
