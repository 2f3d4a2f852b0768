"""Linear attention: no later token reaches an earlier row, by NaN, infinity or rounding; wrong states are said."""

from typing import Any

import numpy as np
import pytest

from attention_core.variants import LinearAttention, LinearState

from .samples import LIGHT, Library

FORMS: list[dict[str, Any]] = [{"form": "full"}, {"chunk": 3}, {"chunk": 5}, {"chunk": 64}]
LATE = 7


def layer(dtype: Any = np.float64, put: Any = np.asarray) -> LinearAttention:
    rng = np.random.default_rng(0)
    shapes = LinearAttention.parameters(d_in=6, num_heads=2, d_head=3)
    weights = {name: put(rng.normal(0, 0.5, each.shape).astype(dtype)) for name, each in shapes.items()}
    return LinearAttention.from_state_dict(weights, num_heads=2)


def tokens() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(2, 13, 6))


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("spoilt", [np.nan, np.inf])
@pytest.mark.parametrize("library", LIGHT)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_later_token_that_is_not_finite_leaves_earlier_rows(form: Any, spoilt: float, library: Library) -> None:
    x = tokens()
    y = x.copy()
    y[0, LATE, 2] = spoilt
    made = layer(put=library.put)
    expected, out = (library.get(made(library.put(each), **form)) for each in (x, y))
    np.testing.assert_allclose(out[0, :LATE], expected[0, :LATE], rtol=0, atol=1e-12)
    np.testing.assert_allclose(out[1], expected[1], rtol=0, atol=1e-12)
    assert np.isnan(out[0, LATE:]).all(axis=-1).all()


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("late", [10, 11])
def test_a_later_token_that_is_large_leaves_earlier_rows_as_exact_as_they_were(form: Any, late: int) -> None:
    x = tokens()
    x[:, late] *= 1e6
    exact = layer()(x[:, :late], form="full")
    out = layer(np.float32)(x.astype(np.float32), **form)
    np.testing.assert_allclose(out[:, :late], exact, rtol=0, atol=1e-5)


def test_a_wrong_state_or_mask_says_what_is_wrong() -> None:
    made, x = layer(), tokens()
    state = made(x, return_state=True).state
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"state": tuple(state)}, TypeError, "`state` must be a LinearState that a call returned; got a tuple"),
        ({"state": LinearState(state.products[:, :1], state.keys)}, ValueError, r"`state.products` has shape"),
        ({"state": LinearState(state.products, state.keys[..., :1])}, ValueError, r"need \(..., 2, 3\)"),
        ({"state": LinearState(np.ones((5, 2, 3, 3)), np.ones((5, 2, 3)))}, ValueError, r"`state.products` has shape"),
        ({"key_mask": np.ones((3, 13), bool)}, ValueError, r"broadcast to \(..., L\) = \(2, 13\)"),
        ({"key_mask": np.ones((2, 13), int)}, ValueError, "got an array of int64"),
        ({"key_mask": [True] * 13}, ValueError, "got a list"),
        ({"key_mask": [True] * 13, "lengths": 4}, ValueError, "got a list"),
        ({"key_mask": np.ones((2, 13)), "lengths": 4}, ValueError, "got an array of float64"),
        ({"key_mask": np.ones((2, 12), bool), "lengths": 4}, ValueError, r"broadcast to \(..., L\) = \(2, 13\)"),
    ]
    for call, kind, words in wrong:
        with pytest.raises(kind, match=words):
            made(x, **call)
