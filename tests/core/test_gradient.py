"""The gradients in closed form, against PyTorch's autograd of other code, JAX's own, and the slopes of the loops."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attention_core as core

from . import reference
from .recipes import TABLE_LIMIT, Call, Recipe

Arrays = dict[str, np.ndarray]

CALLS: dict[str, Recipe] = {
    "plain": Recipe(),
    "causal, all else": Recipe(mask="causal", bias="sum", softcap=1.5, sinks=True, rate=0.25, start=1),
    "relative, dropped": Recipe(mask="window", bias="relative", rate=0.5, start=2),
    "alibi, negative scale": Recipe(mask="dilated", bias="alibi", scale=-0.8, start=4),
    "dead rows": Recipe(mask="query_lengths", bias="dense", seed=5),
    "dead rows with sinks": Recipe(mask="segments", sinks=True, seed=1),
    "bias of -inf": Recipe(mask="-inf bias", softcap=0.7, sinks=True),
    "lengths": Recipe(mask="key_lengths", softcap=2.0, seed=2),
    "one head, no group": Recipe(kv_heads=1, group=1, mask="not", bias="dense"),
    "scale 0": Recipe(scale=0.0, softcap=1.0, sinks=True),
}
EACH_CALL = pytest.mark.parametrize("name", CALLS)


def drawn(name: str) -> tuple[Call, np.ndarray, np.ndarray]:
    """A call, and cotangents of its out and lse."""
    call, rng = CALLS[name].draw(), np.random.default_rng(11)
    return call, rng.normal(size=(*call.shape[:3], call.value.shape[-1])), rng.normal(size=call.shape[:3])


def close(found: Any, expected: Any, name: str = "", tolerance: float = 1e-11) -> None:
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=False, err_msg=name)


# PyTorch: an implementation of its own


def torch_attention(call: Call, given: dict[str, Any]) -> tuple[Any, Any]:
    """Attention by PyTorch's operations, in float64; rows that see nothing are taken out before the softmax."""
    import torch

    r, group = call.recipe, call.recipe.group
    key, value = (given[name].repeat_interleave(group, dim=-3) for name in ("key", "value"))
    visible = torch.asarray(call.visible())
    s = torch.einsum("...id,...jd->...ij", given["query"], key)
    s = s * (key.shape[-1] ** -0.5 if r.scale is None else r.scale)
    s = s if r.softcap is None else torch.tanh(s / r.softcap) * r.softcap
    s = (s + torch_bias(call, given)).masked_fill(~visible, -torch.inf)
    if "sinks" in given:
        s = torch.cat([s, given["sinks"][:, None, None].expand(*s.shape[:-1], 1)], dim=-1)
    dead = torch.isneginf(s).all(-1, keepdim=True)
    s = s.masked_fill(dead, 0.0)
    lse = torch.logsumexp(s, -1).masked_fill(dead[..., 0], -torch.inf)
    weights = torch.softmax(s, -1).masked_fill(dead, 0.0)[..., : visible.shape[-1]]
    if r.rate:
        weights = weights * torch.asarray(call.keep) / (1 - r.rate)
    return weights @ value, lse


def torch_bias(call: Call, given: dict[str, Any]) -> Any:
    import torch

    distance = call.key_positions[:, None, None, :] - call.query_positions[:, None, :, None]
    bias = given.get("bias", torch.zeros((), dtype=torch.float64))
    if "slopes" in given:
        bias = bias - given["slopes"][:, None, None] * torch.asarray(abs(distance))
    if "table" in given:
        buckets = np.vectorize(lambda d: reference.bucket(int(d), 8, True, TABLE_LIMIT), otypes=[int])(distance)
        bias = bias + given["table"][torch.asarray(buckets[:, 0])].movedim(-1, 1)
    return bias


