"""The quick way of small calls gives the definition's bits, whatever stands in the rest of a call."""

from typing import Any

import numpy as np
import pytest

from attention_core.masks import Mask
from attention_core.softmax import NEAR
from attention_np import dot_product_attention, masks
from attention_np import kernel as module

SCALES = (0.0, 0.5, 3.0, -40.0, 1000.0)  # of scores that lie near 0, of some rows' that do, and of none's
MASKS = (None, masks.causal(), masks.sliding_window(1, 1), masks.key_lengths(3) & masks.query_lengths(4))


def arrays(dtype: Any = np.float32, heads: int = 4) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    shapes = (3, heads, 5, 2), (3, 2, 7, 2), (3, 2, 7, 6)
    q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return q, k, v


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("scale", SCALES)
def test_the_bits_are_the_definition_s(scale: float, mask: Mask | None, dtype: Any, heads: int) -> None:
    given = arrays(dtype, heads)
    quick = dot_product_attention(*given, mask=mask, scale=scale, return_lse=True)
    defined = dot_product_attention(*given, mask=mask, scale=scale, return_lse=True, return_weights=True)
    assert quick.weights is None
    for found, expected in ((quick.out, defined.out), (quick.lse, defined.lse)):
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()
    assert dot_product_attention(*given, mask=mask, scale=scale).tobytes() == defined.out.tobytes()


@pytest.mark.parametrize("far", [1e3, 1e25, np.nan, -np.inf])
def test_an_item_is_the_same_alone_and_beside_one_whose_scores_are_far_from_0(far: float) -> None:
    q, k, v = arrays()
    q[1] *= far
    k[1, :, 2] *= far
    out, lse, _ = dot_product_attention(q, k, v, return_lse=True)
    for item in (0, 2):
        alone = dot_product_attention(q[item], k[item], v[item], return_lse=True)
        assert alone.out.tobytes() == out[item].tobytes()
        assert alone.lse.tobytes() == lse[item].tobytes()


@pytest.mark.parametrize("mask", [None, masks.causal()], ids=str)
@pytest.mark.parametrize("poison", [np.nan, np.inf, 3e38])
def test_what_stands_in_value_comes_out_as_by_the_definition(poison: float, mask: Mask | None) -> None:
    q, k, v = arrays()
    v[0, 0, 2, 1], v[1, 1, 6] = poison, poison
    quick = dot_product_attention(q, k, v, mask=mask)
    assert quick.tobytes() == dot_product_attention(q, k, v, mask=mask, return_weights=True).out.tobytes()


@pytest.mark.parametrize("score", [-100.0, -NEAR, np.nextafter(np.float32(-NEAR), 0), NEAR, 88.0, 1e4])
def test_equal_scores_of_any_size_weigh_the_same(score: float) -> None:
    k, v = np.ones((1, 3, 1), np.float32), np.array([[[1.0], [2.0], [6.0]]], np.float32)
    q = np.full((1, 2, 1), score, np.float32)
    out, lse, _ = dot_product_attention(q, k, v, scale=1.0, return_lse=True)
    np.testing.assert_allclose(out, 3.0, rtol=3e-7)
    np.testing.assert_allclose(lse, score + np.log(3.0), rtol=3e-7)


def test_the_definition_is_only_asked_where_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    original = module.dense_attention
    monkeypatch.setattr(module, "dense_attention", lambda p, **options: asked.append(True) or original(p, **options))
    q, k, v = arrays()
    for scale in SCALES:
        dot_product_attention(q, k, v, scale=scale, mask=masks.causal())
    assert not asked
    v[0, 0, 6] = np.nan
    dot_product_attention(q, k, v, mask=masks.causal())
    assert asked
