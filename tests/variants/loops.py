"""The article's layers once more: plain Python numbers and two loops, no array library in the arithmetic."""

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

Row = list[float]
Matrix = list[Row]
Visible = Callable[[int, int], bool]


def everything(i: int, j: int) -> bool:
    return True


def backwards(i: int, j: int) -> bool:
    return j <= i


def project(x: Matrix, weight: Matrix) -> Matrix:
    return [
        [math.fsum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*weight, strict=True)]
        for row in x
    ]


def attend(queries: Matrix, keys: Matrix, values: Matrix, visible: Visible) -> Matrix:
    scale = 1 / math.sqrt(len(queries[0]))
    out = []
    for i, query in enumerate(queries):
        seen = [j for j in range(len(keys)) if visible(i, j)]
        scores = [scale * math.fsum(a * b for a, b in zip(query, keys[j], strict=True)) for j in seen]
        powers = [math.exp(score) for score in scores]
        weights = [power / math.fsum(powers) for power in powers]
        out.append(
            [math.fsum(w * values[j][c] for w, j in zip(weights, seen, strict=True)) for c in range(len(values[0]))]
        )
    return out


def one_head(
    x_1: np.ndarray, x_2: np.ndarray, weights: Sequence[np.ndarray], visible: Visible = everything
) -> np.ndarray:
    """Return the context vectors of one head, batches one item after the other."""
    batch = np.broadcast_shapes(x_1.shape[:-2], x_2.shape[:-2])
    first, second = (np.broadcast_to(x, batch + x.shape[-2:]).astype(np.float64) for x in (x_1, x_2))
    query, key, value = (weight.astype(np.float64).tolist() for weight in weights)
    out = np.empty((*batch, x_1.shape[-2], weights[2].shape[-1]))
    for item in product(*map(range, batch)):
        a, b = first[item].tolist(), second[item].tolist()
        out[item] = attend(project(a, query), project(b, key), project(b, value), visible)
    return out


def heads_beside_each_other(x: np.ndarray, heads: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    return np.concatenate([one_head(x, x, weights) for weights in heads], axis=-1)
