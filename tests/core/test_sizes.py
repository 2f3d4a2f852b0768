"""Every size may be 0: outputs, lse, weights and gradients keep their shapes, and sums over nothing are 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_np import (
    Gradients,
    attention_scores,
    biases,
    dot_product_attention,
    dropout,
    jvp,
    masks,
    merge,
    vjp,
)
from tests.core.libraries import JITTED, UNCOMPILED, Library

FULL = {"batch": (3,), "heads": 4, "kv_heads": 2, "queries": 5, "keys": 6, "depth": 7, "value_depth": 8}
EMPTY: dict[str, dict[str, Any]] = {
    "none": {},
    "queries": {"queries": 0},
    "keys": {"keys": 0},
    "batch": {"batch": (0,)},
    "inner batch": {"batch": (2, 0, 3)},
    "depth": {"depth": 0},
    "value depth": {"value_depth": 0},
    "both depths": {"depth": 0, "value_depth": 0},
    "heads": {"heads": 0, "kv_heads": 0},
    "query heads": {"heads": 0},
    "lengths": {"queries": 0, "keys": 0},
    "all": {"batch": (0,), "heads": 0, "kv_heads": 0, "queries": 0, "keys": 0, "depth": 0, "value_depth": 0},
}


def arrays(kind: str, dtype: Any = np.float32) -> tuple[dict[str, Any], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    s = {**FULL, **EMPTY[kind]}
    rng = np.random.default_rng(0)
    shapes = ("heads", "queries", "depth"), ("kv_heads", "keys", "depth"), ("kv_heads", "keys", "value_depth")
    q, k, v = (rng.normal(size=(*s["batch"], *(s[name] for name in shape))).astype(dtype) for shape in shapes)
    return s, (q, k, v)


def everything(s: dict[str, Any], sinks: Any) -> dict[str, Any]:
    """A mask, a bias and sinks of these sizes that compute with every index array."""
    mask = (masks.causal() | masks.prefix(2)) & masks.key_lengths(5) & ~masks.chunked(9) | masks.dilated(2)
    mask = mask & masks.rule(lambda b, h, i, j: b + h + i + j >= 0)
    return {"mask": mask, "bias": biases.alibi(s["heads"]), "sinks": sinks, "softcap": 3.0, "query_positions": 4}


@pytest.mark.parametrize("kind", ["queries", "keys", "batch", "depth", "value depth", "heads"])
def test_shapes_while_jax_traces(kind: str) -> None:
    pytest.importorskip("jax", reason="needs JAX: `pip install jax`")
    check_shapes(JITTED, kind, plain=False)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "masked"])
@pytest.mark.parametrize("kind", EMPTY)
@UNCOMPILED
def test_shapes_of_results_and_gradients(library: Library, kind: str, plain: bool) -> None:
    check_shapes(library, kind, plain)


def check_shapes(library: Library, kind: str, plain: bool) -> None:
    s, (q, k, v) = arrays(kind)
    scores = (*s["batch"], s["heads"], s["queries"], s["keys"])
    sinks = np.linspace(-1, 1, s["heads"]).astype(np.float32)
    dout, dlse = np.ones((*scores[:-1], s["value_depth"]), np.float32), np.ones(scores[:-1], np.float32)

    def compute(q: Any, k: Any, v: Any, sinks: Any, dout: Any, dlse: Any) -> Any:
        call = {} if plain else everything(s, sinks)
        result = dot_product_attention(q, k, v, return_lse=True, return_weights=True, **call)
        gradients = vjp(q, k, v, **call)[1](dout, dlse)
        return (*result, gradients.query, gradients.key, gradients.value, *([] if plain else [gradients.sinks]))

    found = [library.numpy(x) for x in library.call(compute, q, k, v, sinks, dout, dlse)]
    out, lse, weights, dq, dk, dv = found[:6]
    assert (out.shape, lse.shape, weights.shape) == (dout.shape, scores[:-1], scores)
    assert (dq.shape, dk.shape, dv.shape) == (q.shape, k.shape, v.shape)
    if not plain:
        assert found[6].shape == sinks.shape
    assert all(x.dtype == np.float32 for x in found)
    assert all(np.isfinite(x).all() for x in (out, weights, dq, dk, dv))
    if s["keys"] == 0:
        assert not out.any()
        expected = np.full_like(lse, -np.inf) if plain else np.broadcast_to(sinks[:, None], lse.shape)
        np.testing.assert_array_equal(lse, expected)
    if s["depth"] == 0 and plain:
        np.testing.assert_allclose(weights, np.full(scores, 1 / s["keys"]) if s["keys"] else weights)


@pytest.mark.parametrize("kind", EMPTY)
def test_other_calls_of_empty_sizes(kind: str) -> None:
    s, (q, k, v) = arrays(kind)
    scores = (*s["batch"], s["heads"], s["queries"], s["keys"])
    for stage in ("scaled", "capped", "biased", "masked"):
        assert attention_scores(q, k, stage=stage, bias=biases.alibi(s["heads"]), mask=masks.causal()).shape == scores  # type: ignore[arg-type]  # a word of the list
    result, moved = jvp(q, k, v, Gradients(q, k, v))
    assert moved.out.shape == result.out.shape == (*scores[:-1], s["value_depth"])
    assert moved.lse.shape == result.lse.shape == scores[:-1]
    out, lse = merge([result.out, result.out], [result.lse, result.lse])
    assert (out.shape, lse.shape) == (result.out.shape, result.lse.shape)
    dropped = dot_product_attention(q, k, v, dropout=dropout(0.5, keep=np.ones(scores, bool)))
    assert dropped.shape == result.out.shape


HELD = {
    "dense": lambda s: {"mask": np.ones((*s["batch"], s["heads"], s["queries"], s["keys"]), bool)},
    "lengths": lambda s: {"mask": masks.key_lengths(np.ones(s["batch"], int)) & masks.query_lengths(np.ones((), int))},
    "segments": lambda s: {
        "mask": masks.segments(np.zeros(s["queries"], int), np.zeros((*s["batch"], s["keys"]), int))
    },
    "bias": lambda s: {"bias": np.zeros((*s["batch"], 1, s["queries"], s["keys"]))},
    "slopes": lambda s: {"bias": biases.alibi(np.ones(s["heads"]))},
    "table": lambda s: {"bias": biases.relative(np.ones((32, s["heads"])))},
    "positions": lambda s: {
        "mask": masks.causal(),
        "query_positions": np.zeros(s["queries"], int),
        "key_positions": np.zeros((*s["batch"], s["keys"]), int),
    },
}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("kind", EMPTY)
def test_arrays_of_empty_sizes(kind: str, held: str) -> None:
    s, (q, k, v) = arrays(kind, np.float64)
    call = HELD[held](s)
    result, pullback = vjp(q, k, v, **call)
    gradients = pullback(np.ones_like(result.out), np.zeros_like(result.lse))
    assert gradients.query.shape == q.shape
    if "bias" in call:
        given, found = call["bias"], gradients.bias
        for x, slope in zip(*([y] if hasattr(y, "shape") else y.arrays() for y in (given, found)), strict=True):
            assert slope.shape == x.shape
            assert np.isfinite(slope).all()
    if "mask" in call and hasattr(call["mask"], "array"):
        mask, positions = call["mask"], {n: x for n, x in call.items() if n.endswith("positions")}
        shape = (*s["batch"], s["heads"], s["queries"], s["keys"])
        assert mask.array(s["queries"], s["keys"], heads=s["heads"], batch=s["batch"], **positions).shape == shape


def test_depth_0_has_scale_1_and_uniform_weights() -> None:
    _, (q, k, v) = arrays("depth", np.float64)
    result = dot_product_attention(q, k, v, return_lse=True)
    np.testing.assert_allclose(result.out, np.broadcast_to(v.mean(2, keepdims=True).repeat(2, 1), result.out.shape))
    np.testing.assert_allclose(result.lse, np.log(6))


def test_one_of_everything() -> None:
    x = np.array([[2.0]])
    result = dot_product_attention(x, x, x, return_lse=True, return_weights=True)
    assert (result.out.tolist(), result.lse.tolist(), result.weights.tolist()) == ([[2.0]], [4.0], [[1.0]])


def test_no_queries_of_a_causal_call_with_lower_right_positions() -> None:
    _, (_, k, v) = arrays("none")
    q = np.zeros((3, 4, 0, 7), np.float32)
    assert dot_product_attention(q, k, v, mask=masks.causal_lower_right()).shape == (3, 4, 0, 8)
