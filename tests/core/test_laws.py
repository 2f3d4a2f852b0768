"""The laws of attention, as properties of random calls in float64, under NumPy and JAX.

A law is a function of the package, of how it makes arrays, and of a random call; the mutants are held against the same.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import attention_core

from . import reference
from .recipes import BIASES, BY_INDEX, MASKS, Call, Recipe, recipes

AsArray = Callable[[np.ndarray], Any]
BY_POSITION = tuple(name for name in MASKS if name not in BY_INDEX)
RELATIVE = ("none", "causal", "window", "two-sided", "dilated", "segments", "dense")  # only distances count


class Law(NamedTuple):
    """What must hold, and of which calls."""

    check: Callable[[ModuleType, AsArray, Call], None]
    masks: tuple[str, ...] = tuple(MASKS)
    biases: tuple[str, ...] = BIASES
    sinks: bool = True
    dropout: bool = True


LAWS: dict[str, Law] = {}


def law(**limits: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(check: Callable[..., None]) -> Callable[..., None]:
        LAWS[check.__name__] = Law(check, **limits)
        return check

    return add


def close(found: Any, expected: Any, name: str = "", tolerance: float = 1e-10) -> None:
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=False, err_msg=name)


def same_answers(found: reference.Answer, expected: reference.Answer) -> None:
    for name, a, b in zip(found._fields, found, expected, strict=True):
        close(a, b, name)


def random_like(call: Call, salt: int, x: np.ndarray) -> np.ndarray:
    return np.random.default_rng((call.recipe.seed, salt)).normal(size=x.shape)


@law()
def formula(core: ModuleType, a: AsArray, call: Call) -> None:
    """Out, lse and weights are those of the loops."""
    same_answers(call.run(core, a), call.expected())


@law(masks=BY_POSITION)
def permuted_keys(core: ModuleType, a: AsArray, call: Call) -> None:
    """Keys have no order: permuted with their values, masks, biases and positions, they give the same."""
    order = np.random.default_rng(call.recipe.seed).permutation(call.key.shape[2])
    plain, permuted = call.run(core, a), call.take("j", order).run(core, a)
    same_answers(permuted, plain._replace(weights=plain.weights[..., order]))


@law(biases=("dense", "sum"), sinks=False)
def shifted_logits(core: ModuleType, a: AsArray, call: Call) -> None:
    """A constant added to a row's logits adds to its lse and changes nothing else."""
    shift = 300 * np.random.default_rng(call.recipe.seed).normal(size=(*call.shape[:3], 1))
    plain, shifted = call.run(core, a), call.with_arrays(bias=call.bias + shift).run(core, a)
    same_answers(shifted, plain._replace(lse=plain.lse + shift[..., 0]))


@law(masks=("causal", "window", "dilated"))
def later_keys(core: ModuleType, a: AsArray, call: Call) -> None:
    """What stands in later keys never changes an earlier causal row, to the bit."""
    later = call.key_positions[0] >= call.recipe.start + call.query.shape[2] // 2
    earlier_rows = call.query_positions[0] < call.recipe.start + call.query.shape[2] // 2
    other = call.with_arrays(
        key=np.where(later[:, None], random_like(call, 2, call.key), call.key),
        value=np.where(later[:, None], 1e3 * random_like(call, 3, call.value), call.value),
    )
    for x, y in zip(call.run(core, a), other.run(core, a), strict=True):
        np.testing.assert_array_equal(x[:, :, earlier_rows], y[:, :, earlier_rows])


@law()
def repeated_heads(core: ModuleType, a: AsArray, call: Call) -> None:
    """Grouped heads are the key/value heads repeated, each for its neighbouring query heads."""
    key, value = (np.repeat(x, call.recipe.group, axis=1) for x in (call.key, call.value))
    same_answers(call.with_arrays(key=key, value=value).run(core, a), call.run(core, a))


