"""GPT-2's attention: one projection for query, key and value, of weights ``(d_in, d_out)`` (Radford et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ..arrays import Array, array_namespace, transpose
from .fused import Fused
from .headed import KeysValues, check_heads, heads_of, shape_of
from .layer import Layer, Normal, Parameter, option
from .linear import Linear
from .named import check_named, named_arrays, under, without
from .options import count, finite, optional

__all__ = ["Conv1D", "GPT2Attention"]


@dataclass(frozen=True, eq=False)
class Conv1D(Layer):
    """``x weight + bias``, ``weight (d_in, d_out)``: the transpose of ``nn.Linear``'s, by Hugging Face's odd name.

    >>> import numpy as np
    >>> from attention_core.variants import Conv1D
    >>> Conv1D(np.ones((3, 2)), np.asarray([0.0, 1.0]))(np.ones((4, 3)))[0]
    array([3., 4.])
    """

    weight: Array
    bias: Array

    size_names: ClassVar[tuple[str, ...]] = ("d_in", "d_out")

    @classmethod
    def parameters(cls, **sizes: Any) -> dict[str, Parameter]:
        """Return GPT-2's laws: weights of deviation 0.02, biases of 0."""
        sizes = cls.check_sizes(sizes)
        weight = Parameter((sizes["d_in"], sizes["d_out"]), Normal(0.02))
        return {"weight": weight, "bias": Parameter((sizes["d_out"],), Normal(0.0))}

    @classmethod
    def from_state_dict(cls, weights: Mapping[str, Array]) -> Self:
        d_in, d_out = shape_of(weights, "weight")
        check_named(weights, cls.parameters(d_in=d_in, d_out=d_out))
        return cls(**weights)

    def state_dict(self) -> dict[str, Array]:
        return named_arrays(self)

    def linear(self) -> Linear:
        """Return the same map with its weight turned."""
        return Linear(transpose(array_namespace(("weight", self.weight)), self.weight), self.bias)

    def __call__(self, x: Array) -> Array:
        """Return ``(..., d_out)``."""
        return self.linear()(x)


@dataclass(frozen=True, eq=False, kw_only=True)
class GPT2Attention(Fused):
    """``c_proj(softmax(q k^T / sqrt(d)) v)``, causal, where ``c_attn`` gives all queries, all keys, all values.

    GPT-2 by the names of its checkpoint; a saved mask (``bias``, ``masked_bias``) is no weight: drop it.
    ``scale_attn_by_inverse_layer_idx`` is ``scale=1 / sqrt(d) / (layer + 1)``. With ``q_attn`` it is a
    cross-attention, which is not causal: ``c_attn`` then gives keys and values of ``layer(x, x_2)``.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> layer = attention.init(attention.GPT2Attention, np.random.default_rng(0), n_embd=6, num_heads=3)
    >>> layer.state_dict()["c_attn.weight"].shape, layer(np.ones((2, 4, 6))).shape
    ((6, 18), (2, 4, 6))
    """

    c_attn: Conv1D
    q_attn: Conv1D | None = None
    c_proj: Conv1D
    num_heads: int = option(count)
    scale: float | None = option(optional(finite), default=None)

    size_names: ClassVar[tuple[str, ...]] = ("n_embd", "num_heads")

    @property
    def causal(self) -> bool:  # type: ignore[override]  # no option: the weights tell
        """Whether later positions are hidden: in self-attention."""
        return self.q_attn is None

    @classmethod
    def parameters(cls, *, cross: bool = False, scale: float | None = None, **sizes: Any) -> dict[str, Parameter]:
        """Return GPT-2's laws: weights of deviation 0.02, biases of 0."""
        width, heads = cls.check_sizes(sizes).values()
        check_heads(width, heads)
        widths = {"c_attn": 2 * width, "q_attn": width} if cross else {"c_attn": 3 * width}
        return {
            f"{name}.{part}": parameter
            for name, d_out in (widths | {"c_proj": width}).items()
            for part, parameter in Conv1D.parameters(d_in=width, d_out=d_out).items()
        }

    @classmethod
    def from_state_dict(cls, weights: Mapping[str, Array], *, num_heads: int, scale: float | None = None) -> Self:
        """Make the layer of a checkpoint's ``attn``, or ``crossattention``; its causal mask, ``bias``, is left out."""
        weights = without(weights, "bias", "masked_bias")
        width, _ = shape_of(weights, "c_attn.weight")
        cross = bool(under("q_attn", weights))
        check_named(weights, cls.parameters(n_embd=width, num_heads=num_heads, cross=cross))
        names = ("c_attn", *(["q_attn"] if cross else []), "c_proj")
        parts = {name: Conv1D.from_state_dict(under(name, weights)) for name in names}
        return cls(**parts, num_heads=num_heads, scale=scale)

    def state_dict(self) -> dict[str, Array]:
        """Return the weights by the checkpoint's names."""
        return named_arrays(self)

    def fused(self, x: Array, name: str = "x") -> tuple[Array, Array, Array]:
        heads = heads_of(self.c_attn.linear(), 3 * self.num_heads, name, x)
        count = self.num_heads
        return heads[..., :count, :, :], heads[..., count : 2 * count, :, :], heads[..., 2 * count :, :, :]

    def queries(self, x: Array) -> Array:
        if self.q_attn is None:
            return super().queries(x)
        return heads_of(self.q_attn.linear(), self.num_heads, "x", x)

    def keys_values(self, x_2: Array) -> KeysValues:
        if self.q_attn is None:
            return super().keys_values(x_2)
        heads = heads_of(self.c_attn.linear(), 2 * self.num_heads, "x_2", x_2)
        return KeysValues(heads[..., : self.num_heads, :, :], heads[..., self.num_heads :, :, :])

    def project(self, x: Array, x_2: Array | KeysValues | None) -> tuple[Array, KeysValues]:
        if self.q_attn is not None and x_2 is None:
            raise ValueError("this layer has `q_attn`: it is a cross-attention, and needs `x_2`")
        return super().project(x, x_2)

    def cached_sizes(self) -> tuple[int, int, int]:
        depth = self.c_proj.weight.shape[0] // self.num_heads
        return self.num_heads, depth, depth

    def project_out(self, x: Array) -> Array:
        return self.c_proj(x)
