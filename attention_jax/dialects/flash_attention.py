"""``attention_core.dialects.flash_attention`` on JAX arrays."""

from attention_core.dialects.flash_attention import (
    Appended,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)

__all__ = ["Appended", "flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
