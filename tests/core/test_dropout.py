"""Keep masks: pinned bits, the same in every library, tile and shard; their statistics; the calls that drop."""

from types import ModuleType
from typing import Any

import array_api_strict
import numpy as np
import pytest

import attention_np as attention
from attention_core.dropout import dropout
from attention_core.pairs import Pairs

jax = pytest.importorskip("jax", reason="the `jax` extra is not installed")
import jax.numpy as jnp  # noqa: E402  after the skip

import attention_jax  # noqa: E402  after the skip

LIBRARIES = ["numpy", "jax", "strict", pytest.param("torch", marks=pytest.mark.torch)]
WORD = 0xFFFFFFFF


def namespace(library: str) -> ModuleType:
    if library != "torch":
        return {"numpy": np, "jax": jnp, "strict": array_api_strict}[library]
    import array_api_compat.torch

    return array_api_compat.torch


def pairs(xp: Any = np, batch: tuple[int, ...] = (2,), heads: int = 3, queries: int = 4, keys: int = 10) -> Pairs:
    return Pairs(xp, batch, (0, heads), (0, queries), (0, keys))


def keep(drop: Any, where: Pairs) -> np.ndarray:
    def mask() -> Any:
        return where.xp.broadcast_to(drop.kept(where), where.shape)

    return np.asarray(jax.jit(mask)() if where.xp is jnp else mask())  # eager JAX would compile every step on its own


# A second writing of docs/dropout.md, on Python's integers


