"""Additive attention beside loops over Python numbers: values, weights, gradients."""

from math import tanh
from typing import Any

import numpy as np
import pytest

from attention_core import masks
from attention_core.variants import AdditiveAttention

from .plain import dot, drawn, every_library, made, mix, moved, softmax, times, traced
from .samples import Library

ADDITIVE = {"d_query": 3, "d_key": 4, "d_hidden": 5}


def additive_by_loops(layer: Any, query: np.ndarray, key: np.ndarray, value: np.ndarray, seen: Any) -> np.ndarray:
    out = []
    for i, q in enumerate(query):
        keys = [j for j in range(len(key)) if seen[i][j]]
        asked, (scorer,) = times(layer.W_q.weight, q), layer.w_v.weight
        scores = [
            dot(list(scorer), [tanh(a + b) for a, b in zip(asked, times(layer.W_k.weight, key[j]), strict=True)])
            for j in keys
        ]
        out.append(mix(softmax(scores), value[keys].tolist()) if keys else [0.0] * value.shape[1])
    return np.array(out)


@every_library
def test_additive_attention_by_loops(library: Library) -> None:
    layer = made(AdditiveAttention, **ADDITIVE)
    query, key, value = drawn(2, 3, 3), drawn(2, 6, 4), drawn(2, 6, 7)
    seen = drawn(3, 6) > -0.5
    seen[1] = False
    with library.precision("float64"):
        given = [library.put(x) for x in (query, key, value)]
        mask = masks.dense(library.put(seen))
        call = traced(library, lambda layer, mask, *given: layer(*given, mask=mask))
        out = library.get(call(moved(layer, library), mask, *given))
    for item in range(2):
        wanted = additive_by_loops(layer, query[item], key[item], value[item], seen)
        np.testing.assert_allclose(out[item], wanted, rtol=1e-11, atol=1e-12)


def test_additive_attention_has_weights_and_takes_a_mask_an_item() -> None:
    layer = made(AdditiveAttention, **ADDITIVE)
    query, key = drawn(2, 3, 3), drawn(2, 6, 4)
    lengths = np.array([4, 6])
    result = layer(query, key, mask=masks.key_lengths(lengths), return_weights=True)
    assert result.weights.shape == (2, 3, 6)
    assert np.all(result.weights[0, :, 4:] == 0)
    np.testing.assert_allclose(result.weights @ key, result.out, rtol=1e-12)
    np.testing.assert_allclose(layer(query[0], key[0, :4]), result.out[0], rtol=1e-12)
    halved = layer(query, key, bias=np.where(np.arange(6) < 3, -np.inf, 0.0))
    np.testing.assert_allclose(halved, layer(query, key[:, 3:]), rtol=1e-12)


def test_additive_attention_differentiates_in_jax() -> None:
    """By finite differences of the loops, through the softmax whose scores are its bias."""
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax  # noqa: F401  makes layers pytrees

    layer = made(AdditiveAttention, **ADDITIVE)
    query, key, value, cotangent = drawn(3, 3), drawn(4, 4), drawn(4, 2), drawn(3, 2)
    open_ = np.ones((3, 4), bool)

    def by_loops(weight: np.ndarray) -> float:
        changed = AdditiveAttention.from_state_dict({**layer.state_dict(), "W_q.weight": weight})
        return float((additive_by_loops(changed, query, key, value, open_) * cotangent).sum())

    with jax.enable_x64(True):
        in_jax = jax.tree.map(jax.numpy.asarray, layer)
        loss = jax.jit(jax.grad(lambda layer: (layer(query, key, value) * cotangent).sum()))
        gradient = np.asarray(loss(in_jax).W_q.weight)
    weight = layer.W_q.weight
    for index in np.ndindex(2, 3):
        step = np.zeros_like(weight)
        step[index] = 1e-5
        wanted = (by_loops(weight + step) - by_loops(weight - step)) / 2e-5
        assert gradient[index] == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_keys_that_do_not_go_with_the_query_say_so() -> None:
    layer = made(AdditiveAttention, **ADDITIVE)
    query, key = drawn(2, 3, 3), drawn(2, 6, 4)
    with pytest.raises(ValueError, match=r"of query and key must broadcast together; got `query` \(2,\), `key` \(3,\)"):
        layer(query, drawn(3, 6, 4))
    prepared = layer.keys_values(key)
    for wrong in (prepared.keys[..., :4], np.repeat(prepared.keys, 2, axis=-3), prepared.keys[0, 0]):
        with pytest.raises(ValueError, match=r"those of this layer are \(..., 1, L_2, 5\)"):
            layer(query, prepared._replace(keys=wrong))
