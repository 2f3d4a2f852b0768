"""Masked pairs contribute exactly nothing: NaN, infinities and 1e30 there leave every result to the bit as zeros do."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import attention_core as core

from .libraries import EACH, JITTED, NUMPY, Library
from .recipes import MASKS, Call, Recipe

# The square of 1e30 overflows in float32, in a pair that is masked; NumPy's matmul says so.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered in matmul:RuntimeWarning")

POISONS = (np.nan, np.inf, -np.inf, 1e30)
KINDS = tuple(MASKS)
PLAIN: dict[str, Any] = {}
EVERYTHING: dict[str, Any] = {"bias": "sum", "softcap": 2.0, "sinks": True, "rate": 0.25}
QUICK = pytest.mark.parametrize(  # JAX compiles every operation of the eager run by itself, which is slow
    "library",
    [
        pytest.param(NUMPY, id="numpy"),
        pytest.param(Library("torch"), id="torch", marks=pytest.mark.torch),
        pytest.param(Library("array_api_strict"), id="array_api_strict"),
        pytest.param(JITTED, id="jax-jit"),
        pytest.param(Library("jax"), id="jax", marks=pytest.mark.slow),
    ],
)
FEATURES = pytest.mark.parametrize("features", [PLAIN, EVERYTHING], ids=["plain", "everything"])
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}


class Case(NamedTuple):
    """A call, its cotangents and tangents; ``hide`` masks a key of one item and a row of the other, too."""

    call: Call
    hide: np.ndarray
    dout: np.ndarray
    dlse: np.ndarray
    moves: dict[str, np.ndarray]

    @property
    def visible(self) -> np.ndarray:
        return self.call.visible() & ~self.hide

    @property
    def unseen(self) -> np.ndarray:
        """Which keys no query sees, ``(batch, key heads, keys, 1)``."""
        batch, heads, queries, keys = self.call.shape
        grouped = self.visible.reshape(batch, heads // self.call.recipe.group, -1, queries, keys)
        return ~grouped.any((2, 3))[..., None]

    @property
    def dead(self) -> np.ndarray:
        """Which queries see no key, ``(batch, heads, queries, 1)``."""
        return ~self.visible.any(-1)[..., None]

    def poisoned(self, x: float) -> "Case":
        """Put ``x`` wherever it must not matter."""
        places = {"query": self.dead, "key": self.unseen, "value": self.unseen}
        put = {name: np.where(where, x, self.call.arrays[name]) for name, where in places.items()}
        moves = self.moves | {name: np.where(where, x, self.moves[name]) for name, where in places.items()}
        dlse = self.dlse if self.call.recipe.sinks else np.where(self.dead[..., 0], x, self.dlse)
        return self._replace(
            call=self.call.with_arrays(**put), moves=moves, dout=np.where(self.dead, x, self.dout), dlse=dlse
        )

    def cast(self, dtype: Any) -> "Case":
        """Round everything real to a dtype, 1e30 to the largest number where it has none so large."""
        largest = float(ml_dtypes.finfo(dtype).max)

        def to(x: np.ndarray) -> np.ndarray:
            return np.where(np.isinf(x), x, np.clip(x, -largest, largest)).astype(dtype) if x.dtype.kind == "f" else x

        arrays, moves = ({name: to(x) for name, x in xs.items()} for xs in (self.call.arrays, self.moves))
        return Case(self.call.with_arrays(**arrays), self.hide, to(self.dout), to(self.dlse), moves)


def case(kind: str, **features: Any) -> Case:
    call = Recipe(mask=kind, **features, start=1, seed=3).draw()
    hide = np.zeros(call.shape, bool)
    hide[0, :, :, 1] = hide[1, :, 2, :] = True
    if kind == "-inf bias":
        call = call.with_arrays(bias=np.where(hide, -np.inf, call.bias))
    rng = np.random.default_rng(4)
    moves = {name: rng.normal(size=x.shape) for name, x in call.given().items()}
    dout = rng.normal(size=(*call.shape[:3], call.value.shape[-1]))
    made = Case(call, hide, dout, rng.normal(size=call.shape[:3]), moves)
    assert made.unseen.any()
    assert made.dead.any()
    return made


def mask_of(call: Call, hide: Any) -> Any:
    """The call's own mask and the hidden pairs; none where the bias holds them."""
    own = call.mask(core, lambda x: x)
    if call.recipe.mask == "-inf bias":
        return None
    return ~core.masks.dense(hide) if own is None else own & ~core.masks.dense(hide)