def torch_gradients(call: Call, dout: np.ndarray, dlse: np.ndarray) -> Arrays:
    import torch

    given = {name: torch.tensor(x, requires_grad=True) for name, x in call.given().items()}
    found = torch.autograd.grad(torch_attention(call, given), list(given.values()), [*map(torch.tensor, (dout, dlse))])
    return {name: x.numpy() for name, x in zip(given, found, strict=True)}


@pytest.mark.torch
@EACH_CALL
def test_gradients_are_those_of_torch(name: str) -> None:
    call, dout, dlse = drawn(name)
    found, expected = call.gradients(core, np.asarray, dout, dlse), torch_gradients(call, dout, dlse)
    for argument, gradient in expected.items():
        close(found[argument], gradient, argument)


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(), (5,), (1,), (3, 5), (3, 1), (4, 1, 1), (4, 3, 5), (2, 1, 3, 5), (2, 4, 1, 1)])
def test_a_bias_of_every_shape_has_a_gradient_of_its_shape(shape: tuple[int, ...]) -> None:
    call, dout, dlse = drawn("causal, all else")
    call = call.with_recipe(bias="dense")
    given = {name: x for name, x in call.arrays.items() if name not in ("bias", "slopes")}
    call = Call(call.recipe, given | {"bias": np.random.default_rng(12).normal(size=shape)})
    found, expected = call.gradients(core, np.asarray, dout, dlse), torch_gradients(call, dout, dlse)
    assert found["bias"].shape == shape
    for argument, gradient in expected.items():
        close(found[argument], gradient, argument)


@pytest.mark.torch
@pytest.mark.parametrize("alone", ["query", "key", "value"])
def test_what_is_broadcast_over_the_batch_has_its_gradients_summed(alone: str) -> None:
    """One of the three has all the batch, or has not; also along an axis that it lacks."""
    call, dout, dlse = drawn("causal, all else")
    for names in ((alone,), tuple({"query", "key", "value"} - {alone})):
        one = call.with_arrays(**{name: call.arrays[name][:1] for name in names})
        found, expected = one.gradients(core, np.asarray, dout, dlse), torch_gradients(one, dout, dlse)
        for argument, gradient in expected.items():
            close(found[argument], gradient, argument)
        lacking = call.with_arrays(**{name: call.arrays[name][0] for name in names})
        again = lacking.gradients(core, np.asarray, dout, dlse)
        for name in names:
            close(again[name], found[name][0], name)


# JAX: its own gradient and tangent of the definition


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "causal, all else" else pytest.mark.slow) for name in CALLS]
)
def test_gradients_and_tangents_are_those_of_jax(name: str, double_precision: None) -> None:
    import jax
    import jax.numpy as jnp

    call, dout, dlse = drawn(name)

    def result(given: dict[str, Any]) -> Any:
        moved = call.with_arrays(**given)
        options = moved.options(core, jnp.asarray)
        out = core.dot_product_attention(*moved.inputs(jnp.asarray), **options, impl="dense", return_lse=True)
        return out.out, out.lse

    given = {name: jnp.asarray(x) for name, x in call.given().items()}
    rng = np.random.default_rng(13)
    moves = {name: jnp.asarray(rng.normal(size=x.shape)) for name, x in call.given().items()}

    @jax.jit
    def by_jax(given: dict[str, Any], dout: Any, dlse: Any, moves: dict[str, Any]) -> Any:
        return jax.vjp(result, given)[1]((dout, dlse))[0], jax.jvp(result, (given,), (moves,))[1]

    gradients, pushed = by_jax(given, jnp.asarray(dout), jnp.asarray(dlse), moves)
    found = call.gradients(core, np.asarray, dout, dlse)
    for argument, gradient in gradients.items():
        close(found[argument], gradient, argument)
    for x, y in zip(call.tangents(core, np.asarray, moves), pushed, strict=True):
        close(x, y)


# The loops' slopes, an element at a time


