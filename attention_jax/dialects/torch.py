"""``attention_core.dialects.torch`` on JAX arrays."""

from attention_core.dialects.torch import multi_head_attention_forward, scaled_dot_product_attention

__all__ = ["multi_head_attention_forward", "scaled_dot_product_attention"]
