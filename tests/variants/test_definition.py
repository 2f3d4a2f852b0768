"""Each layer is the article's formula: against two loops over Python numbers, in every library and dtype."""

from typing import Any

import numpy as np
import pytest

from attention_core.variants import CausalSelfAttention, CrossAttention, Layer, MultiHeadAttentionWrapper, SelfAttention
from tests.variants.samples import (
    ALL,
    BATCHES,
    D_V,
    DTYPES,
    EPS,
    HEADS,
    L_1,
    LIBRARIES,
    LIGHT,
    ONE_HEAD,
    Library,
    expected,
    has_bfloat16,
    inputs,
    make,
    weights,
)

every_layer = pytest.mark.parametrize("layer", ALL, ids=lambda layer: layer.__name__)


@every_layer
@pytest.mark.parametrize(
    ("library", "batch"),
    [
        *(pytest.param(*each.values, batch, marks=each.marks) for each in LIGHT for batch in BATCHES),
        (Library("jax"), (7,)),
        *((Library("jax-jit"), batch) for batch in BATCHES[::2]),
    ],
    ids=str,
)
def test_equals_two_loops(layer: type[Layer], library: Library, batch: tuple[int, ...]) -> None:
    given = inputs(layer, batch)
    with library.precision("float64"):
        out = library.call(make(layer, library, "float64"), *map(library.put, given))
        assert isinstance(out, type(library.put(given[0])))
    wanted = expected(layer, weights(layer), given)
    assert tuple(out.shape) == wanted.shape
    np.testing.assert_allclose(library.get(out), wanted, rtol=1e-13, atol=1e-13)


@every_layer
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounds_as_its_dtype_does(layer: type[Layer], library: Library, dtype: str) -> None:
    if dtype == "bfloat16" and not has_bfloat16(library.name):
        pytest.skip(f"{library.name} has no bfloat16")
    given = inputs(layer, (2,), DTYPES[dtype])
    with library.precision(dtype):
        out = library.call(make(layer, library, dtype), *map(library.put, given))
    assert str(out.dtype).rpartition(".")[2] == dtype
    wanted = expected(layer, weights(layer, DTYPES[dtype]), given)
    # rounded projections, of which scores up to ~10 are made: a few dozen roundings of numbers of order one
    np.testing.assert_allclose(library.get(out), wanted, rtol=0, atol=24 * EPS[dtype] * np.abs(wanted).max())


@every_layer
@pytest.mark.parametrize("library", LIGHT)
@pytest.mark.parametrize("batch", BATCHES[1:], ids=str)
def test_a_batch_is_its_items_one_by_one(layer: type[Layer], library: Library, batch: tuple[int, ...]) -> None:
    given = inputs(layer, batch, np.float32)
    with library.precision("float32"):
        made = make(layer, library, "float32")
        out = library.get(library.call(made, *map(library.put, given)))
        for item in np.ndindex(*batch):
            one = tuple(x[item[len(batch) - (x.ndim - 2) :]] for x in given)
            alone = library.get(library.call(made, *map(library.put, one)))
            np.testing.assert_allclose(out[item], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_wrapper_is_its_heads_one_by_one(library: Library) -> None:
    (x,) = inputs(MultiHeadAttentionWrapper, (2,), np.float32)
    with library.precision("float32"):
        wrapper = make(MultiHeadAttentionWrapper, library, "float32")
        out = library.get(library.call(wrapper, library.put(x)))
        alone = [library.get(library.call(head, library.put(x))) for head in wrapper.heads]
    assert [type(head) for head in wrapper.heads] == [SelfAttention] * HEADS
    assert out.shape == (2, L_1, HEADS * D_V)
    np.testing.assert_allclose(out, np.concatenate(alone, axis=-1), rtol=0, atol=1e-5)


def test_one_hand_computed_row() -> None:
    """Scores 0 and ln 3 (after the scale 1/sqrt(4)), so weights 1/4 and 3/4."""
    identity = np.eye(4)
    x = np.zeros((2, 4))
    x[1, 2] = np.sqrt(2 * np.log(3))
    layer = SelfAttention(identity, identity, np.ones((4, 1)))
    np.testing.assert_allclose(layer.steps(x)["attn_weights"], [[0.5, 0.5], [0.25, 0.75]])
    np.testing.assert_allclose(layer(x)[:, 0], x[1, 2] * np.array([0.5, 0.75]))


def test_cross_attention_of_a_sequence_with_itself_is_self_attention() -> None:
    state, (x,) = weights(SelfAttention), inputs(SelfAttention, (7,))
    np.testing.assert_array_equal(CrossAttention.from_state_dict(state)(x, x), SelfAttention.from_state_dict(state)(x))


def test_queries_come_from_the_first_input() -> None:
    layer, (x_1, x_2) = CrossAttention.from_state_dict(weights(CrossAttention)), inputs(CrossAttention)
    assert layer(x_1, x_2).shape == (L_1, D_V)
    order = np.random.default_rng(3).permutation(len(x_2))
    np.testing.assert_allclose(layer(x_1, x_2[order]), layer(x_1, x_2), atol=1e-14)
    np.testing.assert_allclose(layer(x_1[::-1], x_2), layer(x_1, x_2)[::-1], atol=1e-14)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e300])
