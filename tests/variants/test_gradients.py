"""The layers' closed-form gradients against finite differences, PyTorch's autograd and jax.grad."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attention_core.variants import CausalSelfAttention, CrossAttention, Layer, MultiHeadAttentionWrapper, SelfAttention
from tests.variants.samples import (
    ALL,
    BATCHES,
    DTYPES,
    EPS,
    LIGHT,
    Library,
    expected,
    has_bfloat16,
    inputs,
    make,
    sizes,
    weights,
)

every_layer = pytest.mark.parametrize("layer", ALL, ids=lambda layer: layer.__name__)

Gradients = dict[str, np.ndarray]


def cotangent_of(out: np.ndarray) -> np.ndarray:
    return np.random.default_rng(11).normal(size=out.shape)


def named(layer: type[Layer], given: tuple[Any, ...]) -> dict[str, Any]:
    """The inputs by name."""
    return dict(zip(("x_1", "x_2") if layer is CrossAttention else ("x",), given, strict=True))


def by_vjp(
    layer: type[Layer], library: Library, dtype: str, given: tuple[np.ndarray, ...]
) -> tuple[Any, dict[str, Any]]:
    """The context vectors, and the cotangents of inputs and weights by name, as the library's arrays."""
    made = make(layer, library, dtype)
    out, pullback = made.vjp(*map(library.put, given))
    *d_inputs, d_layer = pullback(library.put(cotangent_of(library.get(out)).astype(DTYPES[dtype])))
    assert type(d_layer) is layer
    return out, {**named(layer, tuple(d_inputs)), **d_layer.state_dict()}


def by_differences(layer: type[Layer], given: tuple[np.ndarray, ...]) -> Gradients:
    """Central differences of the loops' answer, number by number."""
    state = weights(layer)
    cotangent = cotangent_of(expected(layer, state, given))
    names = tuple(named(layer, given))
    point = {**named(layer, given), **state}

    def value(point: dict[str, np.ndarray]) -> float:
        changed = {name: array for name, array in point.items() if name not in names}
        return float((expected(layer, changed, tuple(point[name] for name in names)) * cotangent).sum())

    return {name: differences(value, point, name) for name in point}


def differences(
    value: Callable[[dict[str, np.ndarray]], float], point: Gradients, name: str, h: float = 1e-5
) -> np.ndarray:
    slopes = np.empty_like(point[name])
    for index in np.ndindex(slopes.shape):
        at = [point[name].copy(), point[name].copy()]
        at[0][index] += h
        at[1][index] -= h
        slopes[index] = (value(point | {name: at[0]}) - value(point | {name: at[1]})) / (2 * h)
    return slopes


@every_layer
def test_gradients_are_slopes(layer: type[Layer]) -> None:
    given = inputs(layer, (2,))
    _, found = by_vjp(layer, Library("numpy"), "float64", given)
    wanted = by_differences(layer, given)
    assert set(found) == set(wanted)
    for name, slope in wanted.items():
        np.testing.assert_allclose(found[name], slope, rtol=1e-7, atol=1e-7, err_msg=name)


@pytest.mark.torch
@every_layer
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_gradients_are_autograds(layer: type[Layer], batch: tuple[int, ...]) -> None:
    torch = Library("torch")
    given = inputs(layer, batch)
    out, found = by_vjp(layer, torch, "float64", given)
    leaves = {**named(layer, tuple(map(torch.put, given))), **make(layer, torch, "float64").state_dict()}
    for leaf in leaves.values():
        leaf.requires_grad_()
    state = {name: leaf for name, leaf in leaves.items() if "W_" in name}
    again = layer.from_state_dict(state)(*(leaf for name, leaf in leaves.items() if name not in state))
    again.backward(torch.put(cotangent_of(torch.get(out))))
    np.testing.assert_array_equal(torch.get(again.detach()), torch.get(out))
    for name, leaf in leaves.items():
        np.testing.assert_allclose(torch.get(found[name]), torch.get(leaf.grad), rtol=1e-11, atol=1e-11, err_msg=name)


