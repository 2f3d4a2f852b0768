"""``attention_core.dialects.mlx`` on JAX arrays."""

from attention_core.dialects.mlx import scaled_dot_product_attention

__all__ = ["scaled_dot_product_attention"]
