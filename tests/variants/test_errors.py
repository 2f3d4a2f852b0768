"""Every wrong call of a layer: what kind of error it is, and that it names the argument, the rule and what came."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attention_core.variants import CausalSelfAttention, CrossAttention, Layer, MultiHeadAttentionWrapper, SelfAttention
from attention_core.variants.layer import Layer as BaseLayer
from tests.variants.samples import weights

X, X_2 = np.ones((6, 3)), np.ones((8, 3))


def made(layer: type[Layer], dtype: Any = np.float64) -> Any:
    return layer.from_state_dict(weights(layer, dtype))


def strict(x: np.ndarray) -> Any:
    import array_api_strict

    return array_api_strict.asarray(x)


CALLS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: made(SelfAttention)(np.ones((6, 3), int)), TypeError, "`x` has dtype int64; attention needs float16"),
    (lambda: made(SelfAttention)(np.ones((6, 3), bool)), TypeError, "`x` has dtype bool"),
    (lambda: made(SelfAttention)(np.ones((6, 3), complex)), TypeError, "`x` has dtype complex128"),
    (lambda: made(SelfAttention)([[1.0, 2.0, 3.0]]), TypeError, "`x` must be an array; got a list"),
    (lambda: made(SelfAttention)(None), TypeError, "`x` must be an array; got None"),
    (lambda: made(SelfAttention)(X.view(np.matrix)), TypeError, "`x` must be a plain array; got a numpy.matrix"),
    (
        lambda: made(SelfAttention)(np.ma.asarray(X)),
        TypeError,
        "`x` must be a plain array; got a numpy.ma.*MaskedArray",
    ),
    (
        lambda: made(SelfAttention)(np.ones(3)),
        ValueError,
        r"`x` must have at least the axes \(L, d_in\); got shape \(3,\)",
    ),
    (
        lambda: made(SelfAttention)(np.float64(1.0)),
        ValueError,
        r"`x` must have at least the axes \(L, d_in\); got shape \(\)",
    ),
    (
        lambda: SelfAttention.from_state_dict(None),
        TypeError,
        "`weights` must be a mapping of names to arrays; got None",
    ),
    (lambda: MultiHeadAttentionWrapper.from_state_dict(None), TypeError, "`weights` must be a mapping of names"),
    (lambda: MultiHeadAttentionWrapper.from_state_dict({1: X}), ValueError, r"not expected: \[1\]"),
    (lambda: SelfAttention(None, X, X)(X), TypeError, "`W_query` must be an array; got None"),
    (lambda: SelfAttention([[1.0]], X, X)(X), TypeError, "`W_query` must be an array; got a list"),
    (lambda: made(CausalSelfAttention)(np.ones((6, 4))), ValueError, "`x` has depth 4, but the layer has d_in = 3"),
    (
        lambda: made(MultiHeadAttentionWrapper)(np.ones((6, 4))),
        ValueError,
        "`x` has depth 4, but the layer has d_in = 3",
    ),
    (lambda: made(CrossAttention)(X, np.ones((8, 2))), ValueError, "`x_2` has depth 2, but the layer has d_in = 3"),
    (lambda: made(CrossAttention)(np.ones((6, 2)), X_2), ValueError, "`x_1` has depth 2, but the layer has d_in = 3"),
    (lambda: made(CrossAttention)(X, np.ones(3)), ValueError, r"`x_2` must have at least the axes \(L, d_in\)"),
    (
        lambda: made(CrossAttention)(np.ones((2, 6, 3)), np.ones((3, 8, 3))),
        ValueError,
        r"batch axes .* must broadcast together; got `query` \(2,\), `key` \(3,\)",
    ),
    (lambda: made(CrossAttention)(X), TypeError, "x_2"),
    (
        lambda: made(SelfAttention)(strict(X)),
        TypeError,
        "`W_query` is an array of numpy but `x` is one of array_api_strict",
    ),
    (
        lambda: made(CrossAttention)(X, strict(X_2)),
        TypeError,
        "`x_2` is an array of array_api_strict but `x_1` is one of numpy",
    ),
    (
        lambda: made(SelfAttention, ml_dtypes.bfloat16)(X.astype(np.float16)),
        TypeError,
        "`x` is float16 but `W_value` is bfloat16: neither holds the other",
    ),
    (
        lambda: SelfAttention(np.ones((3, 2)), np.ones((4, 2)), np.ones((3, 5)))(X),
        ValueError,
        r"`W_key` is 1 x \(4, 2\), heads x \(d_in, d_out\); beside `W_query` it must be 1 x \(3, 2\)",
    ),
    (
        lambda: MultiHeadAttentionWrapper(np.ones((4, 3, 2)), np.ones((4, 3, 2)), np.ones((2, 3, 5)))(X),
        ValueError,
        r"`W_value` is 2 x \(3, 5\), heads x \(d_in, d_out\); beside `W_query` it must be 4 x \(3, 5\)",
    ),
    (lambda: SelfAttention(np.ones((3, 2)), np.ones((3, 2)), np.ones(3))(X), ValueError, "`W_value` must be a matrix"),
    (lambda: SelfAttention(*np.ones((3, 3, 2), int))(X), TypeError, "`W_query` has dtype int64"),
]


@pytest.mark.parametrize(("call", "kind", "message"), CALLS)
def test_wrong_calls(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("method", ["steps", "vjp"])
def test_steps_and_vjp_check_as_the_call_does(method: str) -> None:
    with pytest.raises(ValueError, match="`x` has depth 4, but the layer has d_in = 3"):
        getattr(made(SelfAttention), method)(np.ones((6, 4)))
    with pytest.raises(TypeError, match="`x_2` has dtype int64"):
        getattr(made(CrossAttention), method)(X, np.ones((8, 3), int))


def test_layers_are_frozen() -> None:
    with pytest.raises(AttributeError, match="W_query"):
        made(SelfAttention).W_query = np.ones((3, 2))


def test_a_layer_of_ones_own_must_say_what_it_is() -> None:
    class Own(BaseLayer):
        pass

    for call in (Own.parameters, lambda: Own.from_state_dict({}), lambda: Own().state_dict()):
        with pytest.raises(NotImplementedError, match=r"Own must define (parameters|from_state_dict|state_dict)"):
            call()
