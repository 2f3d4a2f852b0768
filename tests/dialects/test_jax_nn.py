"""The jax.nn dialect is jax.nn and stands in for it in a program; but hidden NaN stays hidden, lse has a gradient.

JAX compiles each operation for each shape, so few shapes are asked, in many calls.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from attention_np.dialects.jax_nn import dot_product_attention
from tests.dialects.draws import close

jax = pytest.importorskip("jax", reason="the peer is not installed; `pip install jax` brings it")

Call = dict[str, Any]
B, LQ, LK, HQ, HKV, D = 2, 3, 5, 4, 2, 7
RNG = np.random.default_rng(0)
ARRAYS = {
    name: RNG.normal(size=shape).astype(np.float32)
    for name, shape in {"query": (B, LQ, HQ, D), "key": (B, LK, HKV, D), "value": (B, LK, HKV, D)}.items()
}
MASK_SHAPES = [(B, HQ, LQ, LK), (1, 1, LQ, LK), (HQ, 1, LK)]
BIAS_SHAPES = [(B, HQ, LQ, LK), (B, 1, 1, LK)]


def by_jax(**call: Any) -> Any:
    return jax.nn.dot_product_attention(**call)


def masked(shape: tuple[int, ...]) -> np.ndarray:
    """Booleans, a row in four all False."""
    seen: np.ndarray = (RNG.random(shape) < 0.7) & (RNG.random((*shape[:-1], 1)) < 0.75)
    return seen


def calls() -> list[Call]:
    """Every pair of an argument's kinds, its numbers drawn anew for each call."""
    kinds = product([None, *MASK_SHAPES], [None, *BIAS_SHAPES], [False, True])
    found = []
    for index, (mask, bias, causal) in enumerate(kinds):
        call: Call = {"is_causal": causal, "scale": (None, 0.5, 0.0, -0.5)[index % 4]}
        call |= {"mask": masked(mask)} if mask else {}
        call |= {"bias": RNG.normal(size=bias).astype(np.float32)} if bias else {}
        for name, most, every in (("query_seq_lengths", LQ, 2), ("key_value_seq_lengths", LK, 3)):
            call |= {name: RNG.integers(0, most + 1, size=B).astype(np.int32)} if index % every else {}
        call |= {"local_window_size": ((1, 2), (0, 3), 1, 0)[index % 4]} if index % 5 < 2 else {}
        found.append({**ARRAYS, **call})
    return found


def cases() -> list[Any]:
    """The quick suite asks a third of the calls."""
    return [pytest.param(call, marks=[pytest.mark.slow] if index % 3 else []) for index, call in enumerate(calls())]


@pytest.mark.parametrize("call", cases())
def test_every_call_is_jax_nns(call: Call) -> None:
    expected, expected_lse = by_jax(**call, return_residual=True)
    found, lse = dot_product_attention(**call, return_residual=True)
    close(found, expected)
    close(lse, expected_lse)
    assert lse.dtype == expected_lse.dtype


