"""Under JAX: layers are pytrees, work in every transformation, differentiate as in closed form, and learn."""

from typing import Any

import numpy as np
import pytest

from attention_core.variants import CrossAttention, Layer, SelfAttention
from tests.variants.samples import ALL, Library, expected, inputs, make, sizes, weights

jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")

import attention_jax  # noqa: E402  only where jax is there

JAX = Library("jax")
every_layer = pytest.mark.parametrize("layer", ALL, ids=lambda layer: layer.__name__)


def sample(layer: type[Layer], batch: tuple[int, ...] = ()) -> tuple[Any, tuple[Any, ...]]:
    return make(layer, JAX, "float32"), tuple(jax.numpy.asarray(x, "float32") for x in inputs(layer, batch))


def wanted(layer: type[Layer], batch: tuple[int, ...] = ()) -> np.ndarray:
    return expected(layer, weights(layer), inputs(layer, batch))


@every_layer
def test_a_layer_is_a_pytree_of_its_weights(layer: type[Layer]) -> None:
    made, _ = sample(layer)
    leaves, structure = jax.tree.flatten(made)
    assert all(a is b for a, b in zip(leaves, (made.W_query, made.W_key, made.W_value), strict=True))
    again = jax.tree.unflatten(structure, leaves)
    assert type(again) is layer
    assert again.W_key is made.W_key
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(made)]
    assert names == [".W_query", ".W_key", ".W_value"]
    assert type(jax.tree.map(lambda x: None, made)) is layer


@every_layer
def test_a_numpy_layer_moves_to_jax(layer: type[Layer]) -> None:
    moved = jax.tree.map(jax.numpy.asarray, layer.from_state_dict(weights(layer, np.float32)))
    _, given = sample(layer)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(moved))
    np.testing.assert_allclose(moved(*given), wanted(layer), rtol=0, atol=1e-5)


@every_layer
def test_vmap_over_items_is_the_batch(layer: type[Layer]) -> None:
    made, (first, *rest) = sample(layer, (7,))
    mapped = jax.jit(jax.vmap(made, in_axes=(0, *(None for _ in rest))))
    np.testing.assert_allclose(mapped(first, *rest), wanted(layer, (7,)), rtol=0, atol=1e-5)


def test_vmap_over_layers_is_one_layer_after_the_other() -> None:
    _, given = sample(SelfAttention)
    layers = [SelfAttention.from_state_dict(weights(SelfAttention, np.float32, seed)) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *layers)
    out = jax.vmap(lambda layer, x: layer(x), in_axes=(0, None))(stacked, *given)
    assert out.shape == (3, 6, 5)
    for seed in range(3):
        alone = expected(SelfAttention, weights(SelfAttention, seed=seed), inputs(SelfAttention))
        np.testing.assert_allclose(out[seed], alone, rtol=0, atol=1e-5)


@pytest.mark.slow
@every_layer
def test_closed_form_gradients_are_those_of_jax_grad(layer: type[Layer]) -> None:
    made, given = sample(layer, (2,))
    cotangent = np.random.default_rng(5).normal(size=made(*given).shape).astype(np.float32)

    @jax.jit
    def both(layer: Any, given: tuple[Any, ...], cotangent: Any) -> Any:
        def loss(layer: Any, *given: Any) -> Any:
            return (layer(*given) * cotangent).sum()

        by_jax = jax.grad(loss, argnums=tuple(range(1 + len(given))))(layer, *given)
        checkpointed = jax.grad(jax.checkpoint(loss), argnums=tuple(range(1 + len(given))))(layer, *given)
        *d_given, d_layer = layer.vjp(*given)[1](cotangent)
        return by_jax, checkpointed, (d_layer, *d_given)

    by_jax, checkpointed, closed = both(made, given, cotangent)
    assert jax.tree.structure(by_jax) == jax.tree.structure(closed)
    for others in (checkpointed, closed):
        for a, b in zip(jax.tree.leaves(by_jax), jax.tree.leaves(others), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


@every_layer
def test_numpy_constants_stand_beside_traced_weights(layer: type[Layer]) -> None:
    made, _ = sample(layer)
    constants = inputs(layer, (), np.float32)
    out = jax.jit(lambda layer: layer(*constants))(made)
    np.testing.assert_allclose(out, wanted(layer), rtol=0, atol=1e-5)


@every_layer
def test_shapes_are_known_without_computing(layer: type[Layer]) -> None:
    made, given = sample(layer, (7,))
    shape = jax.eval_shape(lambda layer, *given: layer(*given), made, *given)
    assert shape.shape == wanted(layer, (7,)).shape
    assert shape.dtype == np.float32


def test_steps_work_under_jit() -> None:
    for layer in ALL:
        made, given = sample(layer)
        steps = jax.jit(lambda layer, *given: layer.steps(*given))(made, *given)
        np.testing.assert_allclose(steps["context_vec"], wanted(layer), rtol=0, atol=1e-5)


def test_init_works_under_jit_and_vmap() -> None:
    def draw(key: Any) -> Any:
        return attention_jax.init(SelfAttention, key, **sizes(SelfAttention))

    keys = jax.random.split(jax.random.key(3), 2)
    many = jax.jit(jax.vmap(draw))(keys)
    assert many.W_query.shape == (2, 3, 2)
    np.testing.assert_array_equal(many.W_value[1], draw(keys[1]).W_value)


def test_a_student_learns_its_teacher() -> None:
    """Adam on cross-attention to another layer's outputs: the loss falls to less than a fiftieth in 80 steps."""
    optax = pytest.importorskip("optax", reason="learning needs optax, of the `test` extra")
    teacher, (x_1, x_2) = sample(CrossAttention, (7,))
    student = attention_jax.init(CrossAttention, jax.random.key(0), **sizes(CrossAttention))
    target, optimiser = teacher(x_1, x_2), optax.adam(0.1)

    @jax.jit
    def step(layer: Any, state: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda layer: ((layer(x_1, x_2) - target) ** 2).mean())(layer)
        updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(layer, updates), state, loss

    state, losses = optimiser.init(student), []
    for _ in range(81):
        student, state, loss = step(student, state)
        losses.append(float(loss))
    assert type(student) is CrossAttention
    assert losses[-1] < losses[0] / 50
