"""The tiled kernel equals the dense definition: every mask and bias, dtype and ragged edge, in tiles of a few rows."""

import zlib
from typing import Any

import numpy as np
import pytest

from attention_core import biases, masks
from attention_core.problem import make_problem
from attention_np import dot_product_attention
from attention_np.call import Call
from attention_np.forward import tiled_forward
from attention_np.plan import TileShape

from .problems import BIASES, MASKS, Case, assert_like, defined, random_case


def rng_of(*names: Any) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(names).encode()))


def check(case: Case, scale: float = 1.0) -> None:
    expected = defined(case.problem)
    got = tiled_forward(case.problem, lse=True, shape=case.shape, few=case.few, threads=1)
    dtype = case.problem.out_dtype
    assert_like(got.out, expected.out, dtype, scale)
    assert_like(got.lse, expected.lse, "float32" if dtype == np.float16 else dtype, scale)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("mask", MASKS)
def test_every_mask(mask: str, dtype: str) -> None:
    rng = rng_of(mask, dtype)
    for bias in ("none", "none", "dense"):
        check(random_case(rng, mask, bias, dtype))


@pytest.mark.parametrize("bias", BIASES)
def test_every_bias(bias: str) -> None:
    rng = rng_of(bias)
    for mask in ("none", "causal", "dense", "two-sided", "rule", "dense by head"):
        check(random_case(rng, mask, bias, "float64"))
        check(random_case(rng, mask, bias, "float32"))


@pytest.mark.parametrize("mask", MASKS)
def test_large_scores_take_the_lazy_reference(mask: str) -> None:
    rng = rng_of(mask, "large")
    check(random_case(rng, mask, "none", "float64", scale=100.0), scale=100.0)
    check(random_case(rng, mask, "alibi", "float64", scale=1000.0), scale=1000.0)


@pytest.mark.parametrize("mask", MASKS)
def test_what_is_not_finite_poisons_its_rows_only(mask: str) -> None:
    rng = rng_of(mask, "poison")
    for bias in ("none", "none", "dense", "holes"):
        check(random_case(rng, mask, bias, "float32", poison=True))


@pytest.mark.parametrize("queries", range(1, 10))
@pytest.mark.parametrize("keys", [1, 3, 4, 5, 7, 8, 9])
def test_every_ragged_edge(queries: int, keys: int) -> None:
    rng = rng_of(queries, keys)
    q, k, v = (rng.standard_normal(shape) for shape in ((2, queries, 3), (2, keys, 3), (2, keys, 5)))
    for mask in (
        None,
        masks.causal(),
        masks.sliding_window(2, 1),
        masks.prefix(2),
        masks.rule(lambda b, h, i, j: i > j),
    ):
        check(Case(make_problem(q, k, v, mask=mask, query_positions=keys - queries), TileShape(4, 4, 2), few=False))


@pytest.mark.parametrize("impl", ["auto", "tiled"])
@pytest.mark.parametrize("shape", [(0, 3, 5, 4), (2, 0, 5, 4), (2, 3, 0, 4), (2, 3, 5, 0)])
def test_empty_axes(shape: tuple[int, ...], impl: str) -> None:
    x = np.ones(shape, np.float32)
    assert dot_product_attention(x, x, x, impl=impl).shape == shape


def test_no_keys_give_zeros_and_an_lse_of_minus_infinity() -> None:
    q, kv = np.ones((2, 3, 4)), np.ones((2, 0, 4))
    out, lse, _ = dot_product_attention(q, kv, kv, impl="tiled", return_lse=True)
    assert (out == 0).all()
    assert (lse == -np.inf).all()


def test_one_far_key_raises_the_reference_of_its_rows() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, n, 4)) for n in (9, 40, 40))
    k[0, ::13] *= 300
    for few in (False, True):
        check(Case(make_problem(q, k, v), TileShape(4, 8, 8), few), scale=100)


