"""The provider of matrix products, and what show_config tells of it."""

from typing import Any

import numpy as np
import pytest

from attention_np import gemm
from attention_np.config import show_config


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
    monkeypatch.setattr(gemm, "_mkl", lambda: None)
    with pytest.raises(ImportError, match="mkl"):
        gemm.use_provider("mkl")


@pytest.mark.skipif(gemm._mkl() is None, reason="MKL is not installed; `pip install mkl` brings it")
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
