"""Rotary embedding's two pairings, and padding in linear attention: what others mixed up."""

from math import cos, sin

import numpy as np
import pytest

from attention_core.variants import Linear
from attention_np import LinearAttention, Rotary, rotate

X, Y = np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[0.5, -1.0, 2.0, 0.25]])


@pytest.mark.parametrize("interleaved", [False, True])
def test_scores_depend_on_the_distance_alone_and_norms_stay(interleaved: bool) -> None:
    """Frequencies repeated in pairs need a rotation of pairs, and those in halves one of halves."""
    rotary = Rotary(interleaved=interleaved)
    near, far = (rotate(X, q, rotary)[0] @ rotate(Y, k, rotary)[0] for q, k in ((3, 1), (5, 3)))
    assert near == pytest.approx(far, abs=1e-12)
    assert np.linalg.norm(rotate(X, 3, rotary)) == pytest.approx(30**0.5)


def test_position_zero_is_the_identity_and_neighbours_stay_neighbours() -> None:
    assert rotate(X, 0, Rotary(interleaved=True)).tolist() == X.tolist()
    (a, b, *_) = rotate(X, 1, Rotary(interleaved=True))[0]
    assert (a, b) == pytest.approx((cos(1) - 2 * sin(1), 2 * cos(1) + sin(1)))
    (a, _, b, _) = rotate(X, 1, Rotary())[0]
    assert (a, b) == pytest.approx((cos(1) - 3 * sin(1), 3 * cos(1) + sin(1)))


@pytest.mark.parametrize("form", ["full", "chunked"])
@pytest.mark.parametrize("padding", [0.0, 1e30, np.nan])
def test_padding_counts_in_neither_sum_of_linear_attention(form: str, padding: float) -> None:
    """elu(0) + 1 = 1: a key of zeros would still be in the denominator."""
    parts = (Linear(np.array([row])) for row in ([1.0, 0.0], [1.0, 0.0], [0.0, 1.0]))
    layer = LinearAttention(*parts, Linear(np.eye(1)), num_heads=1, causal=False)
    tokens = np.array([[1.0, 4.0], [padding, padding]])
    out = layer(tokens, key_mask=np.array([True, False]), form=form)
    assert out[0] == pytest.approx(4.0)