@pytest.mark.parametrize("scale", [1e6, 1e8, 1e10, 1e25])
def test_scores_whose_rounding_is_large_pick_the_largest(scale: float) -> None:
    """Two products of one query and one key may differ by more than an exponential spans."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((2, 150, 8)).astype(np.float32) for _ in range(3))
    q *= np.float32(scale)
    exact = np.where(np.tri(150, dtype=bool), q.astype(np.float64) @ k.astype(np.float64).mT, -np.inf)
    largest = np.take_along_axis(v, np.argmax(exact, axis=-1)[..., None], axis=1)
    out = dot_product_attention(q, k, v, mask=masks.causal(), impl="tiled")
    np.testing.assert_allclose(out, largest, rtol=0, atol=1e-5)


def test_real_tiles_of_a_long_call() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 700, 16)).astype(np.float32) for _ in range(3))
    for mask in (None, masks.causal(), masks.sliding_window(100, 0), masks.chunked(300)):
        expected = dot_product_attention(q, k, v, mask=mask, impl="dense")
        assert_like(dot_product_attention(q, k, v, mask=mask, impl="tiled"), expected, np.float32)


def test_inputs_of_any_layout_are_read_and_never_written() -> None:
    rng = np.random.default_rng(2)
    base = rng.standard_normal((2, 300, 2, 8)).astype(np.float32)
    wide = np.asfortranarray(rng.standard_normal((2, 300, 2, 8)).astype(np.float32))
    back, swapped = base[:, ::-1], base.astype(">f4")
    kept = [x.copy() for x in (base, wide, swapped)]
    for x in (base, wide, back, swapped, np.broadcast_to(base[:1], base.shape)):
        x.flags.writeable = False
        expected = dot_product_attention(x, x, x, layout="BLHD", impl="dense")
        assert_like(dot_product_attention(x, x, x, layout="BLHD", impl="tiled"), expected, np.float32)
    assert all((a == b).all() for a, b in zip(kept, (base, wide, swapped), strict=True))


def test_a_rule_may_call_attention_itself() -> None:
    x = np.random.default_rng(3).standard_normal((40, 4))

    def nested(batch: Any, head: Any, i: Any, j: Any) -> Any:
        dot_product_attention(x, x, x, impl="tiled")
        return i >= j

    case = Case(make_problem(x, x, x, mask=masks.rule(nested)), TileShape(8, 8, 8), few=False)
    check(case)


def test_the_bounded_path_is_taken_where_the_bound_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    from attention_np import forward

    taken = []
    original = forward.bounded_tile
    monkeypatch.setattr(forward, "bounded_tile", lambda call, tile: taken.append(1) or original(call, tile))
    x = np.random.default_rng(4).standard_normal((32, 4))
    for scale, expected in ((1.0, True), (1e4, False)):
        taken.clear()
        check(Case(make_problem(x, x, x, scale=scale), TileShape(8, 8, 8), few=False), scale=1e4)
        assert bool(taken) == expected


def test_no_warning_and_no_floating_point_error_leaks() -> None:
    q = np.full((300, 4), 1e20, np.float32)
    with np.errstate(all="raise"):
        assert np.isnan(dot_product_attention(q, q, q, impl="tiled", mask=masks.causal())).all()


def test_a_batch_row_alone_or_in_a_batch_is_the_same_to_the_bit() -> None:
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((3, 4, 300, 16)).astype(np.float32) for _ in range(3))
    together = dot_product_attention(q, k, v, impl="tiled", mask=masks.causal())
    for row in range(3):
        alone = dot_product_attention(q[row], k[row], v[row], impl="tiled", mask=masks.causal())
        np.testing.assert_array_equal(together[row], alone)


def test_plans_of_static_masks_are_kept() -> None:
    x = np.ones((2, 64, 4))
    plans = [Call.of(make_problem(x, x, x, mask=masks.causal())).plans[(), 0] for _ in range(2)]
    assert plans[0] is plans[1]


def test_what_a_steep_bias_makes_negligible_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    from attention_np.tile import Tile

    seen, original = [], Tile.scores
    monkeypatch.setattr(
        Tile, "scores", lambda self, factors, segment: seen.append(segment) or original(self, factors, segment)
    )
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal((2, 200, 4)) for _ in range(3))
    for slopes, skips in ((np.array([8.0, 8.0]), True), (np.array([0.01, 0.01]), False)):
        seen.clear()
        problem = make_problem(q, k, v, bias=biases.alibi(slopes), mask=masks.causal())
        check(Case(problem, TileShape(16, 16, 8), few=False))
        looked_at = sum(
            len(tile.segments) for plan in Call.of(problem, TileShape(16, 16, 8)).plans.values() for tile in plan.tiles
        )
        assert (len(seen) < 0.8 * looked_at) == skips
    poisoned = v.copy()
    poisoned[:, 0] = np.nan  # far from most rows, but visible
    problem = make_problem(q, k, poisoned, bias=biases.alibi(np.array([8.0, 8.0])), mask=masks.causal())
    check(Case(problem, TileShape(16, 16, 8), few=False))
