"""Random problems of every kind, small enough for small tiles, and the dense definition to hold the kernel to."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from attention_core import biases, dropout, masks
from attention_core.dense import dense_attention
from attention_core.gradient import dense_vjp
from attention_core.problem import Gradients, Problem, Result, make_problem
from attention_np import gemm
from attention_np.plan import TileShape


class Sizes(NamedTuple):
    """The sizes of a random call."""

    batch: int
    group: int
    kv_heads: int
    queries: int
    keys: int
    depth: int
    value_depth: int

    @property
    def heads(self) -> int:
        return self.group * self.kv_heads


Rng = np.random.Generator
Make = Callable[[Rng, Sizes], Any]


def _segments(rng: Rng, s: Sizes) -> masks.Mask:
    ids = (np.sort(rng.integers(-1, 3, (s.batch, length))) for length in (s.queries, s.keys))
    return masks.segments(*ids)


def _scattered(rng: Rng, s: Sizes) -> masks.Mask:
    return masks.segments(rng.integers(-1, 3, s.queries), rng.integers(-1, 3, s.keys))


MASKS: dict[str, Make] = {
    "none": lambda rng, s: None,
    "causal": lambda rng, s: masks.causal(),
    "window": lambda rng, s: masks.sliding_window(5, 0),
    "two-sided": lambda rng, s: masks.sliding_window(3, 4),
    "key lengths": lambda rng, s: masks.key_lengths(rng.integers(0, s.keys + 1, s.batch)),
    "query lengths": lambda rng, s: masks.query_lengths(rng.integers(0, s.queries + 1, s.batch)),
    "prefix": lambda rng, s: masks.prefix(3) | masks.causal(),
    "chunked": lambda rng, s: masks.chunked(7) & masks.causal(),
    "dilated": lambda rng, s: masks.dilated(3),
    "global": lambda rng, s: masks.global_tokens(2) | masks.sliding_window(2, 2),
    "segments": _segments,
    "scattered segments": _scattered,
    "dense": lambda rng, s: masks.dense(rng.random((s.batch, 1, s.queries, s.keys)) < 0.5),
    "dense by head": lambda rng, s: masks.dense(rng.random((s.heads, s.queries, s.keys)) < 0.3),
    "dense rows": lambda rng, s: masks.dense(rng.random((s.queries, 1)) < 0.7),
    "rule": lambda rng, s: masks.rule(lambda batch, head, i, j: (i + j + head + batch) % 3 > 0),
    "not": lambda rng, s: ~masks.causal(),
}


def _with_holes(rng: Rng, s: Sizes) -> Any:
    values = rng.standard_normal((s.heads, s.queries, s.keys))
    values[rng.random(values.shape) < 0.2] = -np.inf
    return values


def _sloped(batch: Any, head: Any, i: Any, j: Any, weights: Any) -> Any:
    return weights[head] * (i - j) * 0.1 + batch * 0.1


def _sloped_vjp(batch: Any, head: Any, i: Any, j: Any, weights: Any, cotangent: Any) -> tuple[Any, ...]:
    terms = cotangent * (i - j) * 0.1
    return (np.array([(terms * (head == each)).sum() for each in range(len(weights))]),)


BIASES: dict[str, Make] = {
    "none": lambda rng, s: None,
    "alibi": lambda rng, s: biases.alibi(s.heads),
    "alibi slopes": lambda rng, s: biases.alibi(rng.random(s.heads).astype(np.float32)),
    "dense": lambda rng, s: 3 * rng.standard_normal((s.queries, s.keys)),
    "holes": _with_holes,
    "column": lambda rng, s: np.where(rng.random((1, s.keys)) < 0.3, -np.finfo(np.float32).max, 0).astype(np.float32),
    "relative": lambda rng, s: biases.relative(rng.standard_normal((8, s.heads)), max_distance=9),
    "sum": lambda rng, s: biases.alibi(s.heads) + biases.dense(rng.standard_normal((1, s.keys))),
    "rule": lambda rng, s: biases.rule(_sloped, rng.standard_normal(s.heads), vjp=_sloped_vjp),
}


def choose(name: str, patch: pytest.MonkeyPatch) -> None:
    """Let the kernel compute by a provider, or skip the test where it is not installed."""
    if name != "numpy" and not gemm.has(name):
        pytest.skip(f"{name} is not installed; `pip install {name}` brings it")
    patch.setitem(gemm._CHOSEN, "name", name)


class Case(NamedTuple):
    """A problem, and the tiles to cut it into."""

    problem: Problem
    shape: TileShape
    few: bool


def random_sizes(rng: Rng) -> Sizes:
    batch, kv_heads = rng.integers(1, 3, 2)
    queries, keys = rng.integers(1, 40, 2)
    depth, value_depth = rng.integers(0, 9, 2)
    return Sizes(*map(int, (batch, rng.choice([1, 1, 2, 3]), kv_heads, queries, keys, depth, value_depth)))


def random_case(rng: Rng, mask: str, bias: str, dtype: str, *, scale: float = 1.0, poison: bool = False) -> Case:
    """Return a random problem: grouped heads, ragged sizes, and every other feature now and then."""
    s = random_sizes(rng)
    query = scale * rng.standard_normal((s.batch, s.heads, s.queries, s.depth))
    key = rng.standard_normal((rng.choice([1, s.batch]), s.kv_heads, s.keys, s.depth))
    value = rng.standard_normal((s.batch, s.kv_heads, s.keys, s.value_depth))
    if poison:
        for x in (key, value):
            x[0, rng.integers(s.kv_heads), rng.integers(s.keys)] = rng.choice([np.nan, np.inf, -np.inf])
    call: dict[str, Any] = {"mask": MASKS[mask](rng, s), "bias": BIASES[bias](rng, s)}
    if rng.random() < 0.3 and not poison:
        call["softcap"] = float(rng.choice([2.0, 30.0, 300.0]))
    if rng.random() < 0.3:
        call["sinks"] = rng.choice([0.0, -np.inf, 3.0] if poison else [0.0, -np.inf, 3.0, 1000.0, -1000.0], s.heads)
    if rng.random() < 0.3:
        call["dropout"] = dropout(0.3, keep=rng.random((s.batch, s.heads, s.queries, s.keys)) < 0.7)
    if rng.random() < 0.3:
        call["query_positions"] = int(rng.integers(-3, 9))
    problem = make_problem(*(x.astype(dtype) for x in (query, key, value)), **call)
    return Case(problem, TileShape(*map(int, rng.integers(1, 12, 3))), bool(rng.random() < 0.3))


def defined(problem: Problem) -> Result:
    """Return what the dense definition gives."""
    with np.errstate(all="ignore"):
        return dense_attention(problem, lse=True, weights=False)


def defined_gradients(problem: Problem, dout: Any, dlse: Any) -> Gradients:
    """Return the gradients that the dense definition gives."""
    with np.errstate(all="ignore"):
        return dense_vjp(problem, dout, dlse)


TOLERANCE = {"float16": 2e-3, "float32": 4e-5, "float64": 1e-11}


def assert_like(got: Any, expected: Any, dtype: Any, scale: float = 1.0) -> None:
    """Finite where the expected is, equal where it is infinite, and within the dtype's rounding elsewhere."""
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
    lost = np.isinf(expected)
    np.testing.assert_array_equal(got[lost], expected[lost])
    finite = np.isfinite(expected)
    limit = scale * max(TOLERANCE[np.dtype(dtype).name], 1e-6 if expected.dtype == np.float32 else 0)
    np.testing.assert_allclose(got[finite], expected[finite], rtol=0, atol=limit * (1 + _largest(expected[finite])))


def _largest(x: Any) -> float:
    return float(np.abs(x).max(initial=0))
