"""Draw a layer's weights with JAX."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from attention_core.arrays import describe, is_real_floating
from attention_core.variants import Layer, Normal, Parameter
from attention_core.variants.layer import check_layer

__all__ = ["init"]

L = TypeVar("L", bound=Layer)


def init(layer: type[L], key: jax.Array, *, dtype: Any = jnp.float32, **sizes: Any) -> L:
    """Draw a layer of the given sizes and options: each weight by its own law, from its own key.

    >>> import jax
    >>> from attention_jax import SelfAttention, init
    >>> init(SelfAttention, jax.random.key(0), d_in=3, d_out_kq=2, d_out_v=4).W_value.shape
    (3, 4)
    """
    check_layer(layer)
    if not isinstance(key, jax.Array):
        raise TypeError(f"`key` must be a key of jax.random; got {describe(key)}")
    if not is_real_floating(jnp, jnp.dtype(dtype)):
        raise TypeError(f"`dtype` must be a real floating-point one; got {jnp.dtype(dtype)}")
    parameters = layer.parameters(**sizes)
    keys = dict(zip(parameters, jax.random.split(key, len(parameters)), strict=True))
    weights = {name: _draw(keys[name], p, dtype) for name, p in parameters.items()}
    return layer.from_state_dict(weights, **{name: sizes[name] for name in layer.option_names() if name in sizes})


def _draw(key: jax.Array, parameter: Parameter, dtype: Any) -> jax.Array:
    if isinstance(parameter.law, Normal):
        return jax.random.normal(key, parameter.shape, dtype) * jnp.asarray(parameter.law.std, dtype)
    return jax.random.uniform(key, parameter.shape, dtype, parameter.law.low, parameter.law.high)
