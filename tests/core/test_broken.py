"""What attacks on the library found: each test is a call that once gave a wrong answer, or no clear error."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attention_core
import attention_np as attention
from attention_core.problem import make_problem
from attention_core.tiled import tiled_attention, tiled_vjp

from .libraries import JITTED, NUMPY, Library

# Gradients of rows whose lse is large: log n, lost when lse was rounded, is not lost from the weights

FILLS = [-1e9, float(np.finfo(np.float32).min), 1e7]
QUERIES, KEYS, DEPTH = 5, 7, 3


def filled_rows(fill: float) -> tuple[dict[str, Any], np.ndarray]:
    """Rows that a padding mask of large numbers fills: all their weights are 1/7."""
    rng = np.random.default_rng(3)
    query, dout = rng.normal(size=(2, 1, QUERIES, DEPTH)).astype(np.float32)
    key, value = rng.normal(size=(2, 1, KEYS, DEPTH)).astype(np.float32)
    bias = np.full((QUERIES, KEYS), fill, np.float32)
    return {"query": query, "key": key, "value": value, "bias": bias}, dout


def assert_spread_evenly(dvalue: Any, dout: np.ndarray) -> None:
    expected = np.broadcast_to(dout.sum(axis=-2, keepdims=True) / KEYS, (1, KEYS, DEPTH))
    np.testing.assert_allclose(np.asarray(dvalue), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("name", ["numpy", "array_api_strict", pytest.param("torch", marks=pytest.mark.torch)])
def test_weights_of_rows_with_a_large_lse(name: str, fill: float) -> None:
    library = Library(name)
    call, dout = filled_rows(fill)
    arrays = {argument: library.to(x) for argument, x in call.items()}
    _, pullback = attention_core.vjp(**arrays, scale=0.0, impl="tiled")
    assert_spread_evenly(library.numpy(pullback(library.to(dout)).value), dout)
    problem = make_problem(**arrays, scale=0.0)
    result = tiled_attention(problem, tile=(2, 3))
    gradients = tiled_vjp(problem, result, library.to(dout), None, tile=(2, 3))
    assert_spread_evenly(library.numpy(gradients.value), dout)


@pytest.mark.parametrize("fill", [FILLS[0], *(pytest.param(fill, marks=pytest.mark.slow) for fill in FILLS[1:])])
def test_weights_of_rows_with_a_large_lse_in_jax(fill: float) -> None:
    jax = pytest.importorskip("jax", reason="needs jax")
    import attention_jax

    call, dout = filled_rows(fill)

    def loss(value: Any, rest: dict[str, Any]) -> Any:
        return (attention_jax.dot_product_attention(**rest, value=value, scale=0.0, impl="tiled") * dout).sum()

    arrays = {name: JITTED.to(x) for name, x in call.items()}
    assert_spread_evenly(jax.jit(jax.grad(loss))(arrays.pop("value"), arrays), dout)


def test_a_large_lse_leaves_other_rows_and_empty_rows_alone() -> None:
    call, dout = filled_rows(-1e9)
    call["bias"][1:] = 0.0
    call["bias"][4] = -np.inf
    _, pullback = attention.vjp(**call, scale=0.0, impl="tiled")
    assert_spread_evenly(pullback(dout).value, np.delete(dout, 4, axis=-2))
    assert (pullback(dout).query[:, 4] == 0).all()


# Wrong calls whose error did not name the argument, or that raised none

X = np.eye(3)
OFFSETS = np.array([0, 3])
ODD = {"layout": X, "impl": X, "scale": 10**400, "softcap": Fraction(10**400)}


@pytest.mark.parametrize("name", ODD)
def test_odd_words_and_numbers(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        attention.dot_product_attention(X, X, X, **{name: ODD[name]})
    with pytest.raises(ValueError, match="`stage` must be"):
        attention.attention_scores(X, X, stage=X)
    with pytest.raises(ValueError, match="`rate` must be"):
        attention.dropout(10**400, 1)


@pytest.mark.parametrize("name", ["query", "key", "value", "bias", "sinks"])
@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.int4, [("a", "f4")]], ids=str)
def test_dtypes_that_numpy_does_not_classify(name: str, dtype: Any) -> None:
    call = {"query": X, "key": X, "value": X, name: np.zeros(1 if name == "sinks" else (3, 3), dtype)}
    with pytest.raises(TypeError, match=f"`{name}` has dtype"):
        attention.dot_product_attention(**call)


def test_a_class_is_no_array() -> None:
    with pytest.raises(TypeError, match="`key` must be an array; got a type"):
        attention.dot_product_attention(X, np.ndarray, X)


@pytest.mark.parametrize("wrong", [True, 0.5, None, "0", [0], np.array(0.5), np.datetime64("2020-01-01")], ids=repr)
def test_packed_positions(wrong: Any) -> None:
    x = X[:, None]
    with pytest.raises(TypeError, match="`query_positions` must be an integer"):
        attention.packed_attention(x, x, x, OFFSETS, query_positions=wrong)


def test_packed_positions_too_far() -> None:
    x = X[:, None]
    with pytest.raises(ValueError, match="`key_positions` must lie within"):
        attention.packed_attention(x, x, x, OFFSETS, key_positions=10**30)


COTANGENTS: dict[str, Callable[[np.ndarray], Any]] = {
    "complex": lambda x: x + 0j,
    "integer": lambda x: x.astype(int),
    "object": lambda x: x.astype(object),
    "masked": np.ma.array,
}


@pytest.mark.parametrize("kind", COTANGENTS)
def test_kinds_of_cotangents_and_tangents(kind: str) -> None:
    wrong, (_, pullback) = COTANGENTS[kind], attention.vjp(X, X, X)
    with pytest.raises(TypeError, match="`out_cotangent` must be"):
        pullback(wrong(X))
    with pytest.raises(TypeError, match="`lse_cotangent` must be"):
        pullback(X, wrong(np.ones(3)))
    with pytest.raises(TypeError, match=re.escape("`tangents.key` must be")):
        attention.jvp(X, X, X, attention.Gradients(None, wrong(X), None))
    with pytest.raises(TypeError, match=re.escape("`tangents.bias` must be")):
        attention.jvp(X, X, X, attention.Gradients(None, None, None, wrong(X)), bias=X)


def test_tangents_of_another_kind() -> None:
    with pytest.raises(TypeError, match="`tangents` must be Gradients"):
        attention.jvp(X, X, X, (X, X, X))
    with pytest.raises(ValueError, match=re.escape("`tangents.query` must have shape (1, 3, 3); got a str")):
        attention.jvp(X, X, X, attention.Gradients("x", None, None))
    of_alibi = attention.Gradients(None, None, None, attention.biases.alibi(1))
    with pytest.raises(TypeError, match=re.escape("`tangents.bias` must be of the kind of the call's `bias`")):
        attention.jvp(X, X, X, of_alibi, bias=X)
    with pytest.raises(ValueError, match=re.escape("`tangents.bias` must have shape (3, 3); got shape (3,)")):
        attention.jvp(X, X, X, attention.Gradients(None, None, None, np.ones(3)), bias=X)


# Caps that float32 does not hold


@pytest.mark.parametrize("impl", ["dense", "tiled"])
@pytest.mark.filterwarnings("ignore:overflow encountered in divide:RuntimeWarning")
def test_caps_beyond_float32(impl: str) -> None:
    x = X.astype(np.float32)
    found = attention.dot_product_attention(x, x, x, softcap=1e300, impl=impl)
    np.testing.assert_allclose(found, attention.dot_product_attention(x, x, x, impl="dense"), rtol=1e-6)
    found = attention.dot_product_attention(x, x, x, softcap=1e-300, impl=impl)
    np.testing.assert_allclose(found, np.full((3, 3), 1 / 3), rtol=1e-6)


def test_numpy_raises_and_warns_of_nothing() -> None:
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=shape) * 60 for shape in ((2, 3, 8), (2, 5, 8), (2, 5, 4)))
    key[0, 1] = np.nan
    with np.errstate(all="raise"):
        result, pullback = attention.vjp(query, key, value, mask=attention.masks.causal())
        gradients = pullback(np.ones_like(result.out))
    assert np.isfinite(result.out[1]).all()
    assert np.isfinite(gradients.query[1]).all()


def test_a_rule_takes_parameters_by_name() -> None:
    rule = attention.masks.rule(lambda b, h, i, j, p: i - j < p["reach"], {"reach": np.asarray(2)})
    out = attention.dot_product_attention(
        np.zeros((4, 2)), np.zeros((4, 2)), np.eye(4), mask=rule & attention.masks.causal()
    )
    np.testing.assert_array_equal(out[3], [0, 0, 0.5, 0.5])


# A cotangent that is NaN reaches what its row sees, and nothing else

WHERE = pytest.mark.parametrize(
    ("library", "impl"),
    [(NUMPY, "dense"), (NUMPY, "tiled"), (JITTED, "dense"), (JITTED, "tiled")],
    ids=["numpy-dense", "numpy-tiled", "jax-dense", "jax-tiled"],
)


@WHERE
@pytest.mark.parametrize("of_lse", [False, True], ids=["of out", "of lse"])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_nan_cotangent_reaches_what_its_row_sees(library: Library, impl: str, of_lse: bool) -> None:
    rng = np.random.default_rng(5)
    query, key, value = (rng.normal(size=(1, length, depth)) for length, depth in ((QUERIES, 3), (KEYS, 3), (KEYS, 2)))
    dout, dlse = np.ones((1, QUERIES, 2)), np.ones((1, QUERIES))
    (dlse if of_lse else dout)[0, 1] = np.nan

    def gradients(query: Any, key: Any, value: Any, dout: Any, dlse: Any) -> Any:
        mask = attention_core.masks.causal()
        return tuple(attention_core.vjp(query, key, value, mask=mask, impl=impl)[1](dout, dlse)[:3])

    dquery, dkey, dvalue = map(library.numpy, library.call(gradients, query, key, value, dout, dlse))
    spoilt = [np.flatnonzero(np.isnan(x[0]).any(axis=-1)).tolist() for x in (dquery, dkey, dvalue)]
    assert spoilt[:2] == [[1], [0, 1]]
    assert spoilt[2] in ([[0, 1]] if not of_lse else [[], [0, 1]])  # lse knows no values; a kernel may spoil p
