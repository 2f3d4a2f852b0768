"""Attention for NumPy arrays: the public names of ``attention_core``, and ``init`` to draw layers.

>>> import numpy as np
>>> import attention_np as attention
>>> x = np.eye(2)
>>> attention.dot_product_attention(x, x, x, mask=attention.masks.causal()).shape
(2, 2)
"""

import numpy

from attention_core import *  # noqa: F403  the same public names, in one list
from attention_core import __all__ as _names
from attention_core.kernels import register_kernel

from .init import init
from .kernel import QUIET_DENSE, TILED

__all__ = [*_names, "init"]  # noqa: PLE0604  strings, from the core's own list

register_kernel(numpy, TILED, QUIET_DENSE)
