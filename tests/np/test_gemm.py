"""The providers of matrix products and of the exponential, and what show_config tells of them."""

from typing import Any

import numpy as np
import pytest

from attention_core import masks
from attention_core.problem import make_problem
from attention_np import compiled, exponent, gemm, mkl
from attention_np.backward import tiled_backward
from attention_np.config import show_config
from attention_np.forward import tiled_forward

needs_mkl = pytest.mark.skipif(not gemm.has("mkl"), reason="MKL is not installed; `pip install mkl` brings it")
needs_numba = pytest.mark.skipif(not gemm.has("numba"), reason="numba is not installed; `pip install numba` brings it")
PROVIDERS = ["numpy", pytest.param("mkl", marks=needs_mkl), pytest.param("numba", marks=needs_numba)]


@pytest.fixture(autouse=True)
def default_provider() -> Any:
    yield
    gemm._CHOSEN.clear()


def test_the_provider_is_chosen_by_name_and_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm.use_provider("numpy")
    assert gemm.provider() == show_config()["gemm"] == "numpy"
    with pytest.raises(ValueError, match="provider"):
        gemm.use_provider("cublas")
    assert gemm.provider() == "numpy"
    gemm._CHOSEN.clear()
    monkeypatch.setenv("ARRAY_ATTENTION_GEMM", "numpy")
    assert gemm.chosen() == gemm.provider() == "numpy"
    gemm.use_provider("auto")
    assert gemm.chosen() == "auto"


@pytest.mark.parametrize(("name", "module"), [("mkl", mkl), ("numba", compiled)])
def test_what_is_not_installed_is_refused(name: str, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load", lambda *args: None)
    with pytest.raises(ImportError, match=rf"{name}\]"):
        gemm.use_provider(name)
    monkeypatch.setenv("ARRAY_ATTENTION_GEMM", name)
    with pytest.raises(ImportError, match=rf"{name}\]"):
        show_config()


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
def test_mkl_multiplies_where_it_is_installed_on_intels_processors(
    intel: bool, products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm, "_is_intel", lambda: intel)
    assert show_config()["gemm"] == products


@pytest.mark.parametrize(
    ("vectorised", "installed", "name"),
    [
        (True, ("numba", "mkl"), "numpy exp2"),
        (False, ("numba", "mkl"), "numba exp2"),
        (False, ("mkl",), "mkl exp2"),
        (False, (), "numpy exp"),
    ],
)
def test_the_fastest_exponential_there_is(
    vectorised: bool, installed: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exponent, "_is_vectorised", lambda name, dtype: vectorised)
    monkeypatch.setattr(exponent, "has", lambda name, dtype: name in installed)
    exponent._exponential.cache_clear()
    assert exponent.exponential(np.dtype(np.float32)).name == name
    monkeypatch.undo()
    exponent._exponential.cache_clear()


@pytest.mark.parametrize(
    ("chosen", "products"),
    [
        ("numpy", "numpy"),
        pytest.param("numba", "numpy", marks=needs_numba),
        pytest.param("mkl", "mkl", marks=needs_mkl),
    ],
)
def test_a_chosen_provider_exponentiates_too(chosen: str, products: str) -> None:
    gemm.use_provider(chosen)
    assert show_config()["gemm"] == products
    assert all(name.startswith(f"{chosen} exp") for name in show_config()["exponential"].values())


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


@pytest.mark.parametrize("provider", PROVIDERS)
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
