"""What one call settles for the next of the same shapes and dtypes: never a check, never an array."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from attention_core import problem as module
from attention_core.problem import make_problem


def arrays(dtype: Any = np.float32, keys: int = 7) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in ((2, 4, 5, 3), (2, 2, keys, 3), (2, 2, 7, 6)))
    return q, k, v


def test_a_second_call_settles_the_same() -> None:
    first, second = make_problem(*arrays()), make_problem(*arrays())
    same = vars(first).keys() - {"query", "key", "value"}
    assert {name: vars(first)[name] for name in same} == {name: vars(second)[name] for name in same}
    assert second.query is not first.query


@pytest.mark.parametrize(
    ("given", "call", "error"),
    [
        (arrays(keys=8), {}, "`value` has length 7"),
        (arrays(np.int32), {}, "`query` has dtype int32"),
        (arrays(), {"scale": True}, "`scale` must be a Python number"),
        (arrays(), {"scale": np.inf}, "`scale` must be finite"),
        (arrays(), {"layout": "LHD"}, "`layout` must be"),
        (arrays(), {"layout": "BLHD"}, "heads"),
        (arrays(), {"query_positions": True}, "`query_positions` must be an integer"),
        (arrays(), {"softcap": 0.0}, "`softcap` must be positive"),
    ],
)
def test_a_wrong_call_after_a_right_one_still_raises(given: Any, call: dict[str, Any], error: str) -> None:
    make_problem(*arrays())
    with pytest.raises((TypeError, ValueError), match=error):
        make_problem(*given, **call)


def test_another_class_is_looked_at_anew() -> None:
    q, k, v = arrays()
    make_problem(q, k, v)
    with pytest.raises(TypeError, match="plain array"):
        make_problem(np.ma.masked_array(q), k, v)
    with pytest.raises(TypeError, match="must be an array"):
        make_problem(q, k, v.tolist())


def test_the_scale_is_the_call_s_own() -> None:
    make_problem(*arrays(), scale=3.0)
    assert make_problem(*arrays()).scale == pytest.approx(3**-0.5)
    assert make_problem(*arrays(), scale=2).scale == 2.0


def test_no_array_is_kept_and_not_too_many_shapes() -> None:
    q, k, v = arrays()
    seen = weakref.ref(q)
    make_problem(q, k, v)
    del q
    gc.collect()
    assert seen() is None
    for keys in range(1, 600):
        x = np.ones((1, keys, 2), np.float32)
        make_problem(x, x, x)
    assert len(module._SETTLED[np.ndarray]) <= 256
