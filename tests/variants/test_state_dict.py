"""Weights go in and out by the article's names, and every mapping that does not fit is refused by the name at fault."""

from typing import Any

import numpy as np
import pytest

from attention_core.variants import CausalSelfAttention, CrossAttention, Layer, MultiHeadAttentionWrapper, SelfAttention
from tests.variants.samples import ALL, D_IN, D_KQ, D_V, HEADS, LIBRARIES, ONE_HEAD, Library, inputs, make, weights

SINGLE = (SelfAttention, CrossAttention, CausalSelfAttention)
every_layer = pytest.mark.parametrize("layer", ALL, ids=lambda layer: layer.__name__)


@every_layer
@pytest.mark.parametrize("library", LIBRARIES)
def test_weights_come_out_as_they_went_in(layer: type[Layer], library: Library) -> None:
    state = weights(layer, np.float32)
    out = make(layer, library, "float32").state_dict()
    assert list(out) == list(state)
    for name, array in out.items():
        assert isinstance(array, type(library.put(state[name])))
        np.testing.assert_array_equal(library.get(array), state[name])


def test_names_are_those_of_the_articles_modules() -> None:
    for layer in SINGLE:
        assert list(weights(layer)) == ["W_query", "W_key", "W_value"]
    names = [f"heads.{h}.{name}" for h in range(HEADS) for name in ("W_query", "W_key", "W_value")]
    assert list(weights(MultiHeadAttentionWrapper)) == names


@pytest.mark.torch
@every_layer
def test_a_torch_modules_own_state_dict_loads(layer: type[Layer]) -> None:
    import torch

    from conformance.record.article import layer_classes

    self_attention, wrapper, cross = layer_classes()
    made = {SelfAttention: self_attention, CrossAttention: cross, MultiHeadAttentionWrapper: wrapper}
    arguments = (D_IN, D_KQ, D_V, HEADS) if layer is MultiHeadAttentionWrapper else (D_IN, D_KQ, D_V)
    torch.manual_seed(0)
    module = made.get(layer, self_attention)(*arguments)
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    ours = layer.from_state_dict(state)
    module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in ours.state_dict().items()})
    if layer is not CausalSelfAttention:
        given = inputs(layer, (), np.float32)
        wanted = module(*map(torch.from_numpy, given)).detach().numpy()
        np.testing.assert_allclose(ours(*given), wanted, atol=1e-5)


def test_heads_are_ordered_by_number_not_by_spelling() -> None:
    heads = 11
    state = {f"heads.{h}.{name}": np.full((D_IN, D_V), float(h)) for h in reversed(range(heads)) for name in ONE_HEAD}
    wrapper = MultiHeadAttentionWrapper.from_state_dict(dict(sorted(state.items())))
    np.testing.assert_array_equal(wrapper.W_value[:, 0, 0], np.arange(heads))


def without(state: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: array for key, array in state.items() if key != name}


SINGLE_STATE, HEADS_STATE = weights(SelfAttention), weights(MultiHeadAttentionWrapper)
NO_HEADS: dict[str, Any] = {}
WRONG = [
    (SelfAttention, without(SINGLE_STATE, "W_key"), ValueError, r"missing: \['W_key'\], not expected: \[\]"),
    (SelfAttention, SINGLE_STATE | {"bias": np.ones(3)}, ValueError, r"missing: \[\], not expected: \['bias'\]"),
    (SelfAttention, {}, ValueError, "must hold W_query, W_key, W_value; missing"),
    (SelfAttention, HEADS_STATE, ValueError, "must hold W_query, W_key, W_value; missing"),
    (SelfAttention, SINGLE_STATE | {"W_key": np.ones((D_IN, 7))}, ValueError, r"`W_key` has shape \(3, 7\).*\(3, 2\)"),
    (
        CrossAttention,
        SINGLE_STATE | {"W_value": np.ones((4, D_V))},
        ValueError,
        r"`W_value` has shape \(4, 5\).*\(3, 5\)",
    ),
    (CausalSelfAttention, SINGLE_STATE | {"W_query": np.ones(3)}, ValueError, r"`W_query` must be a matrix.*\(3,\)"),
    (SelfAttention, SINGLE_STATE | {"W_value": [[1.0]]}, TypeError, "`W_value` must be an array; got a list"),
    (SelfAttention, SINGLE_STATE | {"W_value": np.ones((3, 5), int)}, TypeError, "`W_value` has dtype int64"),
    (SelfAttention, SINGLE_STATE | {"W_value": np.ma.ones((3, 5))}, TypeError, "`W_value` must be a plain array"),
    (
        MultiHeadAttentionWrapper,
        NO_HEADS,
        ValueError,
        r"missing: \['heads.0.W_query', 'heads.0.W_key', 'heads.0.W_value'\]",
    ),
    (MultiHeadAttentionWrapper, SINGLE_STATE, ValueError, r"missing: \['heads.0.W_query'.*not expected: \['W_query'"),
    (
        MultiHeadAttentionWrapper,
        without(HEADS_STATE, "heads.3.W_value"),
        ValueError,
        r"heads.3.W_value; missing: \['heads.3.W_value'\], not expected: \[\]",
    ),
    (
        MultiHeadAttentionWrapper,
        {name.replace("heads.1.", "heads.7."): array for name, array in HEADS_STATE.items()},
        ValueError,
        r"missing: \['heads.1.W_query', .*not expected: \['heads.7.W_query'",
    ),
    (
        MultiHeadAttentionWrapper,
        HEADS_STATE | {"heads.2.W_key": np.ones((D_IN, 9))},
        ValueError,
        r"`heads.2.W_key` has shape \(3, 9\); beside the other weights it must be \(3, 2\)",
    ),
    (
        MultiHeadAttentionWrapper,
        HEADS_STATE | {"out.weight": np.ones(3)},
        ValueError,
        r"not expected: \['out.weight'\]",
    ),
]


@pytest.mark.parametrize(("layer", "state", "kind", "message"), WRONG)
def test_what_does_not_fit_is_refused(
    layer: type[Layer], state: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        layer.from_state_dict(state)


def test_weights_of_two_libraries_are_refused() -> None:
    import array_api_strict

    mixed = SINGLE_STATE | {"W_key": array_api_strict.asarray(SINGLE_STATE["W_key"])}
    with pytest.raises(TypeError, match="`W_key` is an array of array_api_strict but `W_query` is one of numpy"):
        SelfAttention.from_state_dict(mixed)
