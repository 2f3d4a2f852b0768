"""What the tests of this folder stand on: a comparison that lets no NaN through, and data that tells masks apart."""

import numpy as np
import pytest

from attention_np import dot_product_attention, masks
from tests.core.field_reports import plain
from tests.core.field_reports.libraries import assert_same, spread


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([0.0, 1.0], [np.nan, 1.0]),
        ([np.nan, 1.0], [0.0, 1.0]),
        ([np.inf], [np.nan]),
        ([1.0], [np.inf]),
        ([[1.0]], [1.0]),
    ],
)
def test_nan_against_a_number_is_a_difference(actual: list[float], expected: list[float]) -> None:
    with pytest.raises(AssertionError):
        assert_same(actual, expected)
    assert_same(expected, expected)


@pytest.mark.parametrize("seed", range(5))
def test_our_data_tell_causal_from_full_attention(seed: int) -> None:
    """In data where every query is most like its own key, a mask has no effect and a test of it no force."""
    q, k, v = spread(6, 4, seed=seed), spread(6, 4, seed=seed + 100), spread(6, 3, seed=seed)
    hidden = plain.attention(q, k, v).weights[~plain.causal(6, 6)]
    assert hidden.max() > 0.2
    full, causal = dot_product_attention(q, k, v), dot_product_attention(q, k, v, mask=masks.causal())
    assert np.abs(full - causal).max() > 0.1


def test_self_similar_data_cannot_tell() -> None:
    x = np.random.default_rng(3).normal(size=(40, 300))
    assert np.abs(dot_product_attention(x, x, x) - dot_product_attention(x, x, x, mask=masks.causal())).max() < 1e-3


@pytest.mark.parametrize("name", ["attention", "softmax", "merge"])
def test_the_loop_agrees_with_sums_done_by_hand(name: str) -> None:
    ln3 = np.log(3.0)
    by_hand = {
        "attention": (plain.attention([[1.0]], [[0.0], [ln3]], [[8.0], [4.0]], scale=1.0).out, [[5.0]]),
        "softmax": (plain.softmax([0.0, ln3], sink=np.log(4.0))[0], [1 / 8, 3 / 8]),
        "merge": (plain.merge([(np.array([8.0]), 0.0), (np.array([4.0]), ln3)])[0], [5.0]),
    }
    assert_same(*by_hand[name])
