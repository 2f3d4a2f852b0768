"""Merging: attention over parts of the keys is attention over all of them; empty parts count for nothing."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attention_core
from attention_np import dot_product_attention, masks, merge

from .libraries import EACH, NUMPY, Library
from .recipes import BY_INDEX, MASKS, Recipe, recipes

POSITIONAL = tuple(name for name in MASKS if name not in BY_INDEX)


def parts_of(recipe: Recipe, cuts: list[int], library: Library, **more: Any) -> tuple[list[Any], list[Any], Any]:
    """The outs and lses of a call cut along its keys, the sink with the first part, and the whole."""
    call = recipe.draw()
    whole = call.run(attention_core, library.to, **more)
    bounds = sorted([0, *(min(cut, recipe.keys) for cut in cuts), recipe.keys])
    parts = []
    for n, (start, stop) in enumerate(pairwise(bounds)):
        sinks = {"sinks": None} if n and recipe.sinks else {}
        parts.append(call.take("j", range(start, stop)).run(attention_core, library.to, **sinks, **more))
    return [part.out for part in parts], [part.lse for part in parts], whole


@settings(max_examples=100)
@given(recipes(masks=POSITIONAL), st.lists(st.integers(0, 6), max_size=4))
def test_any_cut_of_the_keys_merges_to_the_whole(recipe: Recipe, cuts: list[int]) -> None:
    outs, lses, whole = parts_of(recipe, cuts, NUMPY)
    out, lse = merge(outs, lses)
    np.testing.assert_allclose(out, whole.out, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(lse, whole.lse, rtol=1e-11, atol=1e-13)


@EACH
@pytest.mark.parametrize("mask", ["causal", "segments", "-inf bias"])
def test_every_library(library: Library, mask: str, double_precision: None) -> None:
    recipe = Recipe(mask=mask, sinks=True, group=3, keys=7, seed=4)
    outs, lses, whole = parts_of(recipe, [0, 3], NUMPY)
    out, lse = library.call(lambda *x: merge(x[:3], x[3:]), *outs, *lses)
    np.testing.assert_allclose(library.numpy(out), whole.out, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(library.numpy(lse), whole.lse, rtol=1e-11, atol=1e-13)


def test_merging_in_any_order_and_grouping() -> None:
    outs, lses, whole = parts_of(Recipe(keys=9, seed=1), [2, 3, 6], NUMPY)
    left = merge(outs[:2], lses[:2])
    right = merge(outs[2:][::-1], lses[2:][::-1])
    out, lse = merge([right[0], left[0]], [right[1], left[1]])
    np.testing.assert_allclose(out, whole.out, rtol=1e-12)
    np.testing.assert_allclose(lse, whole.lse, rtol=1e-12)


def test_one_part_is_itself() -> None:
    outs, lses, _ = parts_of(Recipe(mask="-inf bias", keys=2, queries=4), [], NUMPY)
    out, lse = merge(outs, lses)
    np.testing.assert_array_equal(out, outs[0])
    np.testing.assert_array_equal(lse, lses[0])


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e30])
def test_an_empty_part_changes_nothing_whatever_its_output_holds(garbage: float) -> None:
    outs, lses, whole = parts_of(Recipe(keys=4), [2], NUMPY)
    outs.insert(1, np.full_like(outs[0], garbage))
    lses.insert(1, np.full_like(lses[0], -np.inf))
    out, lse = merge(outs, lses)
    np.testing.assert_allclose(out, whole.out, rtol=1e-12)
    np.testing.assert_allclose(lse, whole.lse, rtol=1e-12)
    out, lse = merge([outs[1]] * 2, [lses[1]] * 2)
    assert not out.any()
    assert np.isneginf(lse).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtypes(dtype: str) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=shape).astype(dtype) for shape in ((2, 3, 4), (2, 7, 4), (2, 7, 5)))
    parts = [dot_product_attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 3), slice(3, 7))]
    out, lse = merge([part.out for part in parts], [part.lse for part in parts])
    assert out.dtype == dtype
    assert lse.dtype == ("float64" if dtype == "float64" else "float32")
    np.testing.assert_allclose(out, dot_product_attention(q, k, v), rtol=8 * np.finfo(dtype).eps, atol=1e-3)


def test_lses_of_16_bits_are_computed_in_float32() -> None:
    brain = pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy needs `pip install ml_dtypes`").bfloat16
    outs, lses = [np.full((3, 2), n, dtype=brain) for n in (1, 3)], [np.zeros(3, dtype=brain)] * 2
    out, lse = merge(outs, lses)
    assert out.dtype == brain
    assert lse.dtype == np.float32
    np.testing.assert_array_equal(out.astype(np.float32), 2.0)
    np.testing.assert_allclose(lse, np.log(2.0), rtol=1e-6)


def test_parts_of_two_dtypes_promote() -> None:
    halves = [np.ones((3, 2), dtype=dtype) for dtype in ("float16", "float32")]
    out, lse = merge(halves, [np.zeros(3, dtype=dtype) for dtype in ("float32", "float64")])
    assert out.dtype == np.float32
    assert lse.dtype == np.float64


@pytest.mark.parametrize("queries", [3, 4])
def test_the_other_layout(queries: int) -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(2, queries, 4, 3)), rng.normal(size=(2, 7, 2, 3)), rng.normal(size=(2, 7, 2, 5))
    call = {"layout": "BLHD", "return_lse": True}
    parts = [dot_product_attention(q, k[:, s], v[:, s], **call) for s in (slice(0, 3), slice(3, 7))]
    out, lse = merge([part.out for part in parts], [part.lse for part in parts], layout="BLHD")
    whole = dot_product_attention(q, k, v, **call)
    np.testing.assert_allclose(out, whole.out, rtol=1e-12)
    np.testing.assert_allclose(lse, whole.lse, rtol=1e-12)


def gradients(split: bool, garbage: float) -> tuple[np.ndarray, ...]:
    """JAX's gradients of a loss of out and lse, whole or through parts: some rows are dead in one, one row in both."""
    jax = pytest.importorskip("jax", reason="the `jax` extra is not installed")
    import attention_jax

    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=shape) for shape in ((2, 4, 3), (2, 6, 3), (2, 6, 5))]
    visible = np.ones((4, 6), dtype=bool)
    visible[0, :3] = visible[1, 3:] = visible[2, :] = False
    weights = rng.normal(size=(2, 4, 5)), rng.normal(size=(2, 4))

    def loss(q: Any, k: Any, v: Any) -> Any:
        spans = (slice(0, 3), slice(3, 6)) if split else (slice(0, 6),)
        found = [
            attention_jax.dot_product_attention(q, k[:, s], v[:, s], mask=visible[:, s], return_lse=True) for s in spans
        ]
        outs = [jax.numpy.where(part.lse[..., None] == -np.inf, garbage, part.out) for part in found]
        out, lse = attention_jax.merge(outs, [part.lse for part in found])
        return (out * weights[0]).sum() + jax.numpy.where(lse == -np.inf, 0.0, lse * weights[1]).sum()

    with jax.enable_x64(True):
        return tuple(np.asarray(x) for x in jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*arrays))


