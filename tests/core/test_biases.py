"""Every bias against its formula written again, and by tile."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from attention_core.masks.draw import mask_pairs
from attention_core.sizes import Sizes
from attention_np import attention_scores, biases, masks
from tests.core.held_biases import held, problem, values, whole
from tests.core.libraries import EACH_ONCE, Library
from tests.core.pictures import BATCH, HEADS, KEYS, POSITIONS, QUERIES, at, loop, position

# ALiBi


def published_slopes(heads: int) -> list[float]:
    """The recipe of the paper's repository: a geometric sequence, and for other head counts every other of the next."""
    if heads & (heads - 1) == 0:
        start = 2.0 ** (-(2.0 ** -(math.log2(heads) - 3)))
        return [start * start**n for n in range(heads)]
    below = 1 << (heads.bit_length() - 1)
    return published_slopes(below) + published_slopes(2 * below)[0::2][: heads - below]


@pytest.mark.parametrize("heads", range(1, 65))
def test_slopes_are_the_published_ones(heads: int) -> None:
    np.testing.assert_allclose(biases.alibi(heads).slopes, published_slopes(heads), rtol=1e-14)


def test_slopes_of_known_models() -> None:
    assert biases.alibi(0).slopes == ()
    assert biases.alibi(8).slopes == tuple(2.0**-n for n in range(1, 9))
    np.testing.assert_allclose(biases.alibi(12).slopes[8:], [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])


@pytest.mark.parametrize("where", POSITIONS)
def test_alibi_is_minus_slope_times_distance(where: str) -> None:
    slopes = np.array([0.5, 3.0])
    expected = np.zeros((*BATCH, HEADS, QUERIES, KEYS))

    def note(p: Any) -> bool:
        expected[(*p.batch, p.head, p.query, p.key)] = -slopes[p.head] * abs(p.query_position - p.key_position)
        return True

    loop(note, *POSITIONS[where])
    np.testing.assert_array_equal(values(biases.alibi(slopes), POSITIONS[where]), expected)


# T5's relative bias


def published_bucket(distance: int, bidirectional: bool, buckets: int, max_distance: int) -> int:
    """`_relative_position_bucket` of Hugging Face's T5, its logarithm settled by exact rational arithmetic.

    ``max_exact + int(log(n / max_exact) / log(max_distance / max_exact) * (buckets - max_exact))``: float64 gives the
    bucket, and where it lies too near an integer to be sure, comparing powers of fractions decides.
    """
    bucket = 0
    if bidirectional:
        buckets //= 2
        bucket = buckets if distance > 0 else 0
        n = abs(distance)
    else:
        n = max(-distance, 0)
    exact = buckets // 2
    if n < exact:
        return bucket + n
    ratio, limit, steps = Fraction(n, exact), Fraction(max_distance, exact), buckets - exact
    grown = math.log(ratio) / math.log(limit) * steps
    nearest = round(grown)
    if abs(grown - nearest) < 1e-6:
        grown = nearest if ratio**steps >= limit**nearest else nearest - 1
    return bucket + min(exact + math.floor(grown), buckets - 1)


@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (32, 20), (16, 64), (8, 27), (6, 32), (64, 1000), (4, 2), (12, 7)]
)
@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_are_the_published_ones(bidirectional: bool, buckets: int, max_distance: int) -> None:
    if not bidirectional and max_distance <= buckets // 2:
        max_distance = buckets
    reach = max_distance + 30
    table = np.arange(buckets, dtype=float)[:, None]
    bias = biases.relative(table, bidirectional=bidirectional, max_distance=max_distance)
    pairs = mask_pairs(masks.causal(), Sizes((), 1, 1, 1, 2 * reach, 1, 1), reach, 0, np)
    got = bias.values(pairs, np.float64)[0, 0].astype(int).tolist()
    expected = [published_bucket(d, bidirectional, buckets, max_distance) for d in range(-reach, reach)]
    assert got == expected


def test_odd_counts_of_buckets_where_one_direction_has_them_all() -> None:
    table = np.arange(7.0)[:, None]
    pairs = mask_pairs(masks.causal(), Sizes((), 1, 1, 1, 60, 1, 1), 50, 0, np)
    got = biases.relative(table, bidirectional=False, max_distance=40).values(pairs, np.float64)[0, 0]
    assert got.astype(int).tolist() == [published_bucket(j - 50, False, 7, 40) for j in range(60)]


@pytest.mark.parametrize("where", POSITIONS)
def test_relative_reads_its_table_by_head(where: str) -> None:
    table = np.random.default_rng(0).normal(size=(32, HEADS))
    query_positions, key_positions = POSITIONS[where]
    expected = np.zeros((*BATCH, HEADS, QUERIES, KEYS))
    for item in product(*map(range, BATCH)):
        for h, i, j in product(range(HEADS), range(QUERIES), range(KEYS)):
            q = position(query_positions, BATCH, i, item, QUERIES)
            k = position(key_positions, BATCH, j, item, KEYS)
            expected[(*item, h, i, j)] = table[published_bucket(k - q, True, 32, 128), h]
    np.testing.assert_array_equal(values(biases.relative(table), POSITIONS[where]), expected)


