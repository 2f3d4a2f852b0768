"""Gradients and tangents small enough to be computed by hand, and what NaN must not touch.

Every test takes the package as ``core``, as in ``test_hand_sized``: the mutants are held against the same tests.
"""

from math import inf, log
from types import ModuleType

import numpy as np

from .test_hand_sized import ONE, close

# Gradients: two keys of weights 1/4 and 3/4 (scores 0 and log 3), values 0 and 1, so out = 3/4

QUARTERS = ONE, np.array([[0.0], [log(3)]]), np.array([[0.0], [1.0]])


def test_gradient_of_out(core: ModuleType) -> None:
    _, pullback = core.vjp(*QUARTERS, scale=1.0, bias=np.zeros((1, 2)))
    gradients = pullback(np.array([[1.0]]))
    close(gradients.value, [[1 / 4], [3 / 4]])
    close(gradients.bias, [[-3 / 16, 3 / 16]])
    close(gradients.key, [[-3 / 16], [3 / 16]])
    close(gradients.query, [[3 / 16 * log(3)]])


def test_gradient_of_lse(core: ModuleType) -> None:
    _, pullback = core.vjp(*QUARTERS, scale=1.0, bias=np.zeros((1, 2)))
    gradients = pullback(np.array([[0.0]]), np.array([1.0]))
    close(gradients.value, [[0], [0]])
    close(gradients.bias, [[1 / 4, 3 / 4]])
    close(gradients.query, [[3 / 4 * log(3)]])


def test_gradient_is_scaled(core: ModuleType) -> None:
    query, key, value = QUARTERS
    _, pullback = core.vjp(query, key / 2, value, scale=2.0, bias=np.zeros((1, 2)))
    gradients = pullback(np.array([[1.0]]))
    close(gradients.bias, [[-3 / 16, 3 / 16]])
    close(gradients.key, [[-3 / 8], [3 / 8]])
    close(gradients.query, [[3 / 16 * log(3)]])


def test_gradient_of_a_bias_is_summed_where_it_was_broadcast(core: ModuleType) -> None:
    query, key, value = QUARTERS
    _, pullback = core.vjp(np.tile(query, (5, 1)), key, value, scale=1.0, bias=np.zeros(2))
    close(pullback(np.ones((5, 1))).bias, [-15 / 16, 15 / 16])


def test_gradient_of_a_sink(core: ModuleType) -> None:
    _, pullback = core.vjp(*QUARTERS, scale=1.0, sinks=np.array([log(4)]))  # weights 1/8, 3/8, sink 1/2; out 3/8
    close(pullback(np.array([[1.0]])).sinks, [-3 / 16])
    close(pullback(np.array([[0.0]]), np.array([1.0])).sinks, [1 / 2])


def test_gradient_through_the_softcap(core: ModuleType) -> None:
    query, value = ONE, np.array([[0.0], [1.0]])
    key, bias = np.array([[0.0], [2 * log(2)]]), np.array([[0.0, log(3) - 1.2]])  # capped 1.2, slope 1 - 0.6^2
    _, pullback = core.vjp(query, key, value, scale=1.0, softcap=2.0, bias=bias)
    gradients = pullback(np.array([[1.0]]))
    close(gradients.bias, [[-3 / 16, 3 / 16]])
    close(gradients.key, [[-3 / 16], [3 / 16 * 0.64]])


def test_gradient_through_dropout(core: ModuleType) -> None:
    dropout = core.dropout(0.5, keep=np.array([False, True]))  # out = 2 * 3/4
    _, pullback = core.vjp(*QUARTERS, scale=1.0, bias=np.zeros((1, 2)), dropout=dropout)
    gradients = pullback(np.array([[1.0]]))
    close(gradients.value, [[0], [3 / 2]])
    close(gradients.bias, [[-3 / 8, 3 / 8]])


