"""T5's attention: no scale, no biases in its projections, and a learned bias by distance (Raffel et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Self

from ..arrays import Array
from ..biases import Bias, relative
from .headed import Headed, HeadedCall, KeysValues, check_heads, heads_of, shape_of
from .layer import Normal, Parameter, check_optional, option
from .linear import Linear
from .named import check_named, named_arrays, under
from .options import count, flag

__all__ = ["T5Attention"]

TABLE = "relative_attention_bias.weight"


@dataclass(frozen=True, eq=False, kw_only=True)
class T5Attention(Headed):
    """``o(softmax(q(x) k(x_2)^T + table[bucket(j - i)]) v(x_2))``: scores are not scaled, as T5 trains without.

    T5, mT5, Flan-T5, by the names of their checkpoints. ``causal=True`` is the decoder's self-attention: later keys are
    hidden, and all buckets count what lies before. Only the first layer of a stack holds a table; hand the others
    ``bias=first.position_bias()``. A decoder's cross-attention has none, ``layer(x, encoder_output)``.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> layer = attention.init(attention.T5Attention, np.random.default_rng(0), d_model=6, num_heads=2, d_kv=5)
    >>> list(layer.state_dict())
    ['q.weight', 'k.weight', 'v.weight', 'o.weight', 'relative_attention_bias.weight']
    >>> layer(np.ones((4, 6))).shape
    (4, 6)
    """

    q: Linear
    k: Linear
    v: Linear
    o: Linear
    relative_attention_bias: Array | None = None
    num_heads: int = option(count)
    causal: bool = option(flag, default=False)
    max_distance: int = option(count, default=128)

    size_names: ClassVar[tuple[str, ...]] = ("d_model", "num_heads", "d_kv")
    scale: ClassVar[float] = 1.0  # type: ignore[misc]  # no option of this layer

    @classmethod
    def parameters(
        cls,
        *,
        num_buckets: int | None = 32,
        d_model_2: int | None = None,
        causal: bool = False,
        max_distance: int = 128,
        **sizes: Any,
    ) -> dict[str, Parameter]:
        """Return T5's own laws, normal ones whose width makes up for the scale; ``num_buckets=None``: no table."""
        width, heads, depth = cls.check_sizes(sizes).values()
        check_optional(num_buckets=num_buckets, d_model_2=d_model_2)
        answers = width if d_model_2 is None else d_model_2
        inner, law = heads * depth, Normal(1 / sqrt(answers))
        expected = {
            "q.weight": Parameter((inner, width), Normal(1 / sqrt(width * depth))),
            "k.weight": Parameter((inner, answers), law),
            "v.weight": Parameter((inner, answers), law),
            "o.weight": Parameter((width, inner), Normal(1 / sqrt(inner))),
        }
        table = {} if num_buckets is None else {TABLE: Parameter((num_buckets, heads), Normal(1 / sqrt(width)))}
        return expected | table

    @classmethod
    def from_state_dict(
        cls, weights: Mapping[str, Array], *, num_heads: int, causal: bool = False, max_distance: int = 128
    ) -> Self:
        """Make the layer of a checkpoint's weights, ``SelfAttention`` or ``EncDecAttention`` of a block."""
        inner, width = shape_of(weights, "q.weight")
        check_heads(inner, num_heads)
        expected = cls.parameters(
            d_model=width,
            num_heads=num_heads,
            d_kv=inner // num_heads,
            d_model_2=shape_of(weights, "k.weight")[1],
            num_buckets=shape_of(weights, TABLE)[0] if TABLE in weights else None,
        )
        check_named(weights, expected)
        parts = {name: Linear.from_state_dict(under(name, weights)) for name in "qkvo"}
        table = weights.get(TABLE)
        return cls(
            **parts, relative_attention_bias=table, num_heads=num_heads, causal=causal, max_distance=max_distance
        )

    def state_dict(self) -> dict[str, Array]:
        """Return the weights by the checkpoint's names."""
        named = named_arrays(self)
        return {TABLE if name == "relative_attention_bias" else name: array for name, array in named.items()}

    def position_bias(self) -> Bias:
        """Return the bias of this layer's table, which the layers after it share."""
        if self.relative_attention_bias is None:
            raise ValueError("this layer has no `relative_attention_bias`: the first layer of a stack holds it")
        table = self.relative_attention_bias
        return relative(table, bidirectional=not self.causal, max_distance=self.max_distance)

    def queries(self, x: Array) -> Array:
        return heads_of(self.q, self.num_heads, "x", x)

    def keys_values(self, x_2: Array) -> KeysValues:
        return KeysValues(*(heads_of(linear, self.num_heads, "x_2", x_2) for linear in (self.k, self.v)))

    def cached_sizes(self) -> tuple[int, int, int]:
        keys, values = (part.weight.shape[0] // self.num_heads for part in (self.k, self.v))
        return self.num_heads, keys, values

    def project_out(self, x: Array) -> Array:
        return self.o(x)

    def with_own(self, call: HeadedCall) -> HeadedCall:
        call = super().with_own(call)
        if self.relative_attention_bias is not None:
            given = call.get("bias")
            call["bias"] = self.position_bias() if given is None else self.position_bias() + given
        return call