# Dense biases, rules and sums


@pytest.mark.parametrize("shape", [(), (KEYS,), (QUERIES, 1), (HEADS, 1, KEYS), (3, 1, 1, KEYS), (2, 1, HEADS, 1, 1)])
def test_dense_broadcasts(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).normal(size=shape)
    np.testing.assert_array_equal(values(biases.dense(x)), np.broadcast_to(x, (*BATCH, HEADS, QUERIES, KEYS)))


def test_rule_is_given_index_arrays_and_parameters() -> None:
    weights = np.array([2.0, -1.0])
    bias = biases.rule(lambda b, h, i, j, w, n: w[h] * (j - i) + b * n, weights, 0.5)
    expected = np.zeros((*BATCH, HEADS, QUERIES, KEYS))

    def note(p: Any) -> bool:
        number = p.batch[0] * 3 + p.batch[1]
        expected[(*p.batch, p.head, p.query, p.key)] = (
            weights[p.head] * (p.key_position - p.query_position) + number * 0.5
        )
        return True

    loop(note, 4, 1)
    np.testing.assert_array_equal(values(bias, (4, 1)), expected)


def test_sums_of_biases_and_arrays() -> None:
    x, slopes = np.random.default_rng(2).normal(size=(QUERIES, KEYS)), biases.alibi(HEADS)
    expected = values(slopes) + x
    for bias in (slopes + x, x + slopes, biases.dense(x) + slopes):
        np.testing.assert_array_equal(values(bias), expected)
    np.testing.assert_array_equal(values(slopes + x + x), values(slopes) + x + x)


@EACH_ONCE
def test_arrays_on_either_side_of_a_sum(library: Library) -> None:
    x = np.ones((QUERIES, KEYS), np.float32)

    def total(x: Any) -> Any:
        left = biases.dense(x) + biases.alibi(2) if library.name == "array_api_strict" else x + biases.alibi(2)
        pairs = mask_pairs(masks.causal(), Sizes((), 2, 2, QUERIES, KEYS, 1, 1), 0, 0, library.xp)
        return [bias.values(pairs, library.xp.float32) for bias in (left, biases.alibi(2) + x)]

    for got in library.call(total, x):
        expected = values(biases.alibi(2) + x)[0, 0].astype(np.float32)
        np.testing.assert_allclose(np.broadcast_to(library.numpy(got), expected.shape), expected, rtol=1e-6)


# By tile


@pytest.mark.parametrize("kind", held())
@pytest.mark.parametrize("where", ["integers", "per item", "uint8"])
def test_a_tile_is_the_cut_of_the_whole(kind: str, where: str) -> None:
    bias, pairs = held()[kind](), whole(*POSITIONS[where])
    full = values(bias, POSITIONS[where])
    for heads, queries, keys in product([(0, 1), (1, 2), (0, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 5)]):
        for item in (None, (1, 2)):
            tile = pairs.tile(queries, keys, heads, item)
            got = np.broadcast_to(bias.values(tile, np.float64), tile.shape)
            part = full if item is None else full[item]
            np.testing.assert_array_equal(got, part[..., slice(*heads), slice(*queries), slice(*keys)])


# What is masked by a bias, and what a rule may not return


@EACH_ONCE
def test_minus_infinity_masks_its_pair(library: Library) -> None:
    q, k, _ = (x.astype(np.float32) for x in problem())
    hidden = np.where(np.arange(KEYS) % 2, -np.inf, 0.0).astype(np.float32)
    k[..., 1::2, :] = np.nan
    got = library.numpy(library.call(lambda q, k, b: attention_scores(q, k, bias=b), q, k, hidden))
    np.testing.assert_array_equal(np.isneginf(got), np.broadcast_to(np.arange(KEYS) % 2 == 1, got.shape))
    assert np.isfinite(got[..., ::2]).all()


@pytest.mark.parametrize("result", [np.zeros((3, 5), int), True, np.zeros(5, complex), np.ones((3, 5), bool)], ids=repr)
def test_rule_must_return_real_numbers(result: Any) -> None:
    with pytest.raises(TypeError, match=r"the function of biases\.rule must return real numbers; rule\(.*\) returned"):
        values(biases.rule(lambda *indices: result))


@pytest.mark.parametrize("shape", [(4,), (5, 3), (7, 3, 2, 3, 5), (1, 2, 3, 2, 3, 5)])
def test_rule_must_return_numbers_that_broadcast(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must return numbers that broadcast to \(2, 3, 2, 3, 5\); .* returned shape"):
        values(biases.rule(lambda *indices: np.ones(shape)))


def test_rule_may_return_one_number() -> None:
    np.testing.assert_array_equal(
        values(biases.rule(lambda *indices: 1.5)), np.full((*BATCH, HEADS, QUERIES, KEYS), 1.5)
    )


def test_at_reads_by_counting_axes_from_the_right() -> None:
    """The tests' own ruler."""
    x = np.arange(15).reshape(3, 1, 5)
    assert at(x, (2, 3, 4, 5), (1, 2, 3, 4)) == 14