def block(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    schedule = [*key, key[0] ^ key[1] ^ 0x1BD11BDA]
    x, y = (counter[0] + key[0]) & WORD, (counter[1] + key[1]) & WORD
    for turn in range(20):
        distance = (13, 15, 26, 6, 17, 29, 16, 24)[turn % 8]
        x = (x + y) & WORD
        y = ((y << distance | y >> (32 - distance)) & WORD) ^ x
        if turn % 4 == 3:
            step = turn // 4 + 1
            x, y = (x + schedule[step % 3]) & WORD, (y + schedule[(step + 1) % 3] + step) & WORD
    return x, y


def lane(seed: int, batch: int, head: int, i: int, j: int) -> int:
    words = block(block((seed & WORD, seed >> 32), (batch, head)), (i, j // 4))
    return words[j % 4 // 2] >> 16 * (j % 2) & 0xFFFF


def written_again(rate: float, seeds: list[int], origin: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    found = np.zeros(shape, dtype=bool)
    for index in np.ndindex(*shape):
        found[index] = lane(seeds[index[0]], *(a + o for a, o in zip(index, origin, strict=True))) >= rate * 65536
    return found


# The bits


def rows(text: str) -> np.ndarray:
    return np.array([[character == "1" for character in row] for row in text.split()])


FIRST = rows("1111111110 1111001011 1000000101 1110001111")
SECOND = rows("1101100010 0101010101 1010110100 1000111011")


@pytest.mark.parametrize("library", LIBRARIES)
def test_pinned_masks(library: str) -> None:
    where = pairs(namespace(library))
    np.testing.assert_array_equal(keep(dropout(0.25, seed=7), where)[0, 0], FIRST)
    np.testing.assert_array_equal(keep(dropout(0.5, seed=2**40 + 5), where)[1, 2], SECOND)


def test_the_documentation_pins_the_same_masks(root: Any) -> None:
    page = (root / "docs" / "dropout.md").read_text(encoding="utf-8")
    for mask in (FIRST, SECOND):
        assert "\n".join("".join("01"[int(kept)] for kept in row) for row in mask) in page
    for j, bits in ((4, 36393), (5, 51981), (6, 38626), (7, 53323)):
        assert lane(7, 1, 2, 3, j) == bits
        assert f"| {j} | {bits} |" in page


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**32 - 1, 2**40 + 5, 2**64 - 1])
@pytest.mark.parametrize("origin", [(0, 0, 0, 0), (5, 70001, 123456, 3), (2**31 - 9, 1, 2**31 - 9, 2**31 - 90)])
def test_masks_are_the_documented_function(library: str, seed: int, origin: Any) -> None:
    where = pairs(namespace(library), (2,), 2, 3, 5)
    expected = written_again(0.5, [seed] * 2, origin, where.shape)
    np.testing.assert_array_equal(keep(dropout(0.5, seed, origin=origin), where), expected)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_seed_a_batch_item(library: str) -> None:
    where = pairs(xp := namespace(library), (2,), 2, 3, 5)
    found = keep(dropout(0.5, xp.asarray([11, 12])), where)
    np.testing.assert_array_equal(found, written_again(0.5, [11, 12], (0, 0, 0, 0), where.shape))


@pytest.mark.parametrize("x64", [False, True])
def test_traced_seed_and_origin_give_the_same_bits(x64: bool) -> None:
    def mask(seed: Any, *origin: Any) -> Any:
        return dropout(0.5, seed, origin=origin).kept(pairs(jnp, (2,), 2, 3, 5))

    with jax.enable_x64(x64):
        for origin in ((0, 0, 0, 0), (1, 2, 3, 6)):
            found = jax.jit(mask)(jnp.asarray(7), *map(jnp.asarray, origin))
            np.testing.assert_array_equal(found, written_again(0.5, [7, 7], origin, (2, 2, 3, 5)))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_tile_drops_what_the_whole_drops(library: str) -> None:
    drop, where = dropout(0.4, seed=3), pairs(namespace(library))
    whole = keep(drop, where)
    for (a, b), (c, d), (g, h) in (((1, 4), (3, 6), (0, 3)), ((0, 1), (4, 8), (1, 2)), ((2, 2), (9, 10), (0, 1))):
        np.testing.assert_array_equal(keep(drop, where.tile((a, b), (c, d), (g, h))), whole[:, g:h, a:b, c:d])
    np.testing.assert_array_equal(keep(drop, where.tile((0, 4), (1, 9), item=(1,))), whole[1, ..., 1:9])


def test_several_batch_axes_count_row_by_row() -> None:
    flat, drop = keep(dropout(0.5, seed=1), pairs(batch=(6,))), dropout(0.5, seed=1)
    np.testing.assert_array_equal(keep(drop, pairs(batch=(2, 3))), flat.reshape(2, 3, *flat.shape[1:]))


@pytest.mark.parametrize("shape", [(0, 3, 4, 10), (2, 0, 4, 10), (2, 3, 0, 10), (2, 3, 4, 0)])
def test_no_pairs(shape: tuple[int, int, int, int]) -> None:
    batch, heads, queries, keys = shape
    assert dropout(0.5, seed=1, origin=(0, 0, 0, 3)).kept(pairs(np, (batch,), heads, queries, keys)).shape == shape


# The statistics, of one large mask; bounds are 5 standard deviations of what independent draws would give

RATE = 0.3


@pytest.fixture(scope="module")
def kept() -> np.ndarray:
    return keep(dropout(RATE, seed=2024), pairs(np, (4,), 4, 256, 256))


def deviation(kept: np.ndarray, axes: tuple[int, ...] | None = None) -> Any:
    """How far shares of kept pairs are from ``1 - rate``, in standard deviations."""
    count = kept.size if axes is None else np.prod([kept.shape[axis] for axis in axes])
    rate = round(RATE * 65536) / 65536
    return (kept.mean(axis=axes) - (1 - rate)) / np.sqrt(rate * (1 - rate) / count)


@pytest.mark.parametrize(
    "axes",
    [None, (2, 3), (0, 1, 3), (0, 1, 2), (3,), (2,), (0, 2, 3), (1, 2, 3)],
    ids=["all", "head and item", "row", "column", "row of a head", "column of a head", "head", "item"],
)
def test_the_rate_is_met_everywhere(kept: np.ndarray, axes: tuple[int, ...] | None) -> None:
    z = np.asarray(deviation(kept, axes))
    assert np.abs(z).max() < 5
    chi_square, count = np.sum(z**2), z.size
    assert abs(chi_square - count) < 5 * np.sqrt(2 * count) + 5


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Of two masks, in standard deviations of what independent draws would give."""
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1] * np.sqrt(a.size))


def test_neighbours_are_independent(kept: np.ndarray) -> None:
    shifts = {"lane": 1, "lane two on": 2, "lane three on": 3, "block": 4}
    by_key = {name: correlation(kept[..., :-n], kept[..., n:]) for name, n in shifts.items()}
    others = {
        "query": correlation(kept[:, :, :-1], kept[:, :, 1:]),
        "head": correlation(kept[:, :-1], kept[:, 1:]),
        "item": correlation(kept[:-1], kept[1:]),
        "transposed": correlation(kept, np.swapaxes(kept, -1, -2)),
        "head and item exchanged": correlation(kept[0, 1], kept[1, 0]),
    }
    assert {name: z for name, z in (by_key | others).items() if abs(z) > 5} == {}


def test_the_sixteen_patterns_of_a_block_are_as_frequent_as_they_should_be(kept: np.ndarray) -> None:
    patterns = kept.reshape(-1, 4) @ np.array([1, 2, 4, 8])
    counts = np.bincount(patterns, minlength=16)
    ones = np.array([bin(pattern).count("1") for pattern in range(16)])
    expected = patterns.size * (1 - RATE) ** ones * RATE ** (4 - ones)
    chi_square = np.sum((counts - expected) ** 2 / expected)
    assert chi_square < 37.7  # the 0.1 % point for 15 degrees of freedom


@pytest.mark.parametrize("other", [0, 1, 6, 8, 7 + 2**32, 7 + 2**63])
def test_seeds_are_independent(other: int) -> None:
    where = pairs(np, (1,), 2, 128, 128)
    assert abs(correlation(keep(dropout(0.5, 7), where), keep(dropout(0.5, other), where))) < 5


def test_lanes_are_uniform() -> None:
    """Sixteen thresholds cut the lanes into classes of equal size."""
    where = pairs(np, (1,), 1, 256, 256)
    shares = [keep(dropout(n / 16, 5), where).sum() for n in range(16)] + [0]
    counts = -np.diff(shares)
    expected = 256 * 256 / 16
    assert np.sum((counts - expected) ** 2) / expected < 37.7


# Rates and the calls


@pytest.mark.parametrize(
    ("rate", "rounded"), [(0.1, 6554 / 65536), (0.5, 0.5), (1e-6, 0.0), (0.99999, 65535 / 65536), (1 / 131072, 0.0)]
)
def test_a_seeded_rate_is_rounded(rate: float, rounded: float) -> None:
    assert dropout(rate, seed=0).rate == rounded
    assert dropout(rate, keep=np.ones((1, 1), dtype=bool)).rate == rate


@pytest.fixture
def arrays() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(2, 4, 5, 3)), rng.normal(size=(2, 2, 7, 3)), rng.normal(size=(2, 2, 7, 6))


def test_a_call_with_a_seed_is_the_call_with_its_mask(arrays: tuple[np.ndarray, ...]) -> None:
    mask = keep(seeded := dropout(0.25, seed=9), pairs(np, (2,), 4, 5, 7))
    explicit = dropout(0.25, keep=mask)
    call = {"return_lse": True, "return_weights": True, "mask": attention.masks.causal()}
    found, expected = (attention.dot_product_attention(*arrays, dropout=drop, **call) for drop in (seeded, explicit))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    plain = attention.dot_product_attention(*arrays, **call)
    np.testing.assert_array_equal(found.lse, plain.lse)
    np.testing.assert_array_equal(found.weights, plain.weights)
    value = np.repeat(arrays[2], 2, axis=1)
    np.testing.assert_allclose(found.out, (plain.weights * mask / 0.75) @ value, rtol=1e-12)


def test_rate_zero_is_exact_identity(arrays: tuple[np.ndarray, ...]) -> None:
    plain = attention.dot_product_attention(*arrays)
    for drop in (dropout(0, seed=3), dropout(0.0, keep=np.zeros(7, dtype=bool))):
        np.testing.assert_array_equal(attention.dot_product_attention(*arrays, dropout=drop), plain)


def test_gradients_are_finite_differences(arrays: tuple[np.ndarray, ...]) -> None:
    drop, rng, step = dropout(0.25, seed=9), np.random.default_rng(2), 1e-6
    result, pullback = attention.vjp(*arrays, dropout=drop)
    cotangent = rng.normal(size=result.out.shape)
    gradients = pullback(cotangent)[:3]
    moves = [rng.normal(size=x.shape) for x in arrays]
    ahead, behind = (
        attention.dot_product_attention(
            *(x + sign * step * m for x, m in zip(arrays, moves, strict=True)), dropout=drop
        )
        for sign in (1, -1)
    )
    slope = np.sum((ahead - behind) / (2 * step) * cotangent)
    along = sum(np.sum(g * m) for g, m in zip(gradients, moves, strict=True))
    np.testing.assert_allclose(along, slope, rtol=1e-7)
    _, moved = attention.jvp(*arrays, attention.Gradients(*moves), dropout=drop)
    np.testing.assert_allclose(np.sum(moved.out * cotangent), slope, rtol=1e-7)


def test_jax_compiles_once_for_all_seeds_and_differentiates(arrays: tuple[np.ndarray, ...]) -> None:
    compiled = []

    def loss(seed: Any, query: Any) -> Any:
        compiled.append(seed)
        return attention_jax.dot_product_attention(query, *arrays[1:], dropout=dropout(0.25, seed)).sum()

    with jax.enable_x64(True):
        gradient = jax.jit(jax.grad(loss, argnums=1))
        for seed in (3, 4, 2**40 + 5):
            _, pullback = attention.vjp(*arrays, dropout=dropout(0.25, seed))
            expected = pullback(np.ones((2, 4, 5, 6))).query
            np.testing.assert_allclose(gradient(jnp.asarray(seed), arrays[0]), expected, rtol=1e-9, atol=1e-12)
    assert len(compiled) == 1


@pytest.mark.slow
def test_vmap_with_a_seed_an_item_is_a_call_an_item(arrays: tuple[np.ndarray, ...]) -> None:
    def call(seed: Any, *item: Any) -> Any:
        return attention_jax.dot_product_attention(*item, dropout=dropout(0.25, seed))

    items = [jnp.asarray(x, dtype=jnp.float32) for x in arrays]
    found = jax.jit(jax.vmap(call))(jnp.asarray([3, 4]), *items)
    expected = [jax.jit(call)(seed, *(x[n] for x in items)) for n, seed in enumerate((3, 4))]
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-5, atol=1e-6)


def test_a_shard_with_its_origin_is_a_part_of_the_whole(arrays: tuple[np.ndarray, ...]) -> None:
    query, key, value = arrays
    whole = attention.dot_product_attention(query, key, value, dropout=dropout(0.25, seed=9))
    head = attention.dot_product_attention(
        query[1:, 2:, 1:], key[1:, 1:], value[1:, 1:], dropout=dropout(0.25, seed=9, origin=(1, 2, 1, 0))
    )
    np.testing.assert_allclose(head[0], whole[1, 2:, 1:], rtol=1e-12)


def test_parts_of_the_keys_with_their_origins_merge_to_the_whole(arrays: tuple[np.ndarray, ...]) -> None:
    query, key, value = arrays
    parts = [
        attention.dot_product_attention(
            query, key[:, :, a:b], value[:, :, a:b], dropout=dropout(0.25, 9, origin=(0, 0, 0, a)), return_lse=True
        )
        for a, b in ((0, 3), (3, 7))
    ]
    out, _ = attention.merge([part.out for part in parts], [part.lse for part in parts])
    whole = attention.dot_product_attention(query, key, value, dropout=dropout(0.25, seed=9))
    np.testing.assert_allclose(out, whole, rtol=1e-12)


def test_static_ones_compare_and_hash() -> None:
    assert dropout(0.5, seed=1) == dropout(0.5, seed=1) != dropout(0.5, seed=2)
    assert hash(dropout(0.5, seed=1)) == hash(dropout(0.5, seed=1))
    assert repr(dropout(0.5, 1, origin=(0, 2, 0, 0))) == "dropout(0.5, seed=1, origin=(0, 2, 0, 0))"
    assert repr(dropout(0.5, np.arange(3))) == "dropout(0.5, seed=<int64 (3,)>)"
    assert repr(dropout(0.5, keep=np.ones(3, dtype=bool))) == "dropout(0.5, keep=<bool (3,)>)"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"rate": 0.5}, ValueError, "exactly one of `seed` and `keep`; got neither"),
        ({"rate": 0.5, "seed": 1, "keep": np.ones(3, dtype=bool)}, ValueError, "got both"),
        ({"rate": 1.0, "seed": 1}, ValueError, "`rate` must be at least 0 and below 1; got 1.0"),
        ({"rate": -0.1, "seed": 1}, ValueError, "`rate` must be at least 0"),
        ({"rate": float("nan"), "seed": 1}, ValueError, "`rate` must be at least 0"),
        ({"rate": 0.999999, "seed": 1}, ValueError, "would be 1, all dropped"),
        ({"rate": "0.5", "seed": 1}, TypeError, "`rate` must be a Python number; got a str"),
        ({"rate": True, "seed": 1}, TypeError, "`rate` must be a Python number; got a bool"),
        ({"rate": 0.5, "seed": -1}, ValueError, r"`seed` must be at least 0 and below 2\*\*64; got -1"),
        ({"rate": 0.5, "seed": 2**64}, ValueError, "`seed` must be at least 0"),
        ({"rate": 0.5, "seed": 1.0}, TypeError, "`seed` must be an integer"),
        ({"rate": 0.5, "seed": True}, TypeError, "`seed` must be an integer"),
        ({"rate": 0.5, "seed": np.ones(3)}, TypeError, "`seed` must be an integer or an integer array"),
        ({"rate": 0.5, "keep": np.ones(3)}, TypeError, "`keep` must be a boolean array"),
        ({"rate": 0.5, "seed": 1, "origin": 3}, ValueError, "`origin` must be four indices"),
        ({"rate": 0.5, "seed": 1, "origin": (0, 0, 1)}, ValueError, "`origin` must be four indices"),
        ({"rate": 0.5, "seed": 1, "origin": (0, 0, 0, -1)}, ValueError, "`origin` must hold indices"),
        ({"rate": 0.5, "seed": 1, "origin": (0, 0, 0, 0.5)}, TypeError, "`origin` must be an integer"),
        ({"rate": 0.5, "seed": 1, "origin": (np.arange(2), 0, 0, 0)}, ValueError, "`origin` must hold single"),
        ({"rate": 0.5, "keep": np.ones(3, dtype=bool), "origin": (0, 0, 0, 1)}, ValueError, "cut the array itself"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        dropout(**arguments)


@pytest.mark.parametrize(
    ("drop", "words"),
    [
        (dropout(0.5, seed=np.arange(3)), r"`seed` has shape \(3,\), which does not broadcast to the batch axes"),
        (dropout(0.5, keep=np.ones(6, dtype=bool)), r"`keep` has shape \(6,\), which does not broadcast"),
    ],
)
def test_arrays_that_do_not_fit_the_call(arrays: tuple[np.ndarray, ...], drop: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        attention.dot_product_attention(*arrays, dropout=drop)


@pytest.mark.parametrize("drop", [0.5, np.ones(3, dtype=bool)])
def test_dropout_is_a_value_of_dropout(arrays: tuple[np.ndarray, ...], drop: Any) -> None:
    with pytest.raises(TypeError, match="`dropout` must be a value made by dropout"):
        attention.dot_product_attention(*arrays, dropout=drop)


def test_a_value_of_dropout_is_a_pytree(arrays: tuple[np.ndarray, ...]) -> None:
    def call(drop: Any) -> Any:
        return attention_jax.dot_product_attention(*map(jnp.asarray, arrays), dropout=drop)

    found = jax.jit(call)(dropout(0.25, jnp.asarray(3), origin=(0, jnp.asarray(1), 0, 2)))
    expected = attention.dot_product_attention(*arrays, dropout=dropout(0.25, 3, origin=(0, 1, 0, 2)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