@pytest.mark.parametrize("name", ["causal, all else", "relative, dropped", "dead rows with sinks"])
def test_gradients_are_the_slopes_of_the_loops(name: str) -> None:
    recipe = CALLS[name]
    small = Recipe(1, 1, 2, 2, 3, 2, 3, recipe.mask, recipe.bias, softcap=recipe.softcap, sinks=recipe.sinks, rate=0.3)
    call, rng = small.draw(), np.random.default_rng(14)
    dout, dlse = rng.normal(size=(1, 2, 2, 3)), rng.normal(size=(1, 2, 2))
    rows = np.isfinite(call.expected().lse)

    def loss(argument: str, x: np.ndarray) -> float:
        out, lse, _ = call.with_arrays(**{argument: x}).expected()
        return float((out * dout).sum() + (lse[rows] * dlse[rows]).sum())

    found = call.gradients(core, np.asarray, dout, dlse)
    for argument, x in call.given().items():
        expected = reference.gradient(lambda moved, argument=argument: loss(argument, moved), x, step=1e-3)
        close(found[argument], expected, argument, 1e-8)


# What callers rely on


def test_no_cotangent_of_lse_is_one_of_zeros() -> None:
    call, dout, dlse = drawn("causal, all else")
    without, zeros = (call.gradients(core, np.asarray, dout, x) for x in (None, 0 * dlse))
    for argument, gradient in without.items():
        np.testing.assert_array_equal(gradient, zeros[argument], argument)


def test_both_layouts_have_the_same_gradients() -> None:
    call, dout, dlse = drawn("causal, all else")
    options = call.options(core, np.asarray)

    def swap(x: np.ndarray) -> np.ndarray:
        return np.swapaxes(x, 1, 2)

    _, pullback = core.vjp(*map(swap, call.inputs(np.asarray)), **options, layout="BLHD")
    found, expected = pullback(swap(dout), dlse), call.gradients(core, np.asarray, dout, dlse)
    for name in ("query", "key", "value"):
        close(swap(getattr(found, name)), expected[name], name)
    close(found.sinks, expected["sinks"])
    moves = core.Gradients(*map(swap, call.inputs(np.asarray)))
    _, pushed = core.jvp(*map(swap, call.inputs(np.asarray)), moves, **options, layout="BLHD")
    _, same = core.jvp(*call.inputs(np.asarray), core.Gradients(*call.inputs(np.asarray)), **options)
    close(swap(pushed.out), same.out)
    close(pushed.lse, same.lse)


def test_plain_arrays_have_plain_gradients() -> None:
    call = Recipe(batch=1, kv_heads=1, group=1, mask="causal", start=2).draw()
    query, key, value = (x[0, 0] for x in call.inputs(np.asarray))
    rng = np.random.default_rng(15)
    dout, dlse, bias, sinks = (rng.normal(size=shape) for shape in ((3, 3), (3,), (3, 5), (1,)))
    options: dict[str, Any] = {"mask": core.masks.causal(), "query_positions": 2, "bias": bias, "sinks": sinks}
    result, pullback = core.vjp(query, key, value, **options)
    found = pullback(dout, dlse)
    _, headed = core.vjp(query[None], key[None], value[None], **options)
    expected = headed(dout[None], dlse[None])
    assert (result.out.shape, result.lse.shape) == ((3, 3), (3,))
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name)[0], name)
    np.testing.assert_array_equal(found.bias, expected.bias)
    _, pushed = core.jvp(query, key, value, core.Gradients(query, key, value, bias, sinks), **options)
    heads = core.Gradients(query[None], key[None], value[None], bias, sinks)
    _, same = core.jvp(query[None], key[None], value[None], heads, **options)
    np.testing.assert_array_equal(pushed.out, same.out[0])
    np.testing.assert_array_equal(pushed.lse, same.lse[0])


