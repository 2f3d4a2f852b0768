"""One call on every library: the same numbers, the caller's own arrays back, inputs of any memory left as they were."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attention_core.arrays import array_namespace, library_name
from attention_np import Gradients, attention_scores, biases, dot_product_attention, dropout, jvp, masks, merge, vjp
from tests.core.libraries import EACH, EACH_ONCE, MODULES, Library

B, HQ, HKV, LQ, LK, D, DV = 3, 4, 2, 5, 6, 7, 8
RNG = np.random.default_rng(0)
Q, K, V = (RNG.normal(size=(B, *s)).astype(np.float32) for s in ((HQ, LQ, D), (HKV, LK, D), (HKV, LK, DV)))
HELD = {
    "lengths": np.array([6, 0, 4]),
    "ids": np.array([0, 0, 1, 1, -1, 2]),
    "seen": RNG.random((LQ, LK)) < 0.8,
    "bias": RNG.normal(size=(HQ, 1, LK)).astype(np.float32),
    "table": RNG.normal(size=(8, HQ)).astype(np.float32),
    "sinks": RNG.normal(size=HQ).astype(np.float32),
    "keep": RNG.random((B, 1, LQ, LK)) < 0.75,
    "positions": np.array([3, 0, 5, 1, 2]),
}


def everything(held: dict[str, Any]) -> dict[str, Any]:
    """A call that uses every argument, and every mask and bias that holds an array."""
    ids = masks.segments(held["ids"][:LQ], held["ids"])
    return {
        "mask": masks.key_lengths(held["lengths"]) & (ids | masks.causal()) & held["seen"] | masks.prefix(1),
        "bias": biases.relative(held["table"], max_distance=4) + biases.alibi(HQ) + held["bias"],
        "sinks": held["sinks"],
        "dropout": dropout(0.25, keep=held["keep"]),
        "query_positions": held["positions"],
        "softcap": 3.0,
        "scale": 0.5,
    }


def forward(q: Any, k: Any, v: Any, held: dict[str, Any]) -> Any:
    return tuple(dot_product_attention(q, k, v, return_lse=True, return_weights=True, **everything(held)))


def backward(q: Any, k: Any, v: Any, held: dict[str, Any]) -> Any:
    result, pullback = vjp(q, k, v, **everything(held))
    found = pullback(result.out, result.lse)
    return (*found[:3], found.sinks, found.bias.left.left.table, found.bias.right.array)


def tangents(q: Any, k: Any, v: Any, held: dict[str, Any]) -> Any:
    result, moved = jvp(q, k, v, Gradients(q, k, v, sinks=held["sinks"]), **everything(held))
    return (*result[:2], *moved[:2])


def scores(q: Any, k: Any, v: Any, held: dict[str, Any]) -> Any:
    call = everything(held)
    del call["sinks"], call["dropout"]
    return (attention_scores(q, k, **call),)


def merged(q: Any, k: Any, v: Any, held: dict[str, Any]) -> Any:
    parts = [dot_product_attention(q, k[..., s, :], v[..., s, :], return_lse=True) for s in (slice(0, 2), slice(2, 6))]
    return merge([part.out for part in parts], [part.lse for part in parts])


CALLS: dict[str, Callable[..., Any]] = {
    "forward": forward,
    "backward": backward,
    "tangents": tangents,
    "scores": scores,
    "merge": merged,
}


def run(library: Library, fn: Callable[..., Any]) -> list[np.ndarray]:
    def of_arrays(q: Any, k: Any, v: Any, *held: Any) -> Any:
        return fn(q, k, v, dict(zip(HELD, held, strict=True)))

    return [library.numpy(x) for x in library.call(of_arrays, Q, K, V, *HELD.values())]


@pytest.mark.parametrize("name", CALLS)
@EACH_ONCE
def test_same_numbers(library: Library, name: str) -> None:
    double = {n: x.astype(np.float64) if x.dtype == np.float32 else x for n, x in HELD.items()}
    expected = CALLS[name](*(x.astype(np.float64) for x in (Q, K, V)), double)
    for got, right in zip(run(library, CALLS[name]), expected, strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, right, rtol=2e-4, atol=2e-5)


@EACH
def test_arrays_of_the_callers_library_come_back(library: Library) -> None:
    held = {name: library.to(x) for name, x in HELD.items()}
    arrays = *map(library.to, (Q, K, V)), held
    for fn in (forward, backward):
        for x, right in zip(fn(*arrays), fn(Q, K, V, HELD), strict=True):
            np.testing.assert_allclose(library.numpy(x), right, rtol=2e-4, atol=2e-5)
            assert library_name(array_namespace(("out", x))) == library.name
    assert MODULES[library.name] in sys.modules


@EACH
def test_inputs_are_left_as_they_were(library: Library) -> None:
    held = {name: library.to(x) for name, x in HELD.items()}
    arrays = *map(library.to, (Q, K, V)), held
    forward(*arrays), backward(*arrays)
    for ours, before in zip((*arrays[:3], *held.values()), (Q, K, V, *HELD.values()), strict=True):
        np.testing.assert_array_equal(library.numpy(ours), before)


@pytest.mark.torch
def test_torch_does_not_record_what_is_not_asked() -> None:
    import torch

    q, k, v = (torch.asarray(x.copy()).requires_grad_() for x in (Q, K, V))
    out = dot_product_attention(q, k, v, mask=masks.causal())
    out.sum().backward()
    expected = vjp(Q, K, V, mask=masks.causal())[1](np.ones_like(out.detach().numpy()))
    for ours, right in zip((q.grad, k.grad, v.grad), expected[:3], strict=True):
        np.testing.assert_allclose(ours.numpy(), right, rtol=1e-4, atol=1e-5)


# NumPy's memory: strided, broadcast, read-only, backwards, of another byte order or order of axes


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


MEMORY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "backwards": lambda x: x[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "columns first": np.asfortranarray,
    "swapped axes": lambda x: np.swapaxes(np.swapaxes(x, -1, -2).copy(), -1, -2),
    "read-only": read_only,
    "unaligned": lambda x: np.frombuffer(b"." + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "a subclass's view": lambda x: x.view(np.ndarray),
}


@pytest.mark.parametrize("memory", MEMORY)
def test_memory_of_any_kind(memory: str) -> None:
    arrange = MEMORY[memory]
    held = {name: arrange(x) if x.ndim > 1 or memory == "read-only" else x for name, x in HELD.items()}
    for fn in (forward, backward):
        for got, expected in zip(fn(*map(arrange, (Q, K, V)), held), fn(Q, K, V, HELD), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_broadcast_views_cost_nothing_and_are_read() -> None:
    key, value = (np.broadcast_to(x[:1], (B, *x.shape[1:])) for x in (K, V))
    np.testing.assert_allclose(
        dot_product_attention(Q, key, value), dot_product_attention(Q, key.copy(), value.copy()), rtol=1e-6
    )


@pytest.mark.parametrize("dtypes", [("f2", "f4", "f8"), ("f8", "f4", "f4"), ("f2", "f2", "f2"), ("f4", "f2", "f2")])
def test_dtypes_of_results(dtypes: tuple[str, str, str]) -> None:
    arrays = [x.astype(dtype) for x, dtype in zip((Q, K, V), dtypes, strict=True)]
    result = dot_product_attention(*arrays, return_lse=True, return_weights=True)
    assert result.out.dtype == np.result_type(*arrays)
    assert result.lse.dtype == result.weights.dtype == np.result_type(*arrays, np.float32)
    found = vjp(*arrays)[1](result.out, result.lse)
    assert [x.dtype for x in found[:3]] == [x.dtype for x in arrays]
