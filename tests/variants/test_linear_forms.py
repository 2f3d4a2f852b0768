"""Linear attention beside loops over Python numbers, and its three forms beside each other."""

from math import exp
from typing import Any

import numpy as np
import pytest

import attention_np
from attention_core.variants import LinearAttention

from .plain import LINEAR, dot, drawn, every_library, made, mix, moved, times
from .samples import Library


def linear_by_loops(layer: Any, x: np.ndarray, causal: bool, seen: Any = None) -> np.ndarray:
    def feature(row: list[float]) -> list[float]:
        return [a + 1 if a > 0 else exp(a) for a in row]

    q, k, v = ([times(part.weight, row, part.bias) for row in x] for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    out = []
    for i in range(len(x)):
        keys = [j for j in range(len(x)) if (j <= i or not causal) and (seen is None or seen[j])]
        heads: list[float] = []
        for h in range(2):
            at = slice(3 * h, 3 * h + 3)
            weights = [dot(feature(q[i][at]), feature(k[j][at])) for j in keys]
            rows = [v[j][at] for j in keys]
            heads += mix([w / sum(weights) for w in weights], rows) if keys else [0.0] * 3
        out.append(times(layer.out_proj.weight, heads, layer.out_proj.bias))
    return np.array(out)


@every_library
def test_linear_attention_by_loops(library: Library) -> None:
    x = drawn(11, 6)
    for causal in (True, False) if library.name != "jax-jit" else (True,):
        layer = made(LinearAttention, **LINEAR, causal=causal)
        with library.precision("float64"):
            out = library.get(library.call(moved(layer, library), library.put(x)))
        np.testing.assert_allclose(out, linear_by_loops(layer, x, causal), rtol=1e-11, atol=1e-12)


def test_linear_attention_without_padding_and_without_any_key() -> None:
    layer, x = made(LinearAttention, **LINEAR), drawn(5, 6)
    seen = np.array([False, True, True, False, True])
    out = layer(x, key_mask=seen, chunk=2)
    np.testing.assert_allclose(out, linear_by_loops(layer, x, True, seen), rtol=1e-11)
    np.testing.assert_array_equal(out[0], layer.out_proj.bias)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 11, 64])
def test_chunked_full_and_recurrent_forms_are_one(chunk: int) -> None:
    layer, x = made(LinearAttention, **LINEAR), drawn(2, 11, 6)
    whole, state = layer(x, form="full", return_state=True)
    out, after = layer(x, chunk=chunk, return_state=True)
    np.testing.assert_allclose(out, whole, rtol=1e-11)
    for split in (1, 4, 10):
        first, half = layer(x[:, :split], chunk=chunk, return_state=True)
        rest, last = layer(x[:, split:], state=half, chunk=chunk, return_state=True)
        np.testing.assert_allclose(np.concatenate([first, rest], axis=1), whole, rtol=1e-11)
        for mine, theirs in zip(last, state, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-11)
    for mine, theirs in zip(after, state, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-11)


def test_linear_attention_a_token_at_a_time_in_one_scan() -> None:
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax  # noqa: F401  makes layers pytrees

    layer = attention_np.init(LinearAttention, np.random.default_rng(2), **LINEAR)
    x = drawn(7, 6).astype(np.float32)
    wanted = layer(x)

    @jax.jit
    def decode(layer: Any, x: Any) -> Any:
        start = layer(x[:0], return_state=True).state

        def step(state: Any, token: Any) -> Any:
            out, state = layer(token[None], state=state, return_state=True)
            return state, out[0]

        return jax.lax.scan(step, start, x)[1]

    np.testing.assert_allclose(decode(layer, x), wanted, rtol=1e-4, atol=1e-5)
