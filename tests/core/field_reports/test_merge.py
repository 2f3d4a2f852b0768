"""Merging attention over disjoint keys: natural logarithms, and empty parts that change nothing."""

from itertools import pairwise

import numpy as np
import pytest

from attention_np import dot_product_attention, merge
from tests.core.field_reports import plain
from tests.core.field_reports.libraries import assert_same, evaluate, spread

INF = np.inf


def test_reported_merges() -> None:
    """An empty part beside one, two empty ones, and two whose weights are 0.2 and 0.8."""
    assert merge([np.array([7.0]), np.array([0.0])], [np.array(1.0), np.array(-INF)])[0] == 7
    out, lse = merge([np.zeros(1), np.zeros(1)], [np.array(-INF), np.array(-INF)])
    assert (out, lse) == (0, -INF)
    outs = [np.array([1.0, 0]), np.array([0.0, 1])]
    natural, base_2 = (merge(outs, [np.asarray(log(2.0)), np.asarray(log(8.0))])[0] for log in (np.log, np.log2))
    assert_same(natural, [0.2, 0.8])
    assert_same(base_2, [1 / (1 + np.e**2), 1 / (1 + np.e**-2)])  # the mix-up, for comparison


CUTS = [("numpy", (1, 4)), ("numpy", (0, 3)), ("numpy", (3, 3)), ("numpy", (6, 6)), ("numpy", (0, 0)), ("jax", (0, 3))]


@pytest.mark.parametrize(("library", "cuts"), CUTS)
def test_parts_merge_into_the_whole_whatever_is_empty(library: str, cuts: tuple[int, int]) -> None:
    """Three parts of six keys, some without any; what stands in an empty part's output counts for nothing."""
    q, k, v = spread(2, 3, 4), spread(2, 6, 4), spread(2, 6, 5)
    bounds = (0, *cuts, 6)
    parts = [plain.attention(q, k[:, a:b], v[:, a:b]) for a, b in pairwise(bounds)]
    outs = [np.where(part.lse[..., None] == -INF, np.nan, part.out) for part in parts]
    out, lse = evaluate(library, lambda *x: merge(x[:3], x[3:]), *outs, *(part.lse for part in parts))
    whole = plain.attention(q, k, v)
    assert_same(out, whole.out)
    assert_same(lse, whole.lse)
    one_row = plain.merge([(part.out[1, 2], part.lse[1, 2]) for part in parts])
    assert_same(out[1, 2], one_row[0])


def test_a_merge_is_neither_a_mean_of_outputs_nor_a_sum_of_lses() -> None:
    q, k, v = spread(2, 3, 4), spread(2, 6, 4), spread(2, 6, 5)
    parts = [dot_product_attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 2), slice(2, 6))]
    out, lse = merge([part.out for part in parts], [part.lse for part in parts])
    whole = dot_product_attention(q, k, v, return_lse=True)
    assert_same(out, whole.out)
    assert_same(lse, whole.lse)
    assert not np.allclose((parts[0].out + parts[1].out) / 2, whole.out)
    assert not np.allclose(parts[0].lse + parts[1].lse, whole.lse)


def test_lse_is_a_natural_logarithm_and_minus_infinity_where_nothing_is_seen() -> None:
    q, k, v = np.zeros((2, 3, 4)), spread(2, 6, 4), spread(2, 6, 5)
    mask = np.array([[True] * 6, [True, False] * 3, [False] * 6])
    lse = dot_product_attention(q, k, v, mask=mask, return_lse=True).lse
    assert_same(lse, [[np.log(6), np.log(3), -INF]] * 2)


def test_a_sink_belongs_to_one_part() -> None:
    q, k, v, sinks = spread(2, 3, 4), spread(2, 6, 4), spread(2, 6, 5), np.array([0.5, -1.0])
    first = dot_product_attention(q, k[:, :2], v[:, :2], sinks=sinks, return_lse=True)
    second = dot_product_attention(q, k[:, 2:], v[:, 2:], return_lse=True)
    out, lse = merge([first.out, second.out], [first.lse, second.lse])
    expected = plain.attention(q, k, v, sinks=sinks)
    assert_same(out, expected.out)
    assert_same(lse, expected.lse)
