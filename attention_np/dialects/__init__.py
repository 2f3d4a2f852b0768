"""The peers' calls of ``attention_core.dialects`` on NumPy arrays."""

from . import flash_attention, jax_nn, mlx, onnx, torch

__all__ = ["flash_attention", "jax_nn", "mlx", "onnx", "torch"]
