"""Causal masks: where the triangle stands, that nothing drops it, and that it composes with every other mask."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_np import dot_product_attention, masks
from tests.core.field_reports import plain
from tests.core.field_reports.libraries import assert_same, attention, on_every_library, spread

SIZES = [(1, 5), (3, 5), (5, 5), (5, 3), (4, 1)]


def problem(queries: int, keys: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return spread(2, queries, 4), spread(2, keys, 4, seed=1), spread(2, keys, 3)


@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_the_three_ways_to_place_the_triangle(queries: int, keys: int) -> None:
    """Upper left by default, lower right by name, anywhere by position; rows counted by hand, results the loop's."""
    upper, lower = masks.causal(), masks.causal_lower_right()
    assert upper.array(queries, keys, xp=np)[0].sum(-1).tolist() == [min(i + 1, keys) for i in range(queries)]
    assert lower.array(queries, keys, xp=np)[0].sum(-1).tolist() == [max(keys - i, 0) for i in range(queries)][::-1]
    q, k, v = problem(queries, keys)
    for call, start in (
        ({"mask": upper}, 0),
        ({"mask": lower}, keys - queries),
        ({"mask": upper, "query_positions": keys - queries}, keys - queries),
        ({"mask": upper, "query_positions": 2, "key_positions": 1}, 1),
    ):
        expected = plain.attention(q, k, v, mask=plain.causal(queries, keys, start))
        assert_same(dot_product_attention(q, k, v, **call), expected.out)


@on_every_library
def test_a_decoded_token_sees_the_whole_cache(library: str) -> None:
    """One new query at the end of a cache: by its position it sees every key, not only the oldest."""
    q, k, v = problem(1, 5)
    position = np.array([4]) if library == "jax" else 4  # a traced position is one too
    answer = attention(library, q, k, v, mask=masks.causal(), query_positions=position)
    assert_same(answer.out, plain.attention(q, k, v).out)
    assert not np.allclose(answer.out, v[:, :1])


def test_more_queries_than_keys_leave_leading_rows_empty_in_the_lower_right() -> None:
    q, k, v = problem(7, 3)
    out = dot_product_attention(q, k, v, mask=masks.causal_lower_right())
    assert not out[:, :4].any()
    assert_same(out[:, 4], v[:, 0])
    assert_same(out[:, 6], plain.attention(q[:, 6:], k, v).out[:, 0])


def test_what_verifies_shares_no_mask_with_what_is_verified() -> None:
    """The loop that the expected values come from imports nothing of the packages."""
    tree = ast.parse(Path(plain.__file__).read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert modules == {"math", "collections.abc", "typing", "numpy"}


WAYS: list[dict[str, Any]] = [
    {},
    {"return_weights": True},
    {"return_lse": True},
    {"bias": np.zeros((3, 3))},
    {"softcap": 1e9},
    {"sinks": np.array([-np.inf, -np.inf])},
    {"impl": "dense"},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "+".join(way) or "plain")
def test_no_way_of_calling_drops_the_mask(way: dict[str, Any]) -> None:
    """Asking for weights, or adding a bias, a cap or a sink, never opens the future."""
    q, k, v = problem(3, 3)
    for mask, seen in ((masks.causal(), plain.causal(3, 3)), (masks.sliding_window(1, 0), plain.window(3, 3, 1, 0))):
        result = dot_product_attention(q, k, v, mask=mask, **way)
        expected = plain.attention(q, k, v, mask=seen)
        assert_same(getattr(result, "out", result), expected.out, rtol=1e-6)
        if "return_weights" in way:
            assert not result.weights[:, ~seen].any()


@pytest.mark.parametrize("mask", [masks.causal(), masks.sliding_window(1, 0), masks.chunked(2)], ids=repr)
def test_no_array_mask_and_one_of_ones_are_the_same_to_the_bit(mask: masks.Mask) -> None:
    q, k, v = problem(3, 5)
    alone = dot_product_attention(q, k, v, mask=mask)
    for ones in (np.ones((3, 5), dtype=bool), np.ones((2, 1, 5), dtype=bool)):
        assert np.array_equal(dot_product_attention(q, k, v, mask=mask & ones), alone)
        assert np.array_equal(dot_product_attention(q, k, v, mask=ones & mask), alone)


@on_every_library
def test_causal_and_left_padding_are_both_obeyed(library: str) -> None:
    q, k, v = (np.stack([x, x + 1]) for x in problem(4, 4))
    padding = np.array([[False, True, True, True], [False, False, False, True]])[:, None, None, :]
    answer = attention(library, q, k, v, mask=masks.causal() & padding)
    expected = plain.attention(q, k, v, mask=plain.causal(4, 4) & padding)
    assert_same(answer.out, expected.out)
    assert_same(answer.lse, expected.lse)
    assert not answer.out[0, :, 0].any()