@law()
def independent_items(core: ModuleType, a: AsArray, call: Call) -> None:
    """A batch item knows nothing of the others."""
    whole = call.run(core, a)
    for n in range(call.recipe.batch):
        one = call.take("b", [n]).run(core, a)
        same_answers(one, reference.Answer(*(x[n : n + 1] for x in whole)))


@law()
def layouts(core: ModuleType, a: AsArray, call: Call) -> None:
    """Both layouts are the same attention; bias, mask, lse and weights are the same in both."""
    swapped = call.with_arrays(**{name: np.swapaxes(call.arrays[name], 1, 2) for name in ("query", "key", "value")})
    out, lse, weights = swapped.run(core, a, layout="BLHD")
    same_answers(reference.Answer(np.swapaxes(out, 1, 2), lse, weights), call.run(core, a))


@law(dropout=False)
def weights_sum_to_one(core: ModuleType, a: AsArray, call: Call) -> None:
    """Weights are at least 0; a row's sum is 1, less what its sink takes, or 0 where it sees no key."""
    _, lse, weights = call.run(core, a)
    sinks = call.arrays.get("sinks", np.full(call.shape[1], -np.inf))[:, None]
    to_sink = np.exp(sinks - np.where(np.isfinite(lse), lse, 0.0))
    assert (weights >= 0).all()
    assert (weights[~call.visible()] == 0).all()
    close(weights.sum(-1), np.where(call.visible().any(-1), 1 - to_sink, 0.0))


@law(dropout=False, sinks=False)
def hull(core: ModuleType, a: AsArray, call: Call) -> None:
    """Each row lies within the values that it sees; one that sees none is 0."""
    seen, values = call.visible()[..., None], np.repeat(call.value, call.recipe.group, axis=1)[:, :, None]
    out = call.run(core, a).out
    highest = np.where(seen, values, -np.inf).max(-2, initial=-np.inf)
    lowest = np.where(seen, values, np.inf).min(-2, initial=np.inf)
    empty = ~seen.any(-2)
    assert (np.where(empty, 0.0, out - highest) <= 1e-12).all()
    assert (np.where(empty, 0.0, lowest - out) <= 1e-12).all()
    assert (out[np.broadcast_to(empty, out.shape)] == 0).all()


@law(masks=BY_POSITION)
def decode_steps(core: ModuleType, a: AsArray, call: Call) -> None:
    """A row of a prefill is the decode step at its position."""
    whole = call.run(core, a)
    for i in {0, call.query.shape[2] - 1}:
        same_answers(call.take("i", [i]).run(core, a), reference.Answer(*(x[:, :, i : i + 1] for x in whole)))


@law(masks=RELATIVE)
def shifted_positions(core: ModuleType, a: AsArray, call: Call) -> None:
    """What looks at distances alone does not see all positions move together."""
    moved = call.with_arrays(query_positions=call.query_positions + 1003, key_positions=call.key_positions + 1003)
    same_answers(moved.run(core, a), call.run(core, a))


