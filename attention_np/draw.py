"""Draw a layer's weights with NumPy."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from attention_core.arrays import is_real_floating
from attention_core.variants import Layer, Normal, Parameter
from attention_core.variants.layer import check_layer

__all__ = ["init"]

L = TypeVar("L", bound=Layer)


def init(layer: type[L], rng: np.random.Generator, *, dtype: DTypeLike = np.float32, **sizes: Any) -> L:
    """Draw a layer of the given sizes and options: each weight by its own law, in the order of ``state_dict``.

    >>> import numpy as np
    >>> from attention_np import SelfAttention, init
    >>> init(SelfAttention, np.random.default_rng(0), d_in=3, d_out_kq=2, d_out_v=4).W_value.shape
    (3, 4)
    """
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"`rng` must be a numpy.random.Generator; got a {type(rng).__qualname__}")
    check_layer(layer)
    weights = {name: _draw(rng, p, np.dtype(dtype)) for name, p in layer.parameters(**sizes).items()}
    return layer.from_state_dict(weights, **{name: sizes[name] for name in layer.option_names() if name in sizes})


def _draw(rng: np.random.Generator, parameter: Parameter, dtype: np.dtype[Any]) -> np.ndarray:
    if not is_real_floating(np, dtype):
        raise TypeError(f"`dtype` must be a real floating-point one; got {dtype}")
    if isinstance(parameter.law, Normal):
        return rng.normal(0.0, parameter.law.std, parameter.shape).astype(dtype)
    low, high = parameter.law.low, parameter.law.high
    drawn = rng.uniform(low, high, parameter.shape).astype(dtype)
    # rounding may reach the open end of [low, high): one in 512 draws of bfloat16 does
    return np.minimum(drawn, np.nextafter(np.asarray(high, dtype), np.asarray(low, dtype)))