def observed(c: Case) -> dict[str, Any]:
    """Everything that the package computes of a case: its result, its gradients and its tangents."""
    same = lambda x: x  # noqa: E731  the case's arrays are the library's already
    options = c.call.options(core, same) | {"mask": mask_of(c.call, c.hide), "impl": "dense"}
    inputs, moved = c.call.inputs(same), c.call.with_arrays(**c.moves)
    out, lse, weights = core.dot_product_attention(*inputs, **options, return_lse=True, return_weights=True)
    gradients = core.vjp(*inputs, **options)[1](c.dout, c.dlse)
    del options["impl"]
    tangents = core.Gradients(*moved.inputs(same), moved.bias_value(core, same), c.moves.get("sinks"))
    _, push = core.jvp(*inputs, tangents, **options)
    named = zip(c.call.given(), c.call._named(gradients), strict=True)
    return {"out": out, "lse": lse, "weights": weights, "out tangent": push.out, "lse tangent": push.lse} | dict(named)


def differentiated(c: Case) -> dict[str, Any]:
    """The gradients that JAX finds by itself in the dense definition."""
    import jax

    def loss(given: dict[str, Any]) -> Any:
        call = c.call.with_arrays(**given)
        options = call.options(core, lambda x: x) | {"mask": mask_of(call, c.hide), "impl": "dense"}
        result = core.dot_product_attention(*call.inputs(lambda x: x), **options, return_lse=True)
        return result.out, result.lse

    (_, lse), pullback = jax.vjp(loss, c.call.given())
    return pullback((c.dout, c.dlse.astype(lse.dtype)))[0]


Observe = Callable[[Case], dict[str, Any]]


def on(library: Library, observe: Observe, c: Case) -> dict[str, Any]:
    """Observe a case with a library's arrays, traced where the library is."""

    def to(x: Any) -> Any:
        if library.name == "torch" and x.dtype == ml_dtypes.bfloat16:
            return library.to(x.astype(np.float32)).bfloat16()
        return library.to(x)

    def of(arrays: dict[str, Any], hide: Any, dout: Any, dlse: Any, moves: dict[str, Any]) -> dict[str, Any]:
        return observe(Case(Call(c.call.recipe, arrays), hide, dout, dlse, moves))

    arrays, moves = ({name: to(x) for name, x in xs.items()} for xs in (c.call.arrays, c.moves))
    compiled = jitted(observe, c.call.recipe) if library.jit else of
    return compiled(arrays, to(c.hide), to(c.dout), to(c.dlse), moves)


@cache
def jitted(observe: Observe, recipe: Recipe) -> Any:
    import jax

    return jax.jit(lambda arrays, *rest: observe(Case(Call(recipe, arrays), *rest)))


def mapped(c: Case) -> dict[str, Any]:
    """What is observed of each batch item by itself, under vmap."""
    import jax

    shared = ("slopes", "table", "sinks")  # which have no batch axis
    axes = {name: None if name in shared else 0 for name in c.call.arrays}
    moved = {name: None if name in shared else 0 for name in c.moves}

    def one(arrays: dict[str, Any], hide: Any, dout: Any, dlse: Any, moves: dict[str, Any]) -> dict[str, Any]:
        return observed(Case(Call(c.call.recipe, arrays), hide, dout, dlse, moves))

    return jax.vmap(one, in_axes=(axes, 0, 0, 0, moved))(c.call.arrays, c.hide, c.dout, c.dlse, c.moves)


def read(library: Library, x: Any) -> np.ndarray:
    return library.numpy(x.float() if "torch.bfloat16" in str(x.dtype) else x)


def check(library: Library, observe: Observe, c: Case, dtype: Any, poisons: tuple[float, ...] = POISONS) -> None:
    """All poisons leave what is observed as zeros do, to the bit."""
    expected = on(library, observe, c.poisoned(0.0).cast(dtype))
    for name, x in expected.items():
        assert name == "lse" or np.isfinite(read(library, x)).all(), name
    for poison in poisons:
        found = on(library, observe, c.poisoned(poison).cast(dtype))
        for name, x in found.items():
            same = read(library, x).tobytes() == read(library, expected[name]).tobytes()
            assert same, f"{name} with {poison}: {x}, not {expected[name]}"


@FEATURES
@pytest.mark.parametrize("kind", KINDS)
def test_every_mask_under_numpy(kind: str, features: dict[str, Any]) -> None:
    for dtype in DTYPES.values():
        check(NUMPY, observed, case(kind, **features), dtype)


@QUICK
def test_every_library(library: Library) -> None:
    check(library, observed, case("-inf bias", **EVERYTHING), np.float32)


@pytest.mark.slow
@EACH
@FEATURES
@pytest.mark.parametrize("kind", KINDS)
def test_every_mask_on_every_library(library: Library, kind: str, features: dict[str, Any]) -> None:
    half_too = library.name in ("jax", "torch")
    for dtype in (*([np.float16, ml_dtypes.bfloat16] if half_too else []), np.float32):
        check(library, observed, case(kind, **features), dtype)


