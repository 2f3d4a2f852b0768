"""``attention_core.dialects.onnx`` on JAX arrays."""

from attention_core.dialects.onnx import Attention, AttentionOutputs

__all__ = ["Attention", "AttentionOutputs"]
