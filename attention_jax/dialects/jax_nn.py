"""``attention_core.dialects.jax_nn`` on JAX arrays."""

from attention_core.dialects.jax_nn import dot_product_attention

__all__ = ["dot_product_attention"]
