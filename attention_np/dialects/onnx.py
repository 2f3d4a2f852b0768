"""``attention_core.dialects.onnx`` on NumPy arrays."""

from attention_core.dialects.onnx import Attention, AttentionOutputs

__all__ = ["Attention", "AttentionOutputs"]
