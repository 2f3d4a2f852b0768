"""Our dialects behind the adapters of their peers: the same translation of a case, our call in the place of theirs.

Run one as `attention-conformance run conformance.adapters.dialects:JaxNnDialect`.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from conformance.adapters.flash_attention import FlashAttention
from conformance.adapters.jax_nn import JaxNn
from conformance.adapters.mlx import Mlx
from conformance.adapters.onnx import Onnx
from conformance.adapters.torch_mha import MultiheadAttention
from conformance.adapters.torch_sdpa import Sdpa


class JaxNnDialect(JaxNn):
    """`attention_jax.dialects.jax_nn`."""

    name = "dialect.jax_nn"

    def __init__(self) -> None:
        super().__init__()
        self.attend = importlib.import_module("attention_jax.dialects.jax_nn").dot_product_attention


class SdpaDialect(Sdpa):
    """`attention_core.dialects.torch.scaled_dot_product_attention`, on PyTorch's tensors."""

    def __init__(self) -> None:
        super().__init__("dialect.torch.sdpa", "MATH")
        self.attend = importlib.import_module("attention_core.dialects.torch").scaled_dot_product_attention


class MultiheadAttentionDialect(MultiheadAttention):
    """`attention_core.dialects.torch.multi_head_attention_forward`, on PyTorch's tensors."""

    name = "dialect.torch.mha"

    def _module(self, heads: int, depth: int, dtype: Any) -> Callable[..., Any]:
        forward = importlib.import_module("attention_core.dialects.torch").multi_head_attention_forward
        eye = self.torch.eye(heads * depth, dtype=dtype)
        weights = {"in_proj_weight": self.torch.cat([eye, eye, eye]), "out_proj_weight": eye}
        absent = dict.fromkeys(("in_proj_bias", "bias_k", "bias_v", "out_proj_bias"))

        def call(query: Any, key: Any, value: Any, **arguments: Any) -> Any:
            lengths_first = (x.swapaxes(0, 1) for x in (query, key, value))
            fixed = {"embed_dim_to_check": heads * depth, "num_heads": heads, "add_zero_attn": False, "dropout_p": 0.0}
            out, found = forward(*lengths_first, **fixed, **weights, **absent, **arguments)
            return out.swapaxes(0, 1), found

        return call


class OnnxDialect(Onnx):
    """`attention_np.dialects.onnx.Attention`."""

    name = "dialect.onnx"

    def _evaluate(self, inputs: Mapping[str, np.ndarray], attributes: Mapping[str, Any], mode: int) -> Any:
        attention = importlib.import_module("attention_np.dialects.onnx").Attention
        found = attention(**inputs, **attributes, qk_matmul_output_mode=mode, opset=self.opset)
        return found.Y, found.qk_matmul_output


class MlxDialect(Mlx):
    """`attention_np.dialects.mlx`."""

    name = "dialect.mlx"
    version = "ours"

    def __init__(self) -> None:
        self.module = importlib.import_module("attention_np.dialects.mlx")

    def attend(self, query: np.ndarray, key: np.ndarray, value: np.ndarray, **arguments: Any) -> np.ndarray:
        """Call our `scaled_dot_product_attention`."""
        out: np.ndarray = self.module.scaled_dot_product_attention(query, key, value, **arguments)
        return out


class FlashAttentionDialect(FlashAttention):
    """`attention_np.dialects.flash_attention`."""

    name = "dialect.flash-attention"
    version = "ours"

    def __init__(self) -> None:
        self.module = importlib.import_module("attention_np.dialects.flash_attention")

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, **settings: Any) -> tuple[Any, Any]:
        """Call our `flash_attn_func`."""
        out, lse, _ = self.module.flash_attn_func(q, k, v, **settings, return_attn_probs=True)
        return out, lse

    def attend_packed(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, *offsets: np.ndarray, **settings: Any
    ) -> tuple[Any, Any]:
        """Call our `flash_attn_varlen_func`."""
        arguments = {**settings, "return_attn_probs": True}
        out, lse, _ = self.module.flash_attn_varlen_func(q, k, v, *offsets, 0, 0, **arguments)
        return out, lse
