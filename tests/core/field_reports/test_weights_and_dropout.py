"""The weights a call returns, and dropout as a value of the call."""

import numpy as np
import pytest

from attention_np import dot_product_attention, dropout, masks
from tests.core.field_reports import plain
from tests.core.field_reports.libraries import assert_same, attention, on_every_library, spread

RATE = 0.4


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return spread(2, 3, 4), spread(2, 5, 4), spread(2, 5, 7)


def keep() -> np.ndarray:
    return np.random.default_rng(5).random((2, 3, 5)) >= RATE


@on_every_library
def test_returned_weights_are_those_before_dropout(library: str) -> None:
    q, k, v = problem()
    answer, expected = attention(library, q, k, v, dropout=dropout(RATE, keep=keep())), plain.attention(q, k, v)
    assert_same(answer.weights, expected.weights)
    assert_same(answer.weights.sum(-1), np.ones((2, 3)))
    assert_same(answer.lse, expected.lse)
    assert_same(answer.out, np.where(keep(), expected.weights / (1 - RATE), 0) @ v)


def test_weights_are_those_of_every_head_not_their_mean() -> None:
    q, k, v = problem()
    weights = dot_product_attention(q, k, v, return_weights=True).weights
    expected = plain.attention(q, k, v).weights
    assert_same(weights, expected)
    assert not np.allclose(weights[0], expected.mean(0))
    two = np.log([[[0.9, 0.1]], [[0.2, 0.8]]])
    x = np.zeros((2, 2, 1))
    both = dot_product_attention(x[:, :1], x, x, bias=two, return_weights=True).weights
    assert_same(both, [[[0.9, 0.1]], [[0.2, 0.8]]])


def test_asking_for_weights_changes_nothing() -> None:
    q, k, v = problem()
    call = {"mask": masks.causal(), "dropout": dropout(RATE, keep=keep())}
    asked = dot_product_attention(q, k, v, **call, return_weights=True)
    assert np.array_equal(asked.out, dot_product_attention(q, k, v, **call))


def test_nothing_is_random_but_what_the_caller_gives() -> None:
    """No hidden generator and no mode: the same call gives the same bits, and without dropout there is none."""
    q, k, v = problem()
    for call in ({}, {"dropout": dropout(RATE, keep=keep())}, {"dropout": dropout(RATE, seed=3)}):
        assert np.array_equal(dot_product_attention(q, k, v, **call), dot_product_attention(q, k, v, **call))
    assert not np.allclose(
        dot_product_attention(q, k, v), dot_product_attention(q, k, v, dropout=dropout(RATE, keep=keep()))
    )
    with pytest.raises(ValueError, match="exactly one of `seed` and `keep`; got neither"):
        dropout(RATE)


def test_rate_zero_is_the_identity_to_the_bit() -> None:
    q, k, v = problem()
    for none in (dropout(0.0, keep=np.ones((2, 3, 5), dtype=bool)), dropout(0.0, seed=11)):
        assert np.array_equal(dot_product_attention(q, k, v, dropout=none), dot_product_attention(q, k, v))