@law(masks=BY_POSITION, biases=("none", "dense", "alibi"), sinks=False, dropout=False)
def merged_parts(core: ModuleType, a: AsArray, call: Call) -> None:
    """Attention over disjoint sets of keys merges into attention over all of them."""
    keys = call.key.shape[2]
    parts = [call.take("j", range(*span)).run(core, a) for span in ((0, keys // 3), (keys // 3, keys), (keys, keys))]
    out, lse = core.merge([a(part.out) for part in parts], [a(part.lse) for part in parts])
    whole = call.run(core, a)
    same_answers(reference.Answer(np.asarray(out), np.asarray(lse), whole.weights), whole)


@law(sinks=False)
def absent_features(core: ModuleType, a: AsArray, call: Call) -> None:
    """A sink of -inf is no sink, rate 0 drops nothing, and an array scale is a factor of query."""
    plain = call.run(core, a)
    same_answers(call.run(core, a, sinks=a(np.full(call.shape[1], -np.inf))), plain)
    if not call.recipe.rate:
        same_answers(call.run(core, a, dropout=core.dropout(0.0, keep=a(np.zeros(call.shape, bool)))), plain)
    if call.recipe.scale is not None:
        scaled = call.with_arrays(query=call.query * call.recipe.scale)
        same_answers(scaled.run(core, a, scale=1.0), plain)


@law()
def unseen_keys(core: ModuleType, a: AsArray, call: Call) -> None:
    """A key that no row sees may as well not be there."""
    if call.recipe.mask in BY_INDEX:
        return
    seen = np.flatnonzero(call.visible().any((0, 1, 2)))
    plain, fewer = call.run(core, a), call.take("j", seen).run(core, a)
    same_answers(fewer, plain._replace(weights=plain.weights[..., seen]))


@law()
def finite_differences(core: ModuleType, a: AsArray, call: Call) -> None:
    """The gradient along a random direction is the slope of the loops along it, for cotangents of out and lse."""
    expected = call.expected()
    dout, dlse = random_like(call, 4, expected.out), random_like(call, 5, expected.lse)
    directions = {name: random_like(call, 6, x) for name, x in call.given().items()}
    gradients = call.gradients(core, a, dout, dlse)
    rows = np.isfinite(expected.lse)

    for name, direction in directions.items():

        def loss(t: float, name: str = name, direction: np.ndarray = direction) -> float:
            out, lse, _ = call.with_arrays(**{name: call.arrays[name] + t * direction}).expected()
            return float((out * dout).sum() + (lse[rows] * dlse[rows]).sum())

        close((gradients[name] * direction).sum(), reference.slope(loss), name, 1e-7)


@law()
def adjoint(core: ModuleType, a: AsArray, call: Call) -> None:
    """The pullback is the transpose of the push-forward."""
    expected = call.expected()
    dout, dlse = random_like(call, 4, expected.out), random_like(call, 5, expected.lse)
    directions = {name: random_like(call, 7, x) for name, x in call.given().items()}
    out, lse = call.tangents(core, a, directions)
    gradients = call.gradients(core, a, dout, dlse)
    backward = sum((gradients[name] * directions[name]).sum() for name in directions)
    close((out * dout).sum() + (lse * dlse).sum(), backward)


def jax_array(x: np.ndarray) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(x)


LIBRARIES: dict[str, AsArray] = {"numpy": np.asarray, "jax": jax_array}
CUT = (  # new shapes or programs, which JAX compiles one by one
    "adjoint",
    "decode_steps",
    "finite_differences",
    "independent_items",
    "merged_parts",
    "unseen_keys",
)
RUNS = [
    *(pytest.param(name, "numpy", 25, id=f"{name}-numpy") for name in LAWS),
    *(pytest.param(name, "jax", 2, id=f"{name}-jax") for name in LAWS if name not in CUT),
    *(pytest.param(name, "numpy", 300, id=f"{name}-numpy-many", marks=pytest.mark.slow) for name in LAWS),
    *(pytest.param(name, "jax", 20, id=f"{name}-jax-many", marks=pytest.mark.slow) for name in LAWS),
]


def recipes_of(each: Law, shapes: int | None) -> st.SearchStrategy[Recipe]:
    return recipes(each.masks, each.biases, each.sinks, each.dropout, shapes)


@pytest.mark.parametrize(("name", "library", "examples"), RUNS)
def test_law(name: str, library: str, examples: int, double_precision: None) -> None:
    """Every law holds, under both libraries."""

    shapes = None if library == "numpy" else 1 if examples < 10 else 2
    phases = tuple(Phase) if library == "numpy" else (Phase.explicit, Phase.reuse, Phase.generate)

    @settings(max_examples=examples, phases=phases)
    @given(recipe=recipes_of(LAWS[name], shapes))
    def check(recipe: Recipe) -> None:
        LAWS[name].check(attention_core, LIBRARIES[library], recipe.draw())

    check()
