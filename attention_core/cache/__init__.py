"""Keys and values kept between the calls of decoding: functional caches, which know all positions and lengths.

>>> import numpy as np
>>> from attention_np import cache
>>> empty = cache.GrowingCache.empty(np.ones(1), num_kv_heads=1, depth=2)
>>> empty.positions(3)
array([0, 1, 2])
"""

from .base import Cache
from .growing import GrowingCache
from .paged import PagedCache
from .shared import SharedPrefixCache
from .sliding import SlidingCache
from .static import StaticCache

__all__ = ["Cache", "GrowingCache", "PagedCache", "SharedPrefixCache", "SlidingCache", "StaticCache"]
