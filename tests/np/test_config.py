"""What a call would take, in words, and what the package says it computes with."""

from typing import Any

import numpy as np
import pytest

from attention_np import biases, masks, which_kernel
from attention_np.config import get_num_threads, set_num_threads, show_config, use_provider


def arrays(queries: int = 600, keys: int = 700) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, length, 8)).astype(np.float32) for length in (queries, keys, keys))
    return q, k, v


def with_one_nan() -> tuple[Any, Any, Any]:
    q, k, v = arrays()
    k[1, 550] = np.nan
    return q, k, v


@pytest.mark.parametrize(
    ("given", "call", "way"),
    [
        (arrays(), {}, "tiles: 4 without a maximum"),
        (arrays(), {"scale": 90.0}, "tiles: 4 with a reference that rises only when it must"),
        (arrays(), {"bias": biases.alibi(2)}, "tiles: 4 with a reference that rises only when it must"),
        (with_one_nan(), {"mask": masks.causal()}, "tiles: 3 without a maximum, 1 by the definition, for what"),
        (arrays(1, 5000), {"mask": masks.causal(), "query_positions": 4999}, "decode: few queries, all heads at once"),
        (arrays(1, 5000), {"softcap": 3.0}, "decode: few queries, a head at a time: 2 with a reference"),
    ],
)
def test_the_way_of_a_call(given: Any, call: dict[str, Any], way: str) -> None:
    choice = which_kernel(*given, **call)
    assert choice.impl == "tiled"
    assert way in choice.reason


def test_a_dense_call_has_no_way() -> None:
    assert which_kernel(*arrays(3, 4)).reason == "the first that suits the call"
    assert "an axis is empty" in which_kernel(*arrays(0, 4), impl="tiled").reason


def test_what_is_set_is_shown() -> None:
    try:
        set_num_threads(3)
        use_provider("numpy")
        assert get_num_threads() == show_config()["threads"] == 3
        assert show_config()["gemm"] == "numpy"
    finally:
        set_num_threads(None)
        use_provider("auto")
    assert show_config()["numpy"] == np.__version__
