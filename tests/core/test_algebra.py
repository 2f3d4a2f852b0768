"""Masks as values: they compose, compare, hash and print by value, and those that hold arrays are pytrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attention_np import biases, dot_product_attention, dropout, masks, vjp
from tests.core.libraries import EACH, Library
from tests.core.pictures import BATCH, HEADS, KEYS, QUERIES
from tests.core.test_tiles import draw_mask

A, B, C = masks.causal(), masks.sliding_window(1, 1), masks.dilated(2)
SIZES: dict[str, Any] = {"heads": HEADS, "batch": BATCH}


def seen(mask: Any) -> np.ndarray:
    return mask.array(QUERIES, KEYS, xp=np, **SIZES)


@pytest.mark.parametrize("seed", range(40))
def test_boolean_algebra(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = {"heads": 2, "batch": (2, 3), "query_positions": int(rng.integers(-3, 9)), "xp": np}
    a, b, c = (draw_mask(rng, 2) for _ in range(3))
    x, y, z = (mask.array(12, 17, **sizes) for mask in (a, b, c))
    for mask, expected in [
        (a & b, x & y),
        (a | b, x | y),
        (~a, ~x),
        (a & ~b | c, (x & ~y) | z),
        (a & (b | c), x & (y | z)),
        (~(a & b), ~x | ~y),
        (z & a | y, (z & x) | y),
        (a | y & b, x | (y & y)),
    ]:
        np.testing.assert_array_equal(mask.array(12, 17, **sizes), expected)


@EACH
def test_boolean_arrays_on_either_side(library: Library) -> None:
    given = np.random.default_rng(0).random((QUERIES, KEYS)) < 0.5

    def compose(x: Any) -> Any:
        left = masks.dense(x) & A if library.name == "array_api_strict" else x & A
        return [mask.array(QUERIES, KEYS, xp=library.xp) for mask in (left, A & x, A | x, ~A & ~masks.dense(x))]

    causal = np.tril(np.ones((QUERIES, KEYS), bool))
    for got, expected in zip(
        library.call(compose, given), [given & causal, given & causal, given | causal, ~given & ~causal], strict=True
    ):
        np.testing.assert_array_equal(library.numpy(got)[0], expected)


@pytest.mark.parametrize("other", [True, [True], 1, np.ones(5), None, "causal", biases.alibi(2)], ids=repr)
def test_only_masks_and_boolean_arrays_compose(other: Any) -> None:
    for compose in (lambda: A & other, lambda: A | other, lambda: other & A, lambda: other | A):
        with pytest.raises(TypeError):
            compose()


@pytest.mark.parametrize(
    "use", [lambda: A and B, lambda: A or B, lambda: not A, lambda: bool(A & B), lambda: 1 if A else 2]
)
def test_masks_have_no_truth_value(use: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"a mask has no truth value: compose masks by `&`, `\|` and `~`"):
        use()


def test_masks_are_frozen() -> None:
    with pytest.raises(AttributeError):
        A.left = 3  # type: ignore[attr-defined]  # what is tested


# Printing


def named_rule(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (masks.causal(), "causal()"),
        (masks.causal_lower_right(), "causal_lower_right()"),
        (masks.sliding_window(3, None), "sliding_window(3, None)"),
        (masks.sliding_window(None, 0), "causal()"),
        (masks.key_lengths(3), "key_lengths(3)"),
        (masks.key_lengths(np.array([1, 2])), "key_lengths(<int64 (2,)>)"),
        (masks.query_lengths(np.int8(3)), "query_lengths(3)"),
        (masks.segments(np.zeros(3, np.uint8)), "segments(<uint8 (3,)>, None)"),
        (masks.prefix(2) | masks.chunked(4), "prefix(2) | chunked(4)"),
        (masks.global_tokens(1) & ~masks.dilated(2), "global_tokens(1) & ~dilated(2)"),
        (A & (B | C), "causal() & (sliding_window(1, 1) | dilated(2))"),
        ((A & B) | C, "causal() & sliding_window(1, 1) | dilated(2)"),
        (~(A | B), "~(causal() | sliding_window(1, 1))"),
        (~~(A & B), "~~(causal() & sliding_window(1, 1))"),
        (masks.dense(np.ones((2, 3), bool)), "dense(<bool (2, 3)>)"),
        (masks.rule(named_rule), "rule(named_rule, ())"),
        (masks.rule(named_rule, np.zeros(3), 4), "rule(named_rule, (<float64 (3,)>, 4))"),
        (biases.alibi(2) + biases.dense(np.zeros(3)), "alibi((0.0625, 0.00390625)) + dense(<float64 (3,)>)"),
        (dropout(0.5, keep=np.ones(3, bool)), None),
    ],
)
def test_prints_as_it_is_written(mask: Any, text: str | None) -> None:
    assert repr(mask) == (text or repr(mask))


@EACH
def test_prints_alike_on_every_library(library: Library) -> None:
    mask = masks.dense(library.to(np.ones((2, 3), bool)))
    bias = biases.dense(library.to(np.ones(3, np.float32)))
    assert (repr(mask), repr(bias)) == ("dense(<bool (2, 3)>)", "dense(<float32 (3,)>)")


# Equality and hash


STATIC: list[Callable[[], Any]] = [
    masks.causal,
    masks.causal_lower_right,
    lambda: masks.sliding_window(None, 1),
    lambda: masks.sliding_window(1, None),
    lambda: masks.key_lengths(3),
    lambda: masks.query_lengths(3),
    lambda: masks.prefix(3),
    lambda: masks.chunked(3),
    lambda: masks.dilated(3),
    lambda: masks.global_tokens(3),
    lambda: masks.rule(named_rule),
    lambda: masks.rule(named_rule, 3, (1, 2.5), "word", None),
    lambda: masks.causal() & masks.prefix(3),
    lambda: masks.prefix(3) & masks.causal(),
    lambda: masks.causal() | masks.prefix(3),
    lambda: ~masks.causal(),
    lambda: biases.alibi(2),
    lambda: biases.alibi(4) + biases.alibi(4),
    lambda: biases.rule(named_rule, 3),
]


def test_static_values_are_equal_by_value() -> None:
    for n, make in enumerate(STATIC):
        assert make() == make()
        assert hash(make()) == hash(make())
        assert make().is_static()
        assert [other() == make() for other in STATIC] == [m == n for m in range(len(STATIC))]
    assert len({make() for make in STATIC * 2}) == len(STATIC)


def test_numbers_of_numpy_are_numbers_of_python() -> None:
    assert masks.chunked(np.int64(3)) == masks.chunked(3)
    assert masks.sliding_window(np.uint8(3), 0) == masks.sliding_window(3, 0)
    assert masks.key_lengths(np.int16(3)) == masks.key_lengths(3)
    assert hash(masks.prefix(np.int32(3))) == hash(masks.prefix(3))
    assert hash(biases.alibi(np.int64(4))) == hash(biases.alibi(4))


HOLDING: list[Callable[[np.ndarray], Any]] = [
    masks.key_lengths,
    masks.query_lengths,
    masks.prefix,
    masks.segments,
    lambda x: masks.segments(np.arange(3), x),
    lambda x: masks.dense(x > 1),
    lambda x: masks.rule(named_rule, x),
    lambda x: masks.rule(named_rule, (1, x)),
    lambda x: A & masks.prefix(x),
    lambda x: ~(masks.key_lengths(x) | A),
    lambda x: biases.dense(x / 2),
    lambda x: biases.alibi(x / 2),
    lambda x: biases.alibi(2) + biases.rule(named_rule, x),
    lambda x: biases.relative(np.ones((32, 3)) * x),
    lambda x: dropout(0.5, keep=x > 1),
]


@pytest.mark.parametrize("make", HOLDING)
def test_values_that_hold_arrays_are_not_hashable(make: Callable[[np.ndarray], Any]) -> None:
    value = make(np.array([1, 2, 3]))
    assert not value.is_static()
    assert len(value.arrays()) == (2 if "segments" in repr(value) and "None" not in repr(value) else 1)
    with pytest.raises(TypeError, match=r"holds arrays and is not hashable: under jax\.jit pass it as an ordinary arg"):
        hash(value)


def test_arrays_are_compared_by_identity() -> None:
    x = np.array([1, 2])
    assert masks.key_lengths(x) == masks.key_lengths(x)
    assert masks.key_lengths(x) != masks.key_lengths(x.copy())
    assert (A & masks.prefix(x)) == (A & masks.prefix(x))
    assert masks.key_lengths(x) != masks.key_lengths(2)
    assert masks.causal() != "causal()"


# Under JAX


@pytest.fixture
def jax() -> Any:
    found = pytest.importorskip("jax", reason="needs JAX: `pip install jax`")
    pytest.importorskip("attention_jax")
    return found


@pytest.mark.parametrize("make", STATIC[:16], ids=lambda make: repr(make()))
def test_static_masks_are_static_arguments(jax: Any, make: Callable[[], Any]) -> None:
    traces = []

    def dense(mask: Any) -> Any:
        traces.append(mask)
        return mask.array(QUERIES, KEYS, xp=jax.numpy) if "word" not in repr(mask) else jax.numpy.ones(())

    jitted = jax.jit(dense, static_argnums=0)
    if "word" not in repr(make()):
        np.testing.assert_array_equal(jitted(make()), make().array(QUERIES, KEYS, xp=np))
    jitted(make()), jitted(make())
    assert len(traces) == 1


def test_static_fields_stay_static_and_arrays_are_leaves(jax: Any) -> None:
    lengths, table = np.array([1, 2]), np.ones((32, 2))
    mask = masks.sliding_window(2, 0) & (masks.key_lengths(lengths) | ~masks.prefix(3))
    leaves, tree = jax.tree.flatten((mask, biases.relative(table, max_distance=50) + biases.alibi(2)))
    assert [leaf is own for leaf, own in zip(leaves, (lengths, table), strict=True)] == [True, True]
    assert jax.tree.unflatten(tree, leaves) == (mask, biases.relative(table, max_distance=50) + biases.alibi(2))
    assert jax.tree.leaves([make() for make in STATIC]) == []
    assert jax.tree.structure(STATIC[2]()) != jax.tree.structure(STATIC[3]())
    assert hash(tree) == hash(jax.tree.structure((mask, biases.relative(table, max_distance=50) + biases.alibi(2))))


@pytest.mark.parametrize("make", HOLDING)
def test_tree_map_round_trip(jax: Any, make: Callable[[np.ndarray], Any]) -> None:
    value = make(np.array([1, 2, 3]))
    again = jax.tree.map(np.copy, value)
    assert type(again) is type(value)
    assert repr(again) == repr(value)
    for ours, theirs in zip(again.arrays(), value.arrays(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert jax.tree.structure(again) == jax.tree.structure(value)
    paths = jax.tree_util.tree_flatten_with_path(value)[0]
    assert all(path for path, _ in paths)


def problem(jax: Any, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    shapes = (3, 2, 4, 7), (3, 1, 5, 7), (3, 1, 5, 3)
    return tuple(jax.numpy.asarray(rng.normal(size=shape), np.float32) for shape in shapes)  # type: ignore[return-value]  # three


VMAPPED: dict[str, tuple[Callable[[Any], dict[str, Any]], np.ndarray]] = {
    "key_lengths": (lambda x: {"mask": masks.key_lengths(x)}, np.array([0, 3, 5])),
    "query_lengths": (lambda x: {"mask": masks.query_lengths(x) & A}, np.array([0, 3, 4])),
    "prefix": (lambda x: {"mask": masks.prefix(x) | A}, np.array([0, 2, 5])),
    "segments": (lambda x: {"mask": masks.segments(x[..., :4], x)}, np.array([[0, 0, 1, 1, -1], [5] * 5, [-1] * 5])),
    "positions": (lambda x: {"mask": A, "query_positions": x}, np.array([[0, 1, 2, 3], [-1, -2, 0, 1], [4, 4, 4, 4]])),
    "dense": (lambda x: {"mask": masks.dense(x)}, np.random.default_rng(7).random((3, 1, 4, 5)) < 0.6),
    "bias": (lambda x: {"bias": x}, np.random.default_rng(8).normal(size=(3, 1, 4, 5)).astype(np.float32)),
    "rule": (
        lambda x: {"mask": masks.rule(lambda b, h, i, j, x: (i + j) % 3 != x[..., None, None, None], x)},
        np.array([0, 1, 2]),
    ),
}


@pytest.mark.parametrize("kind", VMAPPED)
def test_vmap_over_what_masks_hold(jax: Any, kind: str) -> None:
    q, k, v = problem(jax)
    make, known = VMAPPED[kind]

    def attend(q: Any, k: Any, v: Any, call: dict[str, Any]) -> Any:
        return dot_product_attention(q, k, v, **call)

    expected = attend(*map(np.asarray, (q, k, v)), make(known))
    got = jax.jit(jax.vmap(attend))(q, k, v, make(jax.numpy.asarray(known)))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_masks_may_be_made_inside_vmap(jax: Any) -> None:
    q, k, v = problem(jax)
    lengths = np.array([0, 3, 5])
    mapped = jax.vmap(lambda q, k, v, n: dot_product_attention(q, k, v, mask=masks.key_lengths(n) & A))
    expected = dot_product_attention(*map(np.asarray, (q, k, v)), mask=masks.key_lengths(lengths) & A)
    np.testing.assert_allclose(jax.jit(mapped)(q, k, v, lengths), expected, rtol=1e-5, atol=1e-6)


def test_python_values_beside_arrays_stay_python_values(jax: Any) -> None:
    def fn(batch: Any, head: Any, query: Any, key: Any, offsets: Any, pair: Any, flag: bool) -> Any:
        assert type(pair[0]) is int, "a tracer would lose the static schedule"
        assert flag is True
        return sum((key - query == n * pair[1]) for n in range(pair[0])) + offsets[0] > 0

    mask = masks.rule(fn, np.zeros(1, int), (3, np.array(1)), True)
    got = jax.jit(lambda mask: mask.array(4, 6, xp=jax.numpy))(mask)
    np.testing.assert_array_equal(got, masks.sliding_window(0, 2).array(4, 6, xp=np))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(mask)[0]]
    assert paths == [".params[0]", ".params[1]"]


def test_true_is_not_one(jax: Any) -> None:
    count = jax.jit(lambda mask, x: x + (2 if mask.params[0] is True else 1), static_argnums=0)
    tree = jax.jit(lambda mask: mask.params[1] + (2 if mask.params[0] is True else 1))
    assert int(tree(masks.rule(named_rule, 1, np.array(0)))) == 1
    assert int(tree(masks.rule(named_rule, True, np.array(0)))) == 2
    assert int(count(masks.rule(named_rule, 1), 0)) == 1
    assert int(count(masks.rule(named_rule, True), 0)) == 2


def test_vmap_over_the_table_and_the_slopes(jax: Any) -> None:
    q, k, v = problem(jax)
    tables, slopes = np.random.default_rng(1).normal(size=(3, 8, 2)), np.random.default_rng(2).random((3, 2))
    bias = biases.relative(jax.numpy.asarray(tables, np.float32)[0]), biases.alibi(jax.numpy.asarray(slopes[0]))
    stacked = jax.tree.map(lambda *x: jax.numpy.stack(x), *[bias] * 3)
    stacked = jax.tree.unflatten(
        jax.tree.structure(stacked), [jax.numpy.asarray(x, np.float32) for x in (tables, slopes)]
    )
    got = jax.jit(jax.vmap(lambda q, k, v, b: dot_product_attention(q, k, v, bias=b[0] + b[1])))(q, k, v, stacked)
    for n in range(3):
        bias = biases.relative(np.float32(tables[n])) + biases.alibi(np.float32(slopes[n]))
        one = dot_product_attention(*(np.asarray(x[n]) for x in (q, k, v)), bias=bias)
        np.testing.assert_allclose(got[n], one, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("positions", [2, np.array([3, 1, 0, 2])], ids=repr)
def test_jit_with_integer_and_with_traced_positions(jax: Any, positions: Any) -> None:
    q, k, v = problem(jax)

    def attend(q: Any, k: Any, v: Any, positions: Any) -> Any:
        return dot_product_attention(q, k, v, mask=A & masks.sliding_window(2, 0), query_positions=positions)

    expected = attend(*map(np.asarray, (q, k, v)), positions)
    np.testing.assert_allclose(jax.jit(attend)(q, k, v, positions), expected, rtol=1e-5, atol=1e-6)
    if isinstance(positions, int):
        static = jax.jit(attend, static_argnums=3)
        np.testing.assert_allclose(static(q, k, v, positions), expected, rtol=1e-5, atol=1e-6)


def test_numpy_constants_inside_a_trace(jax: Any) -> None:
    q, k, v = problem(jax)
    lengths, bias, sinks = np.array([2, 0, 5]), np.arange(5, dtype=np.float32), np.zeros(2, np.float32)
    call = {"mask": masks.key_lengths(lengths), "bias": bias, "sinks": sinks, "key_positions": np.arange(5)}
    expected = dot_product_attention(*map(np.asarray, (q, k, v)), **call)
    got = jax.jit(lambda q: dot_product_attention(q, np.asarray(k), np.asarray(v), **call))(q)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_checkpoint_grad_vmap_and_jit_around_a_mask(jax: Any) -> None:
    q, k, v = problem(jax)
    lengths, slopes = np.array([2, 0, 5]), np.float32([0.5, 0.25])

    def attend(q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
        return dot_product_attention(q, k, v, mask=mask, bias=bias, query_positions=1)

    def loss(*arguments: Any) -> Any:
        return (attend(*arguments) ** 2).sum()

    plain = *map(np.asarray, (q, k, v)), masks.key_lengths(lengths) & A, biases.alibi(slopes)
    call = {"mask": plain[3], "bias": plain[4], "query_positions": 1}
    expected = vjp(*plain[:3], **call)[1](2 * attend(*plain))
    assert np.any(expected.query[0])
    assert not np.any(expected.query[1])
    arguments = jax.tree.map(jax.numpy.asarray, plain)
    for inner in (jax.jit(loss), jax.checkpoint(loss)):
        mapped = jax.vmap(jax.grad(inner, argnums=(0, 4)), in_axes=(0, 0, 0, 0, None))
        by_query, by_bias = jax.jit(mapped)(*arguments)
        np.testing.assert_allclose(by_query, expected.query, rtol=1e-4, atol=1e-6)
        assert type(by_bias) is type(plain[4])
        np.testing.assert_allclose(by_bias.slopes.sum(0), expected.bias.slopes, rtol=1e-4, atol=1e-5)


def test_grad_with_a_mask_among_the_arguments_needs_allow_int(jax: Any) -> None:
    """Masks hold no real numbers, which JAX differentiates past only when told to."""
    q, k, v = problem(jax)
    mask = masks.key_lengths(jax.numpy.asarray([2, 0, 5]))
    lost = jax.jit(jax.grad(lambda a: dot_product_attention(a[0], k, v, mask=a[1]).sum(), allow_int=True))
    expected = vjp(*map(np.asarray, (q, k, v)), mask=masks.key_lengths(np.array([2, 0, 5])))[1](
        np.ones((3, 2, 4, 3), np.float32)
    )
    np.testing.assert_allclose(lost((q, mask))[0], expected.query, rtol=1e-4, atol=1e-6)
