"""What the tests of attention beside the softmax of products share: layers of unequal sizes, and plain loops."""

from collections.abc import Callable
from math import exp
from typing import Any

import numpy as np
import pytest

from attention_core.variants import Layer

from .samples import LIBRARIES, Library

# JAX compiles each operation of an eager call: once traced is enough for every day
EACH_LIBRARY = [
    pytest.param(*each.values, id=each.id, marks=[*each.marks, pytest.mark.slow] if each.id == "jax" else each.marks)
    for each in LIBRARIES
]
UNCOMPILED = [each for each in EACH_LIBRARY if each.id != "jax-jit"]
every_library = pytest.mark.parametrize("library", EACH_LIBRARY)


LINEAR = {"d_in": 6, "num_heads": 2, "d_head": 3}
DIFFERENTIAL = {"d_in": 12, "num_heads": 4, "num_kv_heads": 2, "d_head": 3, "lambda_init": 0.3}
LATENT = {
    "hidden_size": 12, "num_heads": 3, "qk_nope_head_dim": 5, "qk_rope_head_dim": 4, "v_head_dim": 6, "kv_lora_rank": 7,
}  # fmt: skip


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def made(layer: type[Layer], seed: int = 1, **sizes: Any) -> Any:
    """The layer in float64, its weights of some spread whatever its own laws are."""
    shapes = {name: p.shape for name, p in layer.parameters(**sizes).items()}
    weights = {name: 0.5 * drawn(*shape, seed=seed + n) for n, (name, shape) in enumerate(shapes.items())}
    return layer.from_state_dict(weights, **{name: sizes[name] for name in layer.option_names() if name in sizes})


def moved(layer: Layer, library: Library) -> Any:
    weights = {name: library.put(x) for name, x in layer.state_dict().items()}
    own = {name: getattr(layer, name) for name in layer.option_names()}
    return type(layer).from_state_dict(weights, **own)


def traced(library: Library, call: Callable[..., Any]) -> Callable[..., Any]:
    if library.name != "jax-jit":
        return call
    import jax

    return jax.jit(call)


def times(weight: np.ndarray, x: Any, bias: Any = None) -> list[float]:
    plus = [0.0] * len(weight) if bias is None else bias
    return [
        sum(float(w) * float(a) for w, a in zip(row, x, strict=True)) + float(b)
        for row, b in zip(weight, plus, strict=True)
    ]


def softmax(scores: list[float]) -> list[float]:
    powers = [exp(s - max(scores)) for s in scores]
    return [p / sum(powers) for p in powers]


def mix(weights: list[float], rows: list[list[float]]) -> list[float]:
    return [sum(w * row[c] for w, row in zip(weights, rows, strict=True)) for c in range(len(rows[0]))]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
