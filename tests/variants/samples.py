"""Layers and inputs of unequal sizes, drawn with NumPy, and the libraries that they go to."""

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attention_core.variants import CausalSelfAttention, CrossAttention, Layer, MultiHeadAttentionWrapper, SelfAttention

from .loops import backwards, everything, heads_beside_each_other, one_head

D_IN, D_KQ, D_V, HEADS, L_1, L_2 = 3, 2, 5, 4, 6, 8
ONE_HEAD = ("W_query", "W_key", "W_value")
ALL = (SelfAttention, MultiHeadAttentionWrapper, CrossAttention, CausalSelfAttention)
BATCHES: tuple[tuple[int, ...], ...] = ((), (7,), (2, 1, 3))
DTYPES = {"float64": np.dtype(np.float64), "float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7}


def sizes(layer: type[Layer]) -> dict[str, int]:
    """The sizes of a layer, no two of them equal."""
    every = {"d_in": D_IN, "d_out_kq": D_KQ, "d_out_v": D_V, "num_heads": HEADS}
    return {name: every[name] for name in layer.size_names}


def weights(layer: type[Layer], dtype: Any = np.float64, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of both signs and some spread, by the names of `state_dict`."""
    rng = np.random.default_rng(seed)
    shapes = {name: parameter.shape for name, parameter in layer.parameters(**sizes(layer)).items()}
    return {name: rng.normal(0.2, 0.8, shape).astype(dtype) for name, shape in shapes.items()}


def inputs(layer: type[Layer], batch: tuple[int, ...] = (), dtype: Any = np.float64) -> tuple[np.ndarray, ...]:
    """One sequence, or for cross-attention two of unequal length, the second broadcast along the batch's first axis."""
    rng = np.random.default_rng(len(batch) + 1)
    shapes = [(*batch, L_1, D_IN)]
    if layer is CrossAttention:
        shapes.append((*batch[1:], L_2, D_IN))
    return tuple(rng.normal(size=shape).astype(dtype) for shape in shapes)


def expected(layer: type[Layer], state: dict[str, np.ndarray], given: tuple[np.ndarray, ...]) -> np.ndarray:
    """What the layer must give, by loops over Python numbers."""
    if layer is MultiHeadAttentionWrapper:
        heads = [[state[f"heads.{h}.{name}"] for name in ONE_HEAD] for h in range(len(state) // 3)]
        return heads_beside_each_other(given[0], heads)
    visible = backwards if layer is CausalSelfAttention else everything
    return one_head(given[0], given[-1], [state[name] for name in ONE_HEAD], visible)


@dataclass(frozen=True)
class Library:
    """An array library: how NumPy arrays go in and come out."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def xp(self) -> ModuleType:
        return importlib.import_module({"jax": "jax.numpy", "jax-jit": "jax.numpy"}.get(self.name, self.name))

    def put(self, x: np.ndarray) -> Any:
        if self.name == "torch":
            bits = x.view(np.int16) if x.dtype == DTYPES["bfloat16"] else x
            array = self.xp.from_numpy(bits.copy())
            return array.view(self.xp.bfloat16) if bits is not x else array
        return self.xp.asarray(x)

    def get(self, x: Any) -> np.ndarray:
        return x.double().numpy() if self.name == "torch" else np.asarray(x).astype(np.float64)

    def call(self, layer: Layer, *given: Any) -> Any:
        if self.name != "jax-jit":
            return layer(*given)
        import jax

        return jax.jit(lambda layer, *given: layer(*given))(layer, *given)

    @contextlib.contextmanager
    def precision(self, dtype: str) -> Iterator[None]:
        """Let JAX have float64 where that is asked for."""
        if not self.name.startswith("jax"):
            yield
            return
        import jax

        import attention_jax  # noqa: F401  makes layers pytrees

        with jax.enable_x64(dtype == "float64"):
            yield


LIBRARIES = [
    pytest.param(Library("numpy"), id="numpy"),
    pytest.param(Library("jax"), id="jax"),
    pytest.param(Library("jax-jit"), id="jax-jit"),
    pytest.param(Library("array_api_strict"), id="array_api_strict"),
    pytest.param(Library("torch"), id="torch", marks=pytest.mark.torch),
]
LIGHT = [each for each in LIBRARIES if "jax" not in each.id]
"""Those that compile nothing, for tests of many shapes."""


def has_bfloat16(name: str) -> bool:
    return name != "array_api_strict"


def make(layer: type[Layer], library: Library, dtype: str) -> Any:
    """The sample layer in a library."""
    state = weights(layer, DTYPES[dtype])
    return layer.from_state_dict({name: library.put(array) for name, array in state.items()})
