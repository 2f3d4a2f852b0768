"""BLOOM's attention: ALiBi, and a projection that holds query, key and value head by head (BigScience 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ..arrays import Array
from ..biases import alibi
from .fused import Fused
from .headed import HeadedCall, check_heads, heads_of, shape_of
from .layer import Normal, Parameter, option
from .linear import Linear
from .named import check_named, named_arrays, under
from .options import count, finite, flag, optional

__all__ = ["BloomAttention"]


@dataclass(frozen=True, eq=False)
class BloomAttention(Fused):
    """``dense(softmax(q k^T / sqrt(d) - slope_h |i - j|) v)``, causal, for any number of heads.

    BLOOM and BLOOMZ by the names of their checkpoints. ``query_key_value`` gives, for each head, its query, then its
    key, then its value. BLOOM itself adds ``slope_h * j``: in a causal row that differs by a constant alone. The
    residual connection, which BLOOM's own module adds, is the caller's.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> layer = attention.init(attention.BloomAttention, np.random.default_rng(0), hidden_size=6, num_heads=3)
    >>> layer(np.ones((2, 4, 6))).shape
    (2, 4, 6)
    """

    query_key_value: Linear
    dense: Linear
    num_heads: int = option(count)
    scale: float | None = option(optional(finite), default=None)
    causal: bool = option(flag, default=True)

    size_names: ClassVar[tuple[str, ...]] = ("hidden_size", "num_heads")

    @classmethod
    def parameters(cls, *, scale: float | None = None, causal: bool = True, **sizes: Any) -> dict[str, Parameter]:
        """Return BLOOM's laws: weights of deviation 0.02, biases of 0."""
        width, heads = cls.check_sizes(sizes).values()
        check_heads(width, heads)
        rows = {"query_key_value": 3 * width, "dense": width}
        return {
            f"{name}.{part}": Parameter(shape, law)
            for name, count in rows.items()
            for part, shape, law in (("weight", (count, width), Normal(0.02)), ("bias", (count,), Normal(0.0)))
        }

    @classmethod
    def from_state_dict(
        cls, weights: Mapping[str, Array], *, num_heads: int, scale: float | None = None, causal: bool = True
    ) -> Self:
        """Make the layer of a checkpoint's ``self_attention``."""
        _, width = shape_of(weights, "query_key_value.weight")
        check_named(weights, cls.parameters(hidden_size=width, num_heads=num_heads))
        fused, dense = (Linear.from_state_dict(under(name, weights)) for name in ("query_key_value", "dense"))
        return cls(fused, dense, num_heads, scale, causal)

    def state_dict(self) -> dict[str, Array]:
        """Return the weights by the checkpoint's names."""
        return named_arrays(self)

    def fused(self, x: Array, name: str = "x") -> tuple[Array, Array, Array]:
        heads = heads_of(self.query_key_value, self.num_heads, name, x)
        depth = heads.shape[-1] // 3
        return heads[..., :depth], heads[..., depth : 2 * depth], heads[..., 2 * depth :]

    def cached_sizes(self) -> tuple[int, int, int]:
        depth = self.dense.weight.shape[-1] // self.num_heads
        return self.num_heads, depth, depth

    def project_out(self, x: Array) -> Array:
        return self.dense(x)

    def with_own(self, call: HeadedCall) -> HeadedCall:
        call = super().with_own(call)
        own, given = alibi(self.num_heads), call.get("bias")
        call["bias"] = own if given is None else own + given
        return call