@pytest.mark.parametrize("garbage", [np.nan, *(pytest.param(x, marks=pytest.mark.slow) for x in (0.0, np.inf))])
def test_gradients_of_dead_parts_are_zero(garbage: float) -> None:
    whole = gradients(split=False, garbage=0.0)
    assert not whole[0][:, 2].any()
    for found, expected in zip(gradients(split=True, garbage=garbage), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.slow
def test_gradients_are_finite_differences() -> None:
    jax = pytest.importorskip("jax", reason="the `jax` extra is not installed")
    rng = np.random.default_rng(5)
    outs, lses = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 4))
    lses[0, 1] = lses[2, 1] = lses[1, 3] = -np.inf
    directions = rng.normal(size=outs.shape), rng.normal(size=lses.shape)
    weights = rng.normal(size=(4, 2)), rng.normal(size=4)

    def loss(outs: Any, lses: Any) -> Any:
        out, lse = merge(list(outs), list(lses))
        return (out * weights[0]).sum() + (lse * weights[1]).sum()

    step = 1e-6
    ahead, behind = (loss(outs + s * directions[0], lses + s * directions[1]) for s in (step, -step))
    with jax.enable_x64(True):
        found = jax.grad(loss, argnums=(0, 1))(jax.numpy.asarray(outs), jax.numpy.asarray(lses))
    assert not any(np.asarray(part)[lses == -np.inf].any() for part in found)
    slope = sum((np.asarray(g) * d).sum() for g, d in zip(found, directions, strict=True))
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=1e-7)


@pytest.mark.parametrize(
    ("outs", "lses", "words"),
    [
        ([], [], "`outs` and `lses` must be as many, and at least one; got 0 and 0"),
        ([(3, 2)], [(3,), (3,)], "got 1 and 2"),
        ([(3, 2), (4, 2)], [(3,), (4,)], r"`outs\[1\]` has not the shape of `outs\[0\]`"),
        ([(3, 2), (3, 2)], [(3,), (2,)], r"`lses\[1\]` has shape \(2,\); it must be that of `outs\[1\]` without"),
    ],
)
def test_wrong_parts(outs: Any, lses: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        merge([np.zeros(shape) for shape in outs], [np.zeros(shape) for shape in lses])


@pytest.mark.parametrize("name", ["outs", "lses"])
def test_integers_are_refused(name: str) -> None:
    parts = {"outs": [np.ones((2, 3)), np.ones((2, 3))], "lses": [np.zeros(2), np.zeros(2)]}
    parts[name][1] = parts[name][1].astype(np.int32)
    with pytest.raises(TypeError, match=rf"`{name}\[1\]` has dtype int32"):
        merge(parts["outs"], parts["lses"])


def test_wrong_layouts() -> None:
    out, lse = np.zeros((2, 3, 4, 5)), np.zeros((2, 3, 4))
    with pytest.raises(ValueError, match=r"heads before lengths, \(2, 4, 3\)"):
        merge([out], [lse], layout="BLHD")
    with pytest.raises(ValueError, match='`layout` must be "BHLD" or "BLHD"'):
        merge([out], [lse], layout="LBHD")


def test_masks_by_position_need_the_parts_own_positions() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 7, 3)), rng.normal(size=(2, 7, 4))
    call = {"mask": masks.sliding_window(3, 1) | masks.global_tokens(1), "return_lse": True}
    parts = [dot_product_attention(q, k[:, a:b], v[:, a:b], key_positions=a, **call) for a, b in ((0, 4), (4, 7))]
    out, _ = merge([part.out for part in parts], [part.lse for part in parts])
    np.testing.assert_allclose(out, dot_product_attention(q, k, v, **call).out, rtol=1e-12)
