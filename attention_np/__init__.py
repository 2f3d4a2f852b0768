"""Attention for NumPy arrays: the public names of ``attention_core``, and ``init`` to draw layers.

>>> import numpy as np
>>> import attention_np as attention
>>> x = np.eye(2)
>>> attention.dot_product_attention(x, x, x, mask=attention.masks.causal()).shape
(2, 2)
"""

from typing import TYPE_CHECKING, Any

import numpy

import attention_core
from attention_core.kernels import register_kernel

from .kernel import QUIET_DENSE, TILED

if TYPE_CHECKING:
    from attention_core import *  # noqa: F403  the same public names, in one list

    from .draw import init

__all__ = [*attention_core.__all__, "init"]  # noqa: PLE0604  strings, from the core's own list

register_kernel(numpy, TILED, QUIET_DENSE)


def __getattr__(name: str) -> Any:
    """Return a name of the core, or ``init``, at its first use: layers need not load for a call."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "init":
        from .draw import init as found
    else:
        found = getattr(attention_core, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