def test_gradient_of_a_row_that_sees_nothing(core: ModuleType) -> None:
    query, key, value = QUARTERS
    mask, sinks = np.array([[True, True], [False, False]]), np.array([-inf])
    dout, dlse = np.array([[1.0], [np.nan]]), np.array([0.0, np.nan])
    _, pullback = core.vjp(np.tile(query, (2, 1)), key, value, scale=1.0, mask=mask, bias=np.zeros((2, 2)), sinks=sinks)
    gradients = pullback(dout, dlse)
    close(gradients.query, [[3 / 16 * log(3)], [0]])
    close(gradients.key, [[-3 / 16], [3 / 16]])
    close(gradients.value, [[1 / 4], [3 / 4]])
    close(gradients.bias, [[-3 / 16, 3 / 16], [0, 0]])
    close(gradients.sinks, [0])


def test_gradient_of_an_array_broadcast_over_the_batch(core: ModuleType) -> None:
    query, key, value = (x[None, None] for x in QUARTERS)
    value = np.concatenate([value, 2 * value, 5 * value])
    result, pullback = core.vjp(query, key, value, scale=1.0)
    assert result.lse.shape == (3, 1, 1)
    close(pullback(np.ones((3, 1, 1, 1))).query, 8 * 3 / 16 * log(3) * np.ones((1, 1, 1, 1)))
    close(pullback(np.zeros((3, 1, 1, 1)), np.ones((3, 1, 1))).query, 3 * 3 / 4 * log(3) * np.ones((1, 1, 1, 1)))


def test_masked_nan_is_as_zero(core: ModuleType) -> None:
    key, value = np.array([[0.0], [log(3)], [np.nan]]), np.array([[0.0], [1.0], [np.inf]])
    _, pullback = core.vjp(
        ONE, key, value, scale=1.0, softcap=1e9, mask=core.masks.key_lengths(2), bias=np.zeros((1, 3))
    )
    result = core.dot_product_attention(ONE, key, value, scale=1.0, mask=core.masks.key_lengths(2), return_lse=True)
    close(result.out, [[3 / 4]])
    close(result.lse, [log(4)])
    gradients = pullback(np.array([[1.0]]), np.array([0.0]))
    close(gradients.query, [[3 / 16 * log(3)]])
    close(gradients.key, [[-3 / 16], [3 / 16], [0]])
    close(gradients.value, [[1 / 4], [3 / 4], [0]])
    close(gradients.bias, [[-3 / 16, 3 / 16, 0]])


def test_nan_under_a_bias_of_minus_infinity_is_as_zero(core: ModuleType) -> None:
    key, value = np.array([[0.0], [log(3)], [np.nan]]), np.array([[0.0], [1.0], [np.nan]])
    bias = np.array([[0.0, 0.0, -inf]])
    out, lse, _ = core.dot_product_attention(ONE, key, value, scale=1.0, bias=bias, return_lse=True)
    close(out, [[3 / 4]])
    close(lse, [log(4)])


def test_a_visible_nan_spoils_its_rows_only(core: ModuleType) -> None:
    query, key, value = (np.concatenate([x, x[:1]]) for x in QUARTERS)
    spoiled = key.copy()
    spoiled[1] = np.nan
    result = core.dot_product_attention(query, spoiled, value, scale=1.0, mask=core.masks.causal(), return_lse=True)
    close(result.out[0], value[0])
    close(result.lse[0], 0)
    assert np.isnan(result.out[1]).all()
    assert np.isnan(result.lse[1])


def test_tangents(core: ModuleType) -> None:
    query, key, value = QUARTERS
    call = {"scale": 1.0, "sinks": np.array([log(4)]), "bias": np.zeros((1, 2))}  # weights 1/8, 3/8, sink 1/2
    none = core.Gradients(None, None, None)
    directions = {
        "query": (np.array([[1.0]]), 3 / 8 * log(3), 5 / 8 * 3 / 8 * log(3)),
        "key": (np.array([[0.0], [1.0]]), 3 / 8, 5 / 8 * 3 / 8),
        "value": (np.array([[8.0], [1.0]]), 0, 1 + 3 / 8),
        "bias": (np.array([[0.0, 1.0]]), 3 / 8, 5 / 8 * 3 / 8),
        "sinks": (np.array([1.0]), 1 / 2, -1 / 2 * 3 / 8),
    }
    for name, (direction, dlse, dout) in directions.items():
        _, moved = core.jvp(query, key, value, none._replace(**{name: direction}), **call)
        close(moved.out, [[dout]])
        close(moved.lse, [dlse])
