"""Differential attention beside loops over Python numbers, as the module of its paper."""

from math import exp, sqrt
from typing import Any

import numpy as np
import pytest

from attention_core import Rotary
from attention_core.variants import DifferentialAttention

from .plain import DIFFERENTIAL, UNCOMPILED, dot, drawn, made, mix, moved, softmax, times
from .samples import Library


def differential_by_loops(layer: Any, x: np.ndarray) -> np.ndarray:
    """As the paper's own module: heads 2 h and 2 h + 1 are a pair, two value heads side by side its one value."""
    q, k, v = ([times(part.weight, row) for row in x] for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    factor = exp(dot(list(layer.lambda_q1), list(layer.lambda_k1)))
    factor += 0.3 - exp(dot(list(layer.lambda_q2), list(layer.lambda_k2)))
    out = []
    for i in range(len(x)):
        heads: list[float] = []
        for h in range(4):
            g, maps = h // 2, []
            for one in range(2):
                query = q[i][3 * (2 * h + one) :][:3]
                scores = [dot(query, k[j][3 * (2 * g + one) :][:3]) / sqrt(3) for j in range(i + 1)]
                maps.append(softmax(scores))
            difference = [a - factor * b for a, b in zip(*maps, strict=True)]
            head = mix(difference, [v[j][6 * g :][:6] for j in range(i + 1)])
            size = sqrt(sum(a * a for a in head) / 6 + 1e-5)
            heads += [0.7 * a / size * float(w) for a, w in zip(head, layer.subln.weight, strict=True)]
        out.append(times(layer.out_proj.weight, heads))
    return np.array(out)


@pytest.mark.parametrize("library", UNCOMPILED)  # compiled: diffllama, of the recorded models
def test_differential_attention_by_loops(library: Library) -> None:
    layer, x = made(DifferentialAttention, **DIFFERENTIAL), drawn(5, 12)
    with library.precision("float64"):
        out = library.get(moved(layer, library)(library.put(x)))
    np.testing.assert_allclose(out, differential_by_loops(layer, x), rtol=1e-10, atol=1e-12)


def test_differential_attention_shows_the_difference_of_its_maps() -> None:
    layer, x = made(DifferentialAttention, **DIFFERENTIAL, rotary=Rotary(dim=2)), drawn(2, 5, 12)
    weights = layer(x, return_weights=True).weights
    assert weights.shape == (2, 4, 5, 5)
    np.testing.assert_allclose(weights.sum(-1), np.full((2, 4, 5), 1 - float(layer.factor())), rtol=1e-12)
    with pytest.raises(ValueError, match="`pairing` must be one of neighbours, halves; got 'odd'"):
        made(DifferentialAttention, **DIFFERENTIAL, pairing="odd")
