"""FlashAttention 2's calls, as the docstrings of https://github.com/Dao-AILab/flash-attention say, of version 2.8."""

from .calls import flash_attn_func, flash_attn_varlen_func
from .kvcache import Appended, flash_attn_with_kvcache

__all__ = ["Appended", "flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
