"""Scores that Cauchy-Schwarz bounds need no maximum: when that is so, and that both ways give the definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the kernel under test is JAX's")
import jax.numpy as jnp  # noqa: E402  after the skip

from attention_core.problem import make_problem  # noqa: E402
from attention_jax import dot_product_attention, dropout, masks  # noqa: E402
from attention_jax.bounded import bounds, keys_to_bound  # noqa: E402
from attention_jax.flat import Work, flatten, operands_of, spec_of, work_of  # noqa: E402

from .test_tiled import SMALL, STATIC, assert_equal  # noqa: E402

QUERIES, KEYS = 11, 13


def work_for(tiles: tuple[int, int] = SMALL, queries: int = QUERIES, keys: int = KEYS, **call: Any) -> Work:
    query, key, value = (jnp.ones((1, 2, length, 3)) for length in (queries, keys, keys))
    problem = make_problem(query, key, value, **call)
    return work_of(spec_of(problem, *tiles), operands_of(problem))


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("name", STATIC)
def test_a_static_mask_with_scores_that_no_bound_keeps_small(name: str) -> None:
    """Those of ordinary scores are in test_tiled."""
    assert_equal({"mask": STATIC[name], "query_positions": 2, "scale": 30.0})


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("softcap", [0.5, 50.0])
def test_soft_cap_and_dropout_with_scores_of_any_size(softcap: float) -> None:
    assert_equal({"softcap": softcap, "scale": 30.0, "mask": masks.causal(), "dropout": dropout(0.3, seed=5)})


@pytest.mark.parametrize("mask", ["none", "causal", "window", "dilated or global", "chunked and causal", "nothing"])
@pytest.mark.parametrize("tiles", [(4, 4), (4, 16), (64, 4), (3, 5)])
@pytest.mark.parametrize("start", [0, 2, -6])
def test_keys_that_a_bound_is_taken_over_are_those_that_some_query_sees(mask: str, tiles: Any, start: int) -> None:
    work = work_for(tiles, mask=STATIC[mask], query_positions=start)
    found = keys_to_bound(work)
    if work.reads_once:
        assert found is None
        return
    problem = make_problem(*(jnp.ones((1, 1, length, 3)) for length in (QUERIES, KEYS, KEYS)), query_positions=start)
    visible = np.ones((1, 1)) if STATIC[mask] is None else np.asarray(STATIC[mask].visible(problem.pairs()))
    np.testing.assert_array_equal(found, np.broadcast_to(visible, (QUERIES, KEYS)).any(axis=0))


@pytest.mark.parametrize(
    "call",
    [
        {"mask": masks.key_lengths(jnp.asarray([5]))},
        {"mask": masks.causal(), "query_positions": jnp.asarray(3)},
        {"mask": masks.rule(lambda batch, head, query, key: key <= query)},
        {"bias": jnp.ones((QUERIES, KEYS))},
        {"sinks": jnp.ones(2)},
    ],
    ids=["lengths", "positions", "rule", "bias", "sinks"],
)
def test_what_has_no_bound(call: dict[str, Any]) -> None:
    assert keys_to_bound(work_for(**call)) is None


@jax.tree_util.register_static
@dataclass(frozen=True, eq=False, repr=False)
class AskingJax(masks.Mask):
    """A caller's own class, which computes with JAX whatever library it is asked in."""

    def visible(self, pairs: Any) -> Any:
        return jnp.less_equal(pairs.key_position, pairs.query_position)


@pytest.mark.parametrize("mask", [AskingJax(), AskingJax() & masks.prefix(KEYS)], ids=repr)
def test_a_class_of_the_callers_own_is_not_asked_while_tracing(mask: Any) -> None:
    query, key, value = (jnp.asarray(np.random.default_rng(2).normal(size=(n, 3))) for n in (QUERIES, KEYS, KEYS))
    assert keys_to_bound(work_for(mask=mask)) is None
    scores = np.asarray(query, np.float64) @ np.asarray(key, np.float64).T / 3**0.5
    weights = np.where(np.tri(QUERIES, KEYS, dtype=bool), np.exp(scores), 0)
    expected = weights @ np.asarray(value, np.float64) / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(
        dot_product_attention(query, key, value, mask=mask, impl="tiled"), expected, rtol=1e-5, atol=1e-5
    )


