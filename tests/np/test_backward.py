"""The tiled gradients equal those of the dense definition, in tiles of a few rows."""

from typing import Any

import numpy as np
import pytest

from attention_core import masks
from attention_core.problem import make_problem
from attention_np import exponent, vjp
from attention_np.backward import tiled_backward
from attention_np.bias_gradient import diagonal_sums
from attention_np.forward import tiled_forward
from attention_np.plan import TileShape

from .problems import BIASES, MASKS, Case, assert_like, choose, defined_gradients, random_case
from .test_forward import rng_of


def arrays_of(gradient: Any) -> list[Any]:
    if gradient is None:
        return []
    return [np.asarray(x) for x in (gradient.arrays() if hasattr(gradient, "arrays") else [gradient])]


def check(case: Case, rng: np.random.Generator, scale: float = 1.0, dout: Any = None) -> None:
    p = case.problem
    dout = rng.standard_normal(p.sizes.out).astype(p.out_dtype) if dout is None else dout
    dlse = rng.standard_normal(p.sizes.out[:-1]).astype(p.dtype) if rng.random() < 0.5 else None
    expected = defined_gradients(p, dout, dlse)
    result = tiled_forward(p, lse=True, shape=case.shape, threads=1)
    got = tiled_backward(p, result, dout, dlse, shape=case.shape, threads=1)
    for name in expected._fields:
        pairs = zip(arrays_of(getattr(got, name)), arrays_of(getattr(expected, name)), strict=True)
        for a, b in pairs:
            coarse = min((p.out_dtype, b.dtype), key=lambda each: np.dtype(each).itemsize)
            assert_like(a, b, coarse, 5 * scale)


@pytest.mark.parametrize("mask", MASKS)
def test_every_mask(mask: str) -> None:
    rng = rng_of(mask, "backward")
    check(random_case(rng, mask, "none", "float64"), rng)
    check(random_case(rng, mask, "none", "float32"), rng, scale=2)
    check(random_case(rng, mask, "dense", "float16"), rng, scale=2)


@pytest.mark.parametrize("bias", BIASES)
def test_every_bias(bias: str) -> None:
    rng = rng_of(bias, "backward")
    for mask in ("none", "causal", "dense", "rule", "dense by head"):
        check(random_case(rng, mask, bias, "float64"), rng)


@pytest.mark.parametrize("mask", MASKS)
def test_what_is_not_finite_poisons_what_it_reaches_only(mask: str) -> None:
    rng = rng_of(mask, "backward poison")
    for bias in ("none", "dense", "alibi slopes"):
        check(random_case(rng, mask, bias, "float64", poison=True), rng)


def test_a_cotangent_that_is_not_finite_reaches_its_row_only() -> None:
    rng = np.random.default_rng(0)
    case = random_case(rng, "causal", "none", "float64")
    dout = rng.standard_normal(case.problem.sizes.out)
    dout[..., 0, :] = np.nan
    check(case, rng, dout=dout)


@pytest.mark.parametrize("name", ["numpy", "mkl", "numba"])
def test_every_exponential(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(name, monkeypatch)
    rng = rng_of("exponentials")
    for mask, bias, scale in (
        ("none", "none", 1.0),
        ("causal", "alibi", 1.0),
        ("dense", "holes", 1.0),
        ("window", "none", 99.0),
    ):
        check(random_case(rng, mask, bias, "float64", scale=scale), rng, scale=scale)
        check(random_case(rng, mask, bias, "float32", scale=min(scale, 9)), rng, scale=scale)


@pytest.mark.parametrize("scale", [16.0, 400.0])
def test_large_scores(scale: float) -> None:
    rng = rng_of(scale)
    for mask in ("none", "causal", "window"):
        check(random_case(rng, mask, "none", "float64", scale=scale), rng, scale=scale)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_bits(number: int) -> None:
    rng = np.random.default_rng(1)
    q, k, v, dout = (rng.standard_normal((2, 4, 90, 8)).astype(np.float32) for _ in range(4))
    problem = make_problem(q, k, v, mask=masks.causal())
    shape = TileShape(8, 8, 4)
    result = tiled_forward(problem, lse=True, shape=shape, threads=number)
    found = tiled_backward(problem, result, dout, None, shape=shape, threads=number)
    alone = make_problem(q[1], k[1], v[1], mask=masks.causal())
    once = tiled_forward(alone, lse=True, shape=shape, threads=1)
    expected = tiled_backward(alone, once, dout[1], None, shape=shape, threads=1)
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(getattr(found, name)[1], getattr(expected, name))


def test_the_public_vjp_takes_it() -> None:
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((2, 300, 8)) for _ in range(3))
    dout = rng.standard_normal((2, 300, 8))
    found = [vjp(q, k, v, mask=masks.causal(), impl=impl)[1](dout) for impl in ("dense", "tiled")]
    for name in ("query", "key", "value"):
        np.testing.assert_allclose(getattr(found[1], name), getattr(found[0], name), rtol=1e-10, atol=1e-12)


def test_diagonal_sums_by_hand() -> None:
    x = np.array([[[1.0, 2], [10, 20], [100, 200]]])
    np.testing.assert_array_equal(diagonal_sums(x), [[100, 10 + 200, 1 + 20, 2]])


@pytest.mark.parametrize("base2", [False, True])
def test_rows_whose_lse_has_no_number_in_another_base(base2: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times log2(e) the lowest number is ``-inf``, which would say that such a row sees nothing."""
    monkeypatch.setenv("ARRAY_ATTENTION_GEMM", "numpy")
    monkeypatch.setattr(exponent, "_is_vectorised", lambda name, dtype: base2)
    exponent._exponential.cache_clear()
    q, k, v, dout = np.random.default_rng(5).normal(size=(4, 1, 7, 3)).astype(np.float32)
    bias = np.full((7, 7), np.finfo(np.float32).min)
    gradient = vjp(q, k, v, bias=bias, scale=0.0, impl="tiled")[1](dout).value
    np.testing.assert_allclose(gradient, np.broadcast_to(dout.mean(axis=-2), v.shape), rtol=1e-5, atol=1e-6)
    monkeypatch.undo()
    exponent._exponential.cache_clear()