@every_layer
@pytest.mark.parametrize("library", LIGHT)
def test_every_library_has_the_same_gradients(layer: type[Layer], library: Library) -> None:
    given = inputs(layer, (2, 1, 3))
    _, found = by_vjp(layer, library, "float64", given)
    _, wanted = by_vjp(layer, Library("numpy"), "float64", given)
    for name, array in found.items():
        assert isinstance(array, type(library.put(given[0])))
        np.testing.assert_allclose(library.get(array), wanted[name], rtol=1e-11, atol=1e-11, err_msg=name)


@every_layer
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("library", LIGHT)
def test_cotangents_have_the_dtype_of_what_they_belong_to(layer: type[Layer], library: Library, dtype: str) -> None:
    if dtype == "bfloat16" and not has_bfloat16(library.name):
        pytest.skip(f"{library.name} has no bfloat16")
    given = inputs(layer, (2,), DTYPES[dtype])
    _, found = by_vjp(layer, library, dtype, given)
    _, wanted = by_vjp(layer, Library("numpy"), "float64", tuple(x.astype(np.float64) for x in given))
    for name, array in found.items():
        assert str(array.dtype).rpartition(".")[2] == dtype
        size = np.abs(wanted[name]).max()
        # the weights of the float64 layer are not rounded, so this bounds their rounding too
        np.testing.assert_allclose(library.get(array), wanted[name], rtol=0, atol=64 * EPS[dtype] * size, err_msg=name)


@every_layer
def test_mixed_dtypes_give_each_its_own(layer: type[Layer]) -> None:
    given = inputs(layer, (), np.float32)
    made = layer.from_state_dict(weights(layer, np.float64))
    out, pullback = made.vjp(*given)
    *d_inputs, d_layer = pullback(np.ones_like(out))
    assert out.dtype == made(*given).dtype == np.float64
    assert {x.dtype for x in d_inputs} == {np.dtype(np.float32)}
    assert {x.dtype for x in d_layer.state_dict().values()} == {np.dtype(np.float64)}


def test_words_ahead_have_no_part_in_a_causal_rows_gradient() -> None:
    (x,) = inputs(CausalSelfAttention)
    out, pullback = CausalSelfAttention.from_state_dict(weights(CausalSelfAttention)).vjp(x)
    cotangent = np.zeros_like(out)
    cotangent[3] = 1.0
    dx, _ = pullback(cotangent)
    np.testing.assert_array_equal(dx[4:], 0)
    assert (dx[:4] != 0).all()


WRONG_COTANGENTS = [
    (SelfAttention, np.ones((6, 4)), r"the cotangent .*\(6, 5\); got shape \(6, 4\)"),
    (CausalSelfAttention, np.ones((2, 6, 5)), r"the cotangent .*\(6, 5\); got shape \(2, 6, 5\)"),
    (MultiHeadAttentionWrapper, np.ones((6, 4, 5)), r"the cotangent .*\(6, 20\); got shape \(6, 4, 5\)"),
    (CrossAttention, np.ones((8, 5)), r"the cotangent .*\(6, 5\); got shape \(8, 5\)"),
    (CrossAttention, 1.0, r"the cotangent .*\(6, 5\); got a float"),
]


@pytest.mark.parametrize(("layer", "cotangent", "message"), WRONG_COTANGENTS)
def test_a_cotangent_has_the_shape_of_the_context_vectors(layer: type[Layer], cotangent: Any, message: str) -> None:
    _, pullback = layer.from_state_dict(weights(layer)).vjp(*inputs(layer))
    with pytest.raises(ValueError, match=message):
        pullback(cotangent)


@every_layer
def test_vjp_gives_what_the_layer_gives(layer: type[Layer]) -> None:
    made, given = layer.from_state_dict(weights(layer)), inputs(layer, (7,))
    np.testing.assert_array_equal(made.vjp(*given)[0], made(*given))
    assert set(sizes(layer)) == set(layer.size_names)
