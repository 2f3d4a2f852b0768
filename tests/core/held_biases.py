"""One bias of each kind, and the pairs and the problem that they are held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_core.masks.draw import mask_pairs
from attention_core.pairs import Pairs
from attention_core.sizes import Sizes
from attention_np import biases, masks
from tests.core.pictures import BATCH, HEADS, KEYS, QUERIES

Array = np.ndarray
SIZES = Sizes(BATCH, HEADS, HEADS, QUERIES, KEYS, 1, 1)


def whole(query_positions: Any = 0, key_positions: Any = 0) -> Pairs:
    return mask_pairs(masks.causal(), SIZES, query_positions, key_positions, np)


def values(bias: Any, where: tuple[Any, Any] = (0, 0)) -> Array:
    pairs = whole(*where)
    return np.broadcast_to(bias.values(pairs, np.float64), pairs.shape)


def held() -> dict[str, Callable[[], Any]]:
    rng = np.random.default_rng(4)
    return {
        "dense": lambda: biases.dense(rng.normal(size=(3, HEADS, QUERIES, KEYS))),
        "dense over keys": lambda: biases.dense(rng.normal(size=KEYS)),
        "dense over heads": lambda: biases.dense(rng.normal(size=(2, 1, HEADS, 1, 1))),
        "alibi": lambda: biases.alibi(rng.random(HEADS)),
        "relative": lambda: biases.relative(rng.normal(size=(8, HEADS)), max_distance=5),
        "relative, causal": lambda: biases.relative(rng.normal(size=(8, HEADS)), bidirectional=False, max_distance=6),
        "rule": lambda: biases.rule(
            lambda b, h, i, j, w, c: w[h] * (j - i) + b * c,
            rng.normal(size=HEADS),
            0.25,
            vjp=lambda b, h, i, j, w, c, cotangent: (
                np.stack([(cotangent * (j - i))[..., n, :, :].sum() for n in range(cotangent.shape[-3])])
                if cotangent.shape[-3] == HEADS
                else np.where(np.arange(HEADS) == h.reshape(-1)[0], (cotangent * (j - i)).sum() * (h.size == 1), 0.0),
                None,
            ),
        ),
        "sum": lambda: biases.alibi(rng.random(HEADS)) + rng.normal(size=(QUERIES, KEYS)),
    }


def problem(seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=(*BATCH, *s)) for s in ((HEADS, QUERIES, 7), (1, KEYS, 7), (1, KEYS, 4)))  # type: ignore[return-value]  # three