def test_without_a_batch_axis() -> None:
    arrays = {name: x[0] for name, x in ARRAYS.items()}
    call = {**arrays, "mask": masked((HQ, LQ, LK)), "bias": np.ones((1, HQ, LQ, LK), np.float32)}
    found = dot_product_attention(**call, return_residual=True)
    expected = jax.jit(lambda call: by_jax(**call, return_residual=True))(call)
    for ours, theirs in zip(found, expected, strict=True):
        close(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes_are_jax_nns(dtype: str) -> None:
    """Of an empty row too, where jax.nn's lse is its fill, or -inf in float16."""
    with jax.enable_x64(dtype == "float64"):
        call: Call = {name: np.asarray(jax.numpy.asarray(x, dtype)) for name, x in ARRAYS.items()}
        call["key_value_seq_lengths"] = np.array([0, 3], np.int32)
        found, lse = dot_product_attention(**call, return_residual=True)
        expected, expected_lse = by_jax(**call, return_residual=True)
        assert (found.dtype, lse.dtype) == (expected.dtype, expected_lse.dtype)
        tolerance = 1e-6 if dtype == "float64" else 2e-2
        for ours, theirs in ((found, expected), (lse, expected_lse)):
            np.testing.assert_allclose(*(x.astype("float32") for x in (ours, theirs)), rtol=tolerance, atol=tolerance)


def test_in_a_jax_program_by_changing_the_import() -> None:
    from attention_jax.dialects import jax_nn

    mask = masked((1, 1, LQ, LK))
    lengths = np.array([2, 5], np.int32)

    def loss(attention: Any, query: Any, key: Any, value: Any, bias: Any, lengths: Any) -> Any:
        out = attention(query, key, value, bias, mask, key_value_seq_lengths=lengths, is_causal=True)
        return (out * jax.numpy.cos(jax.numpy.arange(out.size).reshape(out.shape))).sum()

    arrays = [jax.numpy.asarray(x) for x in (*ARRAYS.values(), np.ones((B, HQ, LQ, LK), np.float32))]
    expected, found = (
        jax.jit(jax.value_and_grad(lambda *call, f=f: loss(f, *call), argnums=(0, 1, 2, 3)))(*arrays, lengths)
        for f in (jax.nn.dot_product_attention, jax_nn.dot_product_attention)
    )
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        close(ours, theirs)


def test_float16_under_jit() -> None:
    """jax.nn falls back to what a CPU has only where it runs eagerly."""
    from attention_jax.dialects.jax_nn import dot_product_attention as ours

    half = [x.astype(np.float16) for x in ARRAYS.values()]
    assert jax.jit(ours)(*half).dtype == np.float16
    if jax.default_backend() == "cpu":
        with pytest.raises(ValueError, match="not supported by dot_general on CPU"):
            jax.jit(jax.nn.dot_product_attention)(*half)


@pytest.mark.slow
def test_under_vmap() -> None:
    from attention_jax.dialects.jax_nn import dot_product_attention as ours

    stacked = [jax.numpy.stack([x, 2 * x, -x]) for x in ARRAYS.values()]
    lengths = jax.numpy.asarray([[1, 5], [0, 2], [3, 3]], dtype="int32")
    found, expected = (
        jax.jit(jax.vmap(lambda q, k, v, n, f=f: f(q, k, v, key_value_seq_lengths=n)))(*stacked, lengths)
        for f in (ours, jax.nn.dot_product_attention)
    )
    close(found, expected)


@pytest.mark.slow
def test_arrays_of_numpy_beside_those_of_jax() -> None:
    arrays = {name: jax.numpy.asarray(x) for name, x in ARRAYS.items()}
    call = {"mask": masked(MASK_SHAPES[1]), "key_value_seq_lengths": np.array([1, 4], np.int32)}
    close(dot_product_attention(**arrays, **call), by_jax(**arrays, **call))


@pytest.mark.slow
def test_the_xla_implementation_has_second_derivatives() -> None:
    x = jax.numpy.asarray(RNG.normal(size=(2, 1, 3)), dtype="float32")

    def total(query: Any, attention: Any) -> Any:
        return (attention(query, x, x, implementation="xla") ** 2).sum()

    found, expected = (
        jax.jit(jax.hessian(lambda query, f=f: total(query, f)))(x)
        for f in (dot_product_attention, jax.nn.dot_product_attention)
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_values_that_no_row_sees() -> None:
    """jax.nn multiplies NaN by 0."""
    key, value = ARRAYS["key"].copy(), ARRAYS["value"].copy()
    key[:, 3:], value[:, 3:] = np.nan, np.inf
    call = {"query": ARRAYS["query"], "key_value_seq_lengths": np.array([3, 3], np.int32)}
    zeros = {name: np.where(np.isfinite(x), x, 0) for name, x in {"key": key, "value": value}.items()}
    close(dot_product_attention(**call, key=key, value=value), by_jax(**call, **zeros))
    assert np.isnan(by_jax(**call, key=key, value=value)).any()


def test_a_row_that_infinite_biases_hide_is_the_mean_too() -> None:
    """jax.nn gives NaN, or the mean of what the mask hides."""
    bias = np.where(np.arange(LQ)[:, None] == 1, -np.inf, np.zeros(LK)).astype(np.float32)[None, None]
    found, theirs = dot_product_attention(**ARRAYS, bias=bias), by_jax(**ARRAYS, bias=bias)
    close(found[:, 1], np.repeat(ARRAYS["value"].mean(1), HQ // HKV, axis=1))
    assert np.isnan(theirs[:, 1]).all()
    close(found[:, 0], theirs[:, 0])


def test_lse_has_a_gradient() -> None:
    """The documentation does not say that jax.nn stops it."""

    def total(query: Any, attention: Any) -> Any:
        return attention(query, ARRAYS["key"], ARRAYS["value"], return_residual=True)[1].sum()

    ours, theirs = (
        jax.jit(jax.grad(lambda query, f=f: total(query, f)))(ARRAYS["query"])
        for f in (dot_product_attention, jax.nn.dot_product_attention)
    )
    assert not theirs.any()
    step = 1e-2 * RNG.normal(size=ARRAYS["query"].shape)
    ahead, behind = (total(ARRAYS["query"] + sign * step, dot_product_attention) for sign in (1, -1))
    np.testing.assert_allclose((ours * step).sum(), (ahead - behind) / 2, rtol=1e-3)


WRONG = [
    ({"query": ARRAYS["query"][0, 0]}, ValueError, r"must be \(L, H, D\) or \(B, L, H, D\)"),
    ({"query": ARRAYS["query"][0]}, ValueError, r"must be \(L, H, D\) or \(B, L, H, D\)"),
    ({"query": ARRAYS["query"][:, :, :3]}, ValueError, "does not divide the 3 heads"),
    ({"value": ARRAYS["value"][..., :3]}, ValueError, "jax.nn takes that of `key`"),
    ({"mask": np.ones((LQ, LK))}, TypeError, "numbers are a `bias`"),
    ({"bias": np.ones((LQ, LK), bool)}, TypeError, "booleans are a `mask`"),
    ({"mask": np.ones((LK, LQ), bool)}, ValueError, "does not broadcast"),
    ({"local_window_size": (-1, 0)}, ValueError, "must be at least 0"),
    ({"key_value_seq_lengths": np.ones(3, int)}, ValueError, "does not broadcast"),
    ({"key_value_seq_lengths": np.ones(2)}, TypeError, "must be an integer or an integer array"),
    ({"implementation": "fast"}, ValueError, "`impl` must be one of"),
]


@pytest.mark.parametrize(("change", "error", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_a_wrong_call_says_what_is_wrong(change: Call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        dot_product_attention(**{**ARRAYS, **change})
