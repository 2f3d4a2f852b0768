"""Derivatives of derivatives under JAX, and its transformations around a gradient."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attention_core as core

from . import reference
from .recipes import Call, Recipe

pytestmark = pytest.mark.usefixtures("double_precision")

RECIPES = {
    "plain": Recipe(),
    "everything": Recipe(mask="causal", bias="sum", softcap=1.5, sinks=True, rate=0.25, start=1),
    "dead rows": Recipe(mask="query_lengths", bias="dense", softcap=2.0, seed=5),
}


def loss_of(call: Call, closed_form: bool = False) -> Callable[[dict[str, Any]], Any]:
    """A loss that bends in out and lse; or, with the same value, a contraction of the gradients in closed form."""
    import jax.numpy as jnp

    def loss(given: dict[str, Any]) -> Any:
        moved = call.with_arrays(**given)
        inputs, options = moved.inputs(jnp.asarray), moved.options(core, jnp.asarray) | {"impl": "dense"}
        if closed_form:
            result, pullback = core.vjp(*inputs, **options)
            gradients = pullback(jnp.cos(result.out), jnp.where(jnp.isfinite(result.lse), result.lse, 0.0))
            return sum((jnp.sin(x) * x).sum() for x in gradients[:3])
        result = core.dot_product_attention(*inputs, **options, return_lse=True)
        return jnp.sin(result.out).sum() + jnp.where(jnp.isfinite(result.lse), result.lse**2, 0.0).sum() / 2

    return loss


def closed_gradients(call: Call, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradients of the bending loss by the closed form, under NumPy."""
    moved = call.with_arrays(**given)
    out, lse, _ = moved.run(core)
    return moved.gradients(core, np.asarray, np.cos(out), np.where(np.isfinite(lse), lse, 0.0))


