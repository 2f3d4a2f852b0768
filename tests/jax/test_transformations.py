"""JAX's transformations of the tiled kernel give what they give of the dense definition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the kernel under test is JAX's")
import jax.numpy as jnp  # noqa: E402  after the skip
from jax import lax  # noqa: E402

import attention_jax as attention  # noqa: E402
from attention_jax import biases, masks  # noqa: E402

pytestmark = pytest.mark.usefixtures("double_precision")

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DEPTH, VALUE_DEPTH = 2, 4, 2, 5, 6, 3, 7
Attend = Callable[..., Any]


def arrays(seed: int = 0, items: tuple[int, ...] = ()) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    shapes = (
        (*items, BATCH, HEADS, QUERIES, DEPTH),
        (*items, BATCH, KV_HEADS, KEYS, DEPTH),
        (*items, BATCH, KV_HEADS, KEYS, VALUE_DEPTH),
    )
    query, key, value = (jnp.asarray(rng.normal(size=shape)) for shape in shapes)
    return query, key, value


def attend(impl: str, query: Any, key: Any, value: Any, **call: Any) -> Any:
    call = {"mask": masks.causal(), "query_positions": 1, **call}
    return attention.dot_product_attention(query, key, value, impl=impl, **call)


def loss(impl: str, *arrays: Any, **call: Any) -> Any:
    return (attend(impl, *arrays, **call) ** 2).sum()


def assert_same(transformed: Callable[[str], Any]) -> None:
    """Compare what ``transformed`` computes by the tiled kernel with what it computes by the definition."""
    ours, expected = (transformed(impl) for impl in ("tiled", "dense"))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


gradient = partial(jax.grad, argnums=(0, 1, 2))


@pytest.mark.slow
def test_vmap_of_grad() -> None:
    assert_same(
        lambda impl: jax.vmap(gradient(partial(loss, impl)), in_axes=(0, 0, None))(*arrays(items=(3,))[:2], arrays()[2])
    )


@pytest.mark.slow
def test_grad_of_vmap_over_the_last_axis_of_a_mask_and_of_positions() -> None:
    lengths, starts = jnp.asarray([[1, 6, 4], [3, 0, 9]]), jnp.asarray([0, 5, 2])

    def total(impl: str, query: Any, key: Any, value: Any) -> Any:
        def one(query: Any, lengths: Any, start: Any) -> Any:
            mask = masks.key_lengths(lengths) & masks.causal()
            return attend(impl, query, key, value, mask=mask, query_positions=start)

        return (
            jax.vmap(one, in_axes=(-1, -1, 0), out_axes=1)(jnp.stack([query, 2 * query, -query], -1), lengths, starts)
            ** 2
        ).sum()

    assert_same(lambda impl: jax.jit(gradient(partial(total, impl)))(*arrays()))


@pytest.mark.slow
def test_vmap_over_biases_and_sinks_in_grad() -> None:
    rng = np.random.default_rng(1)
    slopes, dense, sinks = (jnp.asarray(rng.normal(size=shape)) for shape in ((3, HEADS), (3, QUERIES, 1), (3, HEADS)))

    def total(impl: str, slopes: Any, dense: Any, sinks: Any) -> Any:
        def one(slopes: Any, dense: Any, sinks: Any) -> Any:
            return attend(impl, *arrays(), bias=biases.alibi(slopes) + biases.dense(dense), sinks=sinks)

        return (jax.vmap(one)(slopes, dense, sinks) ** 2).sum()

    assert_same(lambda impl: gradient(partial(total, impl))(slopes, dense, sinks))


@pytest.mark.slow
def test_jit_in_vmap_in_grad() -> None:
    assert_same(
        lambda impl: jax.grad(
            lambda x: jax.vmap(jax.jit(lambda c: loss(impl, c * x, *arrays()[1:])))(jnp.arange(3.0)).sum()
        )(arrays()[0])
    )


@pytest.mark.slow
def test_scan() -> None:
    def chain(impl: str, query: Any, key: Any, value: Any) -> Any:
        return lax.scan(
            lambda q, n: (attend(impl, q, key, value, query_positions=n)[..., :DEPTH], None), query, jnp.arange(3)
        )[0].sum()

    assert_same(lambda impl: jax.jit(gradient(partial(chain, impl)))(*arrays()))


@pytest.mark.slow
@pytest.mark.parametrize("names", [(), ("attention_out", "attention_lse")])
def test_checkpoint(names: tuple[str, ...]) -> None:
    policy = jax.checkpoint_policies.save_only_these_names(*names)
    assert_same(lambda impl: gradient(jax.checkpoint(partial(loss, impl), policy=policy))(*arrays()))


def test_a_checkpoint_policy_saves_out_and_lse(capsys: pytest.CaptureFixture[str]) -> None:
    policy = jax.checkpoint_policies.save_only_these_names("attention_out", "attention_lse")
    jax.ad_checkpoint.print_saved_residuals(jax.checkpoint(partial(loss, "tiled"), policy=policy), *arrays())
    saved = [line for line in capsys.readouterr().out.splitlines() if "from the argument" not in line]
    shapes = [
        str(list(shape)).replace(" ", "") for shape in ((BATCH, HEADS, QUERIES, VALUE_DEPTH), (BATCH, HEADS, QUERIES))
    ]
    assert sorted(line.split()[0] for line in saved) == sorted(f"f64{shape}" for shape in shapes)


@pytest.mark.slow
def test_forward_over_reverse() -> None:
    moves = arrays(seed=3)
    assert_same(lambda impl: jax.jit(lambda *x: jax.jvp(gradient(partial(loss, impl)), x, moves)[1])(*arrays()))


@pytest.mark.parametrize("mode", ["jvp", "jacfwd", "linearize", "jit", "scan"])
def test_forward_mode_names_the_definition(mode: str) -> None:
    query, *rest = arrays()

    def f(query: Any) -> Any:
        return attend("tiled", query, *rest)

    run = {
        "jvp": lambda: jax.jvp(f, (query,), (query,)),
        "jacfwd": lambda: jax.jacfwd(f)(query),
        "linearize": lambda: jax.linearize(f, query)[1](query),
        "jit": lambda: jax.jvp(jax.jit(f), (query,), (query,)),
        "scan": lambda: jax.jvp(
            lambda q: lax.scan(lambda c, _: (f(c)[..., :DEPTH], None), q, None, length=2), (query,), (query,)
        ),
    }[mode]
    with pytest.raises(TypeError, match=r'no forward mode .* pass `impl="dense"`'):
        run()


@pytest.mark.parametrize("jit", [False, True])
def test_reverse_over_reverse_names_the_definition(jit: bool) -> None:
    query, *rest = arrays()
    f = partial(loss, "tiled")
    f = jax.jit(f) if jit else f
    with pytest.raises(TypeError, match=r'no reverse mode over its gradient .* pass `impl="dense"`'):
        jax.grad(lambda q: jax.grad(f)(q, *rest).sum())(query)


@pytest.mark.slow
def test_ahead_of_time_compilation() -> None:
    assert_same(lambda impl: jax.jit(partial(attend, impl)).lower(*arrays()).compile()(*arrays()))


def test_offsets_and_lengths_compile_once() -> None:
    step = jax.jit(lambda length, start, *x: attend("tiled", *x, mask=masks.key_lengths(length), query_positions=start))
    for n in range(100):
        step(n, 2 * n, *arrays())
    assert step._cache_size() == 1


def test_integer_positions_compile_once_without_jit() -> None:
    from attention_jax.kernel import tiled_attention

    attend("tiled", *arrays(), query_positions=3)
    before = tiled_attention._cache_size()
    for n in range(4, 9):
        attend("tiled", *arrays(), query_positions=n)
    assert tiled_attention._cache_size() == before


@pytest.mark.slow
def test_layout_with_lengths_first() -> None:
    swapped = tuple(x.swapaxes(-2, -3) for x in arrays())
    out = attend("tiled", *swapped, layout="BLHD")
    np.testing.assert_allclose(out.swapaxes(-2, -3), attend("dense", *arrays()), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "empty",
    [
        "keys",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("batch", "queries", "depth", "value_depth", "heads")),
    ],
)
def test_empty_sizes(empty: str) -> None:
    sizes = {"batch": 2, "heads": 2, "queries": 3, "keys": 5, "depth": 4, "value_depth": 1} | {empty: 0}
    batch, heads, queries, keys, depth, value_depth = sizes.values()
    shapes = ((batch, heads, queries, depth), (batch, heads, keys, depth), (batch, heads, keys, value_depth))
    given = [jnp.ones(shape) for shape in shapes]
    out, lse, _ = attention.dot_product_attention(*given, return_lse=True)
    assert out.shape == (batch, heads, queries, value_depth)
    assert not bool(out.any()) or empty == "depth"
    assert bool((lse == -jnp.inf).all()) or empty not in ("keys",)
    assert all(g.shape == x.shape for g, x in zip(gradient(partial(loss, "auto"))(*given), given, strict=True))


def products(jaxpr: Any) -> int:
    """Count the products that run whatever a condition says."""
    inner = [eqn.params["jaxpr"].jaxpr for eqn in jaxpr.eqns if "jaxpr" in eqn.params]
    return sum(eqn.primitive.name == "dot_general" for eqn in jaxpr.eqns) + sum(map(products, inner))


def test_the_definition_multiplies_a_finite_value_once() -> None:
    x = jnp.zeros((2, 3, 4))
    call = partial(attention.dot_product_attention, mask=masks.causal(), impl="dense")
    assert products(jax.make_jaxpr(call)(x, x, x).jaxpr) == 2