def test_causal_rows_do_not_change_with_what_comes_after(poison: float) -> None:
    layer, (x,) = CausalSelfAttention.from_state_dict(weights(CausalSelfAttention)), inputs(CausalSelfAttention)
    changed = x.copy()
    changed[4:] = poison
    with np.errstate(all="ignore"):
        out = layer(changed)
    np.testing.assert_array_equal(out[:4], layer(x)[:4])
    np.testing.assert_allclose(layer(x[:4]), layer(x)[:4], atol=1e-15)


@every_layer
def test_an_empty_batch_gives_an_empty_batch(layer: type[Layer]) -> None:
    made, given = layer.from_state_dict(weights(layer)), inputs(layer)
    empty = tuple(np.zeros((0, *x.shape)) for x in given)
    assert made(*empty).shape == (0, *made(*given).shape)


@every_layer
def test_no_words_give_no_context(layer: type[Layer]) -> None:
    made, given = layer.from_state_dict(weights(layer)), inputs(layer)
    out = made(given[0][:0], *given[1:])
    assert out.shape == (0, made(*given).shape[-1])


def test_nothing_to_attend_to_gives_zeros() -> None:
    layer, (x_1, x_2) = CrossAttention.from_state_dict(weights(CrossAttention)), inputs(CrossAttention)
    np.testing.assert_array_equal(layer(x_1, x_2[:0]), np.zeros((L_1, D_V)))


@every_layer
@pytest.mark.parametrize("layout", ["read_only", "strided", "reversed", "broadcast"])
def test_inputs_and_weights_are_never_modified(layer: type[Layer], layout: str) -> None:
    state = weights(layer)
    given = tuple(laid_out(x, layout) for x in inputs(layer, (2,)))
    before = [x.copy() for x in (*given, *state.values())]
    made = layer.from_state_dict(state)
    wanted = expected(layer, state, given)
    np.testing.assert_allclose(made(*given), wanted, rtol=1e-13, atol=1e-13)
    made.steps(*given)
    out, pullback = made.vjp(*given)
    pullback(np.ones_like(out))
    for x, old in zip((*given, *state.values()), before, strict=True):
        np.testing.assert_array_equal(x, old)


def laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    if layout == "broadcast":
        return np.broadcast_to(x[:1], x.shape)
    if layout == "strided":
        return np.repeat(x, 2, axis=-1)[..., ::2]
    if layout == "reversed":
        return x[..., ::-1, ::-1]
    x.flags.writeable = False
    return x


def test_arrays_on_another_device_stay_there() -> None:
    import array_api_strict as xp

    device = xp.Device("device1")
    for layer in ALL:
        state = {name: xp.asarray(x, device=device) for name, x in weights(layer).items()}
        given = tuple(xp.asarray(x, device=device) for x in inputs(layer))
        made: Any = layer.from_state_dict(state)
        out, pullback = made.vjp(*given)
        found = [
            made(*given),
            *made.steps(*given).values(),
            *pullback(out)[:-1],
            *pullback(out)[-1].state_dict().values(),
        ]
        assert {str(x.device) for x in found} == {str(device)}


def test_names_of_one_head_are_those_of_the_article() -> None:
    assert tuple(weights(SelfAttention)) == ONE_HEAD