def test_gradients_that_jax_finds_by_itself() -> None:
    check(JITTED, differentiated, case("segments", **EVERYTHING), np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("observe", [mapped, differentiated])
@FEATURES
@pytest.mark.parametrize("kind", KINDS)
def test_every_mask_under_jax_by_itself(observe: Observe, kind: str, features: dict[str, Any]) -> None:
    for dtype in (ml_dtypes.bfloat16, np.float32):
        check(JITTED, observe, case(kind, **features), dtype)


@pytest.mark.torch
@FEATURES
@pytest.mark.parametrize("kind", ["causal", "query_lengths", "-inf bias"])
def test_torch_autograd_through_the_definition(kind: str, features: dict[str, Any]) -> None:
    def by_autograd(c: Case) -> dict[str, Any]:
        import torch

        given = {name: x.requires_grad_() for name, x in c.call.given().items()}
        options = c.call.options(core, lambda x: x) | {"mask": mask_of(c.call, c.hide)}
        result = core.dot_product_attention(*c.call.inputs(lambda x: x), **options, return_lse=True)
        found = torch.autograd.grad([result.out, result.lse], list(given.values()), [c.dout, c.dlse])
        return {"out": result.out} | dict(zip(given, found, strict=True))

    check(Library("torch"), by_autograd, case(kind, **features), np.float64)


@pytest.mark.parametrize("far", [-3e4, 3e4])
@pytest.mark.parametrize(
    "library", [pytest.param(NUMPY, id="numpy"), pytest.param(JITTED, id="jax-jit", marks=pytest.mark.slow)]
)
def test_visible_logits_far_from_zero(library: Library, far: float) -> None:
    """No finite fill stands in for -inf: visible logits below and above any such number weigh as they do near 0."""
    near = case("causal", bias="dense")
    distant = near._replace(call=near.call.with_arrays(bias=near.call.bias + far))
    check(library, observed, distant, np.float32)
    expected = on(NUMPY, observed, near.cast(np.float64))
    found = on(library, observed, distant.cast(np.float32))
    for name in set(expected) - {"lse"}:
        np.testing.assert_allclose(np.asarray(found[name], np.float64), expected[name], rtol=0.05, atol=0.05)
    np.testing.assert_allclose(np.asarray(found["weights"])[near.visible == 0], 0, atol=0)


@QUICK
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_a_visible_nan_spoils_its_rows_only(library: Library, where: str) -> None:
    c = case("causal", softcap=2.0, bias="dense", sinks=True)._replace(
        hide=np.zeros((2, 4, 3, 5), bool)
    )  # query i sees the keys up to i + 1
    index = (0, 1, 1 if where == "query" else 2)  # so query 1, or the queries 1 and 2, of two heads or one
    rows = np.zeros((2, 4, 3), bool)
    rows[(0, 1, 1) if where == "query" else (0, slice(2, 4), slice(1, 3))] = True
    spoiled = c.call.arrays[where].copy()
    spoiled[index] = np.nan
    before = on(library, observed, c.cast(np.float32))
    after = on(library, observed, c._replace(call=c.call.with_arrays(**{where: spoiled})).cast(np.float32))
    before, after = ({name: library.numpy(x) for name, x in xs.items()} for xs in (before, after))
    assert np.isnan(after["out"][rows]).all()
    for name in ("out", "lse", "weights", "out tangent", "lse tangent", "query"):
        np.testing.assert_array_equal(after[name][~rows], before[name][~rows], name)
    assert (after["weights"][~c.visible] == 0).all()
    unspoiled = np.ones((2, 2, 5), bool)
    unspoiled[0, rows[0].any(1).reshape(2, 2).any(1), : 3 if where == "query" else 4] = False
    for name in ("key", "value"):
        assert np.isfinite(after[name][unspoiled]).all(), name


@QUICK
def test_a_visible_infinite_value_is_infinite_in_its_rows_only(library: Library) -> None:
    c = case("causal")._replace(hide=np.zeros((2, 4, 3, 5), bool))
    value = c.call.value.copy()
    value[0, 0, 2, 0], value[0, 0, 2, 1] = np.inf, -np.inf
    value[0, 1, 0, 2], value[0, 1, 1, 2] = np.inf, -np.inf
    before, after = (
        library.numpy(on(library, lambda c: {"out": observed_out(c)}, x.cast(np.float32))["out"])
        for x in (c, c._replace(call=c.call.with_arrays(value=value)))
    )
    expected = before.copy()
    expected[0, :2, 1:, 0], expected[0, :2, 1:, 1] = np.inf, -np.inf
    expected[0, 2:, :, 2] = np.nan  # inf - inf
    np.testing.assert_array_equal(after, expected)


def observed_out(c: Case) -> Any:
    options = c.call.options(core, lambda x: x) | {"mask": mask_of(c.call, c.hide)}
    return core.dot_product_attention(*c.call.inputs(lambda x: x), **options, impl="dense")
