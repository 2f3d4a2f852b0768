"""Draw a layer's weights with JAX."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from attention_core.variants import Layer

__all__ = ["init"]

L = TypeVar("L", bound=Layer)


def init(layer: type[L], key: jax.Array, *, dtype: Any = jnp.float32, **sizes: int) -> L:
    """Draw a layer of the given sizes: each weight by its own law, from its own key.

    >>> import jax
    >>> from attention_jax import SelfAttention, init
    >>> init(SelfAttention, jax.random.key(0), d_in=3, d_out_kq=2, d_out_v=4).W_value.shape
    (3, 4)
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"`dtype` must be a real floating-point one; got {jnp.dtype(dtype)}")
    parameters = layer.parameters(**sizes)
    keys = dict(zip(parameters, jax.random.split(key, len(parameters)), strict=True))
    weights = {
        name: jax.random.uniform(keys[name], p.shape, dtype, p.law.low, p.law.high) for name, p in parameters.items()
    }
    return layer.from_state_dict(weights)
