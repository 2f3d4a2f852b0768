"""Which pairs may attend: small values that compose by ``&``, ``|`` and ``~``; ``True`` = visible.

>>> from attention_np import masks
>>> masks.causal() & ~masks.prefix(1)
causal() & ~prefix(1)
"""

from .algebra import Mask
from .given import dense, key_lengths, query_lengths, rule, segments
from .rules import causal, causal_lower_right, chunked, dilated, global_tokens, prefix, sliding_window
from .tiles import Visibility

__all__ = [
    "Mask",
    "Visibility",
    "causal",
    "causal_lower_right",
    "chunked",
    "dense",
    "dilated",
    "global_tokens",
    "key_lengths",
    "prefix",
    "query_lengths",
    "rule",
    "segments",
    "sliding_window",
]
