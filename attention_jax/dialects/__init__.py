"""The peers' calls of ``attention_core.dialects`` on JAX arrays."""

from . import flash_attention, jax_nn, mlx, onnx, torch

__all__ = ["flash_attention", "jax_nn", "mlx", "onnx", "torch"]