@pytest.mark.parametrize(
    ("dtype", "eps"),
    [(np.float16, 2.0**-10), (ml_dtypes.bfloat16, 2.0**-7), (np.float32, 2.0**-23), (np.float64, 2.0**-52)],
    ids=["float16", "bfloat16", "float32", "float64"],
)
def test_gradients_have_the_dtypes_of_their_arguments(dtype: Any, eps: float) -> None:
    call, dout, dlse = drawn("causal, all else")
    rounded = call.with_arrays(**{name: x.astype(dtype) for name, x in call.given().items()})
    rounded = rounded.with_arrays(sinks=call.sinks.astype(np.promote_types(dtype, np.float32)))
    exact = rounded.with_arrays(**{name: x.astype(np.float64) for name, x in rounded.given().items()})
    found = rounded.gradients(core, np.asarray, dout.astype(dtype), dlse.astype(dtype))
    expected = exact.gradients(core, np.asarray, *(x.astype(dtype).astype(np.float64) for x in (dout, dlse)))
    for argument, gradient in found.items():
        assert gradient.dtype == rounded.arrays[argument].dtype, argument
        bound = 8 * max(eps, 2.0**-52) * abs(expected[argument]).max()
        close(gradient.astype(np.float64), expected[argument], argument, bound)


def test_a_rule_has_the_gradients_of_its_parameters(double_precision: None) -> None:
    """By JAX itself, or by the caller's pullback; without one NumPy says so."""
    import jax
    import jax.numpy as jnp

    def fn(batch: Any, head: Any, query: Any, key: Any, rate: Any, height: Any) -> Any:
        return height * abs(query - key) ** 0.5 + rate[head] * (query - key)

    def fn_vjp(batch: Any, head: Any, query: Any, key: Any, rate: Any, height: Any, cotangent: Any) -> Any:
        return (cotangent * (query - key)).sum((0, 2, 3)), (cotangent * abs(query - key) ** 0.5).sum()

    call, dout, dlse = drawn("plain")
    params = np.random.default_rng(16).normal(size=4), np.asarray(0.7)
    distance = call.query_positions[:, None, :, None] - call.key_positions[:, None, None, :]
    dense = params[1] * abs(distance) ** 0.5 + params[0][:, None, None] * distance
    _, pullback = core.vjp(*call.inputs(np.asarray), bias=dense)
    ds = pullback(dout, dlse).bias
    expected = (ds * distance).sum((0, 2, 3)), (ds * abs(distance) ** 0.5).sum()

    own = core.biases.rule(fn, *params, vjp=fn_vjp)
    _, pullback = core.vjp(*call.inputs(np.asarray), bias=own, impl="dense")
    for found, x in zip(pullback(dout, dlse).bias.params, expected, strict=True):
        close(found, x)

    @jax.jit
    def by_jax(inputs: Any, params: Any, dout: Any, dlse: Any) -> Any:
        _, pullback = core.vjp(*inputs, bias=core.biases.rule(fn, *params), impl="dense")
        return pullback(dout, dlse).bias.params

    traced = by_jax(call.inputs(jnp.asarray), [*map(jnp.asarray, params)], jnp.asarray(dout), jnp.asarray(dlse))
    for found, x in zip(traced, expected, strict=True):
        close(found, x)

    _, pullback = core.vjp(*call.inputs(np.asarray), bias=core.biases.rule(fn, *params), impl="dense")
    with pytest.raises(NotImplementedError, match="vjp"):
        pullback(dout, dlse)


def test_wrong_cotangents_and_tangents_are_refused() -> None:
    call, dout, dlse = drawn("plain")
    inputs = call.inputs(np.asarray)
    _, pullback = core.vjp(*inputs)
    with pytest.raises(ValueError, match="`out_cotangent` must have shape"):
        pullback(dout[..., :1])
    with pytest.raises(ValueError, match="`lse_cotangent` must have shape"):
        pullback(dout, dlse[..., None])
    with pytest.raises(ValueError, match=r"`tangents\.key` must have shape"):
        core.jvp(*inputs, core.Gradients(None, inputs[0], None))
    for name, tangent in (("sinks", np.zeros(4)), ("bias", np.zeros(5))):
        with pytest.raises(ValueError, match=f"`tangents.{name}` was given, but the call has no `{name}`"):
            core.jvp(*inputs, core.Gradients(None, None, None, **{name: tangent}))
