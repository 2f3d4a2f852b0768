"""Attention for JAX arrays: the public names of ``attention_core``, and ``init`` to draw layers.

Everything works eager and under ``jit``, ``vmap``, ``grad`` and ``checkpoint``; masks, biases and layers are pytrees.

>>> import jax, jax.numpy as jnp
>>> import attention_jax as attention
>>> x = jnp.eye(2)
>>> jax.jit(attention.dot_product_attention)(x, x, x).shape
(2, 2)
"""

import jax.numpy

from attention_core import *  # noqa: F403  the same public names, in one list
from attention_core import __all__ as _names
from attention_core.kernels import register_kernel

from .dense import COMPILED_DENSE
from .init import init
from .kernel import TILED
from .pytrees import register_all

__all__ = [*_names, "init"]  # noqa: PLE0604  strings, from the core's own list

register_all()
register_kernel(jax.numpy, TILED, COMPILED_DENSE)
