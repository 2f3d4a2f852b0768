"""Several heads of self-attention side by side, computed as one batched call (Vaswani et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ..arrays import Array, array_namespace
from .layer import NOT_CAUSAL, Layer, Parameter
from .projected import NAMES, Projections, attend, attend_steps, attend_vjp, check_weights, decode, weight_parameters
from .self_attention import SelfAttention

__all__ = ["MultiHeadAttentionWrapper"]


@dataclass(frozen=True, eq=False)
class MultiHeadAttentionWrapper(Layer):
    """``num_heads`` of :class:`SelfAttention`, concatenated on the last axis: ``(..., L, num_heads * d_out_v)``.

    Weights are stacked by head, ``(num_heads, d_in, d)``; ``state_dict`` names them as PyTorch's ``ModuleList`` does,
    ``heads.0.W_query`` and so on.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> rng = np.random.default_rng(0)
    >>> layer = attention.init(attention.MultiHeadAttentionWrapper, rng, d_in=3, d_out_kq=2, d_out_v=1, num_heads=4)
    >>> layer(np.ones((6, 3))).shape
    (6, 4)
    """

    W_query: Array
    W_key: Array
    W_value: Array

    size_names: ClassVar[tuple[str, ...]] = ("d_in", "d_out_kq", "d_out_v", "num_heads")
    no_cache: ClassVar[str] = NOT_CAUSAL

    @classmethod
    def parameters(cls, **sizes: Any) -> dict[str, Parameter]:
        sizes = cls.check_sizes(sizes)
        num_heads = sizes.pop("num_heads")
        heads = [weight_parameters(f"heads.{h}.", **sizes) for h in range(num_heads)]
        return {name: parameter for head in heads for name, parameter in head.items()}

    @classmethod
    def from_state_dict(cls, weights: Mapping[str, Array]) -> Self:
        named = {name.rpartition(".")[0] for name in weights if str(name).startswith("heads.")} if weights else ()
        prefixes = tuple(f"heads.{h}." for h in range(max(1, len(named))))
        check_weights(weights, prefixes)
        xp = array_namespace(*weights.items())
        return cls(*(xp.stack([weights[prefix + name] for prefix in prefixes]) for name in NAMES))

    @property
    def heads(self) -> tuple[SelfAttention, ...]:
        """The heads one by one."""
        return tuple(
            SelfAttention(*(w[h, :, :] for w in (self.W_query, self.W_key, self.W_value)))
            for h in range(self.W_query.shape[0])
        )

    def state_dict(self) -> dict[str, Array]:
        return {f"heads.{h}.{name}": w for h, head in enumerate(self.heads) for name, w in head.state_dict().items()}

    def __call__(self, x: Array, *, lengths: int | Array | None = None, padding: str = "right") -> Array:
        """Return the context vectors ``(..., L, num_heads * d_out_v)`` of ``x (..., L, d_in)``.

        ``lengths`` and ``padding`` are those of :class:`SelfAttention`.
        """
        if lengths is None and padding == "right":
            return attend(self._stacked(), None, {"x": x})
        return decode(self._stacked(), None, x, {"lengths": lengths, "padding": padding})

    def steps(self, x: Array) -> dict[str, Array]:
        """Return the steps of :class:`SelfAttention`, ``(..., num_heads, L, ...)``; context_vec has no head axis."""
        return attend_steps(self._stacked(), None, {"x": x})

    def vjp(self, x: Array) -> tuple[Array, Callable[[Array], tuple[Array, Any]]]:
        """Return the context vectors and their pullback: cotangent to the cotangents of ``x`` and of the layer."""
        out, pullback = attend_vjp(self._stacked(), None, {"x": x})

        def to_inputs(cotangent: Array) -> tuple[Array, Any]:
            dx_1, dx_2, weights = pullback(cotangent)
            return dx_1 + dx_2, type(self)(*weights)

        return out, to_inputs

    def _stacked(self) -> Projections:
        return Projections(self.W_query, self.W_key, self.W_value)