def test_without_a_mask_no_tile_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention_jax.bounded._seen_whole", None)  # of a million keys there would be four million
    np.testing.assert_array_equal(keys_to_bound(work_for((4, 4))), np.ones(KEYS, bool))


def test_a_mask_of_many_mixed_tiles_is_not_asked_for_all_of_them() -> None:
    def asked(mask: Any) -> bool:
        return keys_to_bound(work_for((4, 4), queries=200, keys=200, mask=mask)) is not None

    assert asked(masks.dilated(4))  # of 50 tiles of keys, each is seen by the first strip
    assert not asked(masks.dilated(7))  # and here by the second


def said(query: Any, key: Any, value: Any, **call: Any) -> tuple[bool, bool]:
    problem = make_problem(*(jnp.asarray(x, jnp.float32)[None, None] for x in (query, key, value)), **call)
    work = work_of(spec_of(problem, *SMALL), operands_of(problem))
    seen = keys_to_bound(work)
    assert seen is not None
    bounded, sound = bounds(work, seen, *(x[0] for x in flatten(work)))
    return bool(bounded), bool(sound)


def test_when_scores_are_bounded() -> None:
    x, ones = np.full((5, 4), 2.0), np.ones((5, 3))
    assert said(x, x, ones, scale=1.0) == (True, True)  # 16 * log2(e) = 23
    assert said(x, -x, ones, scale=2.5) == (True, True)  # 58
    assert said(x, -x, ones, scale=-2.7) == (False, True)  # 62
    assert said(x, x, ones, scale=100.0, softcap=40.0) == (True, True)
    assert said(x, x, ones * 1e30, scale=1.0) == (False, True)  # 2^23 * 1e30 * 5 keys: too near the largest float32
    assert said(x, x, ones * 1e-28, scale=1.0) == (False, True)  # 2^-23 * 1e-28: digits would be lost
    assert said(x, x, ones * [1, 0, 1], scale=1.0) == (True, True)
    assert said(x, x, ones * [1, 1e-28, 1], scale=1.0) == (False, True)
    assert said(x, x, ones * 0, scale=1.0) == (True, True)
    assert said(x, x, ones * np.asarray([1, 1, 1e-28, 1, 1])[:, None], scale=1.0) == (False, True)  # a row's, perhaps


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", range(3))
def test_what_is_not_finite_has_no_bound(where: int, bad: float) -> None:
    given = [np.ones((5, 4)) for _ in range(3)]
    given[where][3, 1] = bad
    assert said(*given) == (False, False)
    hidden = masks.sliding_window(1, 0)
    given = [np.ones((length, 4)) for length in (5, 9, 9)]
    given[where][-1, 1] = bad
    assert said(*given, mask=hidden) == ((False, False) if where == 0 else (True, True))


def test_squares_that_overflow_are_not_taken_for_finite() -> None:
    huge, ones = np.full((5, 4), 1e25), np.ones((5, 4))
    assert said(huge, ones, ones) == said(ones, huge, ones) == (False, False)


def test_squares_that_vanish_are_not_taken_for_nothing() -> None:
    tiny, ones = np.full((5, 4), 1e-22), np.ones((5, 4))
    for given in ((tiny, ones, ones), (ones, tiny, ones)):
        assert said(*given, scale=1e24) == (False, True)  # 400
        assert said(*given, scale=1.0) == (True, True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_keys_that_nobody_sees_change_no_bit(bad: float) -> None:
    rng = np.random.default_rng(1)
    query, key, value = (rng.normal(size=(2, length, 8)).astype(np.float32) for length in (30, 50, 50))
    key[:, 40:], value[:, 40:] = 0, 0
    mask = masks.sliding_window(None, 9)  # of 30 queries the last sees 39 keys

    def attend(key: Any, value: Any) -> Any:
        return dot_product_attention(*map(jnp.asarray, (query, key, value)), mask=mask, impl="tiled", return_lse=True)

    clean = attend(key, value)
    key[:, 40:], value[:, 40:] = bad, bad
    for ours, expected in zip(attend(key, value)[:2], clean[:2], strict=True):
        np.testing.assert_array_equal(ours, expected)