def given_and_moves(call: Call) -> tuple[dict[str, Any], dict[str, Any]]:
    import jax.numpy as jnp

    rng = np.random.default_rng(21)
    given = {name: jnp.asarray(x) for name, x in call.given().items()}
    return given, {name: jnp.asarray(rng.normal(size=x.shape)) for name, x in given.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_hessian_vector_products(name: str) -> None:
    """Forward over reverse and reverse over reverse are the slope of the gradient in closed form."""
    import jax
    import jax.numpy as jnp

    call = RECIPES[name].draw()
    given, moves = given_and_moves(call)
    gradient = jax.grad(loss_of(call))

    @jax.jit
    def both(given: dict[str, Any], moves: dict[str, Any]) -> Any:
        def along(given: dict[str, Any]) -> Any:
            return sum(jnp.vdot(x, moves[name]) for name, x in gradient(given).items())

        return jax.jvp(gradient, (given,), (moves,))[1], jax.grad(along)(given)

    def at(t: float) -> dict[str, np.ndarray]:
        return closed_gradients(call, {name: np.asarray(x + t * moves[name]) for name, x in given.items()})

    products = both(given, moves)
    for argument in given:
        expected = reference.slope(lambda t, argument=argument: at(t)[argument])
        for product in products:
            np.testing.assert_allclose(product[argument], expected, rtol=1e-7, atol=1e-7, err_msg=argument)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_gradient_in_closed_form_can_be_differentiated(name: str) -> None:
    """Both by JAX's reverse mode and its forward mode, which agree with the slope."""
    import jax
    import jax.numpy as jnp

    call = RECIPES[name].draw()
    given, moves = given_and_moves(call)
    loss = jax.jit(loss_of(call, closed_form=True))
    reverse = sum(float(jnp.vdot(x, moves[name])) for name, x in jax.grad(loss)(given).items())
    forward = float(jax.jvp(loss, (given,), (moves,))[1])
    expected = reference.slope(lambda t: float(loss({name: x + t * moves[name] for name, x in given.items()})))
    np.testing.assert_allclose([reverse, forward], expected, rtol=1e-7, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("closed_form", [False, True], ids=["definition", "closed form"])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_second_derivatives_are_blind_to_masked_nan(softcap: float | None, closed_form: bool) -> None:
    """Second derivatives with NaN in masked keys and dead rows are those with zeros there, to the bit, and finite."""
    import jax
    import jax.numpy as jnp

    call = Recipe(mask="segments", bias="dense", softcap=softcap, sinks=True, seed=1).draw()
    ids = call.arrays["query_ids"].copy(), call.arrays["key_ids"].copy()
    ids[0][:, 1], ids[1][:, 2] = -1, -2
    _, moves = given_and_moves(call)
    call = call.with_arrays(query_ids=ids[0], key_ids=ids[1])
    gradient = jax.jit(jax.grad(loss_of(call, closed_form)))
    answers = []
    for x in (0.0, np.nan, np.inf):
        places: dict[str, Any] = {"query": (slice(None), slice(None), 1)}
        places |= dict.fromkeys(("key", "value"), (slice(None), slice(None), 2))
        poisoned = {name: call.arrays[name].copy() for name in places}
        for name, place in places.items():
            poisoned[name][place] = x
        given = {name: jnp.asarray(x) for name, x in (call.given() | poisoned).items()}
        answers.append(jax.jvp(gradient, (given,), (moves,)))
    for found in answers:
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(answers[0]), strict=True):
            assert np.isfinite(a).all()
            np.testing.assert_array_equal(a, b)


def test_reverse_over_reverse_is_blind_to_masked_nan() -> None:
    import jax
    import jax.numpy as jnp

    call = Recipe(mask="key_lengths", bias="dense", softcap=2.0).draw()
    call = call.with_arrays(lengths=np.array([3, 0]))
    given, moves = given_and_moves(call)

    def along(given: dict[str, Any]) -> Any:
        return sum(jnp.vdot(x, moves[name]) for name, x in jax.grad(loss_of(call))(given).items())

    second = jax.jit(jax.grad(along))
    poisoned = given | {name: given[name].at[:, :, 3:].set(jnp.nan) for name in ("key", "value")}
    zeros = given | {name: given[name].at[:, :, 3:].set(0.0) for name in ("key", "value")}
    for name, x in second(poisoned).items():
        assert np.isfinite(x).all(), name
        np.testing.assert_array_equal(x, second(zeros)[name], name)


@pytest.mark.slow
def test_the_transformations_around_a_gradient_agree() -> None:
    """Eager, jit, checkpoint, and vmap of grad are the same gradient."""
    import jax
    import jax.numpy as jnp

    call = RECIPES["everything"].draw()
    given, _ = given_and_moves(call)
    expected = closed_gradients(call, call.given())
    loss = loss_of(call)
    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.jit(jax.grad(jax.checkpoint(loss)))):
        for name, x in gradient(given).items():
            np.testing.assert_allclose(x, expected[name], rtol=1e-10, atol=1e-10, err_msg=name)

    batched = ("query", "key", "value", "bias", "query_positions", "key_positions", "keep")
    shared = {name: x for name, x in given.items() if name not in batched}

    def one(arrays: dict[str, Any]) -> Any:
        item = Call(call.recipe, call.arrays | arrays)
        return jax.grad(loss_of(item))({name: arrays[name] for name in ("query", "key", "value", "bias")} | shared)

    items = jax.jit(jax.vmap(one))({name: jnp.asarray(call.arrays[name]) for name in batched})
    for name, x in items.items():
        whole = x if name in batched else x.sum(0)
        np.testing.assert_allclose(whole, expected[name], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.slow
def test_forward_and_reverse_jacobians_agree() -> None:
    import jax

    call = Recipe(batch=1, kv_heads=1, group=2, queries=2, keys=3, depth=2, value_depth=1, mask="causal").draw()
    given, _ = given_and_moves(call)
    gradient = jax.grad(loss_of(call))
    forward, reverse = jax.jit(jax.jacfwd(gradient))(given), jax.jit(jax.jacrev(gradient))(given)
    for a, b in zip(jax.tree.leaves(forward), jax.tree.leaves(reverse), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    for a in given:
        for b in given:
            block = np.asarray(forward[a][b]).reshape(given[a].size, given[b].size)
            mirrored = np.asarray(forward[b][a]).reshape(given[b].size, given[a].size)
            np.testing.assert_allclose(block, mirrored.T, rtol=1e-10, atol=1e-10, err_msg=f"{a}, {b}")
