"""The provider of matrix products, and what show_config tells of it."""

from typing import Any

import numpy as np
import pytest

from attention_core import masks
from attention_core.problem import make_problem
from attention_np import gemm, mkl
from attention_np.backward import tiled_backward
from attention_np.config import show_config
from attention_np.forward import tiled_forward

needs_mkl = pytest.mark.skipif(mkl.load() is None, reason="MKL is not installed; `pip install mkl` brings it")


@pytest.fixture(autouse=True)
def default_provider() -> Any:
    yield
    gemm.use_provider("auto")


def test_the_provider_is_chosen_by_name_and_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm.use_provider("numpy")
    assert gemm.provider() == show_config()["gemm"] == "numpy"
    with pytest.raises(ValueError, match="provider"):
        gemm.use_provider("cublas")
    assert gemm.provider() == "numpy"
    gemm.use_provider("auto")
    monkeypatch.setenv("ARRAY_ATTENTION_GEMM", "numpy")
    assert gemm.provider() == "numpy"


def test_mkl_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mkl, "load", lambda: None)
    with pytest.raises(ImportError, match="mkl"):
        gemm.use_provider("mkl")


@needs_mkl
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_mkl_multiplies_every_order_that_the_kernel_gives_it(dtype: str) -> None:
    gemm.use_provider("mkl")
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((40, 50)).astype(dtype)
    a, b = wide[:7, 3:14], wide[5:16, :9]
    columns = np.asfortranarray(wide)[:11, :9]
    for left, right in ((a, b), (b.T, a.T), (a, columns), (a[:1], b), (a[:, :0], b[:0]), (a, b[::-1])):
        out = np.empty((left.shape[0], right.shape[1]), dtype)
        gemm.multiply()(left, right, out)
        np.testing.assert_allclose(out, left.astype("f8") @ right.astype("f8"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("intel", "products"), [(True, "mkl"), (False, "numpy")])
@needs_mkl
def test_mkl_exponentiates_where_it_is_installed_and_multiplies_on_intels_processors(
    intel: bool, products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm, "_is_intel", lambda: intel)
    assert show_config()["gemm"] == products
    assert show_config()["exponential"]["float32"] == "mkl exp2"
    gemm.use_provider("numpy")
    assert show_config()["exponential"]["float32"].startswith("numpy exp")


@needs_mkl
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_mkls_exponential_is_right_to_a_unit_in_the_last_place(dtype: str) -> None:
    x = np.random.default_rng(0).uniform(-100, 60, 10_001).astype(dtype)
    found = mkl.exp2(x)
    expected = np.exp2(x.astype(np.longdouble))
    assert np.abs(found / expected - 1).max() < np.finfo(dtype).eps
    whole = np.arange(-100, 61).astype(dtype)
    np.testing.assert_array_equal(mkl.exp2(whole), np.ldexp(np.ones_like(whole), whole.astype(int)))
    assert mkl.exp2(x.dtype.type(-60)) == 2.0**-60
    assert mkl.exp2(x, out=x) is x
    np.testing.assert_array_equal(x, found)


def placed(x: Any, offset: int) -> Any:
    """Return a copy that begins ``offset`` bytes after a line of the cache."""
    room = np.empty(x.nbytes + 128, np.uint8)
    first = -room.ctypes.data % 64 + offset
    copy = room[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


@pytest.mark.parametrize("provider", ["numpy", pytest.param("mkl", marks=needs_mkl)])
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_no_bit_depends_on_where_an_array_begins_nor_on_threads(provider: str, scale: float) -> None:
    gemm.use_provider(provider)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, n, d), np.float32) for n, d in ((601, 37), (703, 37), (703, 21)))
    found = []
    for offset, threads in ((0, 1), (4, 2), (20, 1), (36, 3)):
        arrays = (placed(x, offset) for x in (scale * q, k, v))
        problem = make_problem(*arrays, mask=masks.causal(), query_positions=102)
        result = tiled_forward(problem, lse=True, threads=threads)
        gradients = tiled_backward(problem, result, placed(q[..., :21], offset), None, threads=threads)
        found.append((*result[:2], gradients.query, gradients.key, gradients.value))
    for other in found[1:]:
        for x, y in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(x, y)
