"""Attention with four separate projections, under whatever names a checkpoint gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ..arrays import Array
from .headed import Headed, KeysValues, check_heads, heads_of, shape_of
from .layer import Parameter, check_optional, option
from .linear import Linear
from .named import check_named, named_arrays, under
from .options import count, finite, flag, optional

__all__ = ["ProjectedAttention"]

PARTS = ("query", "key", "value", "out")
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


def _four(name: str, value: Any) -> tuple[str, str, str, str]:
    """Return the names of query, key, value and out."""
    if not isinstance(value, (tuple, list)) or not all(isinstance(part, str) for part in value) or len(set(value)) != 4:
        raise ValueError(f"`{name}` must be four names, of query, key, value and out; got {value!r}")
    first, second, third, last = value
    return first, second, third, last


@dataclass(frozen=True, eq=False)
class ProjectedAttention(Headed):
    """``out(softmax(scale x W_q^T (x_2 W_k^T)^T) x_2 W_v^T)`` by heads: ``x (..., L, d_in)`` to ``(..., L, d_out)``.

    The inner width ``num_heads * d_head`` may differ from ``d_in`` and ``d_in_2``, those of ``x`` and ``x_2``.
    ``names`` are the checkpoint's for the four parts, query, key, value, out; which have a bias, the weights tell:

    - ``("q_proj", "k_proj", "v_proj", "out_proj")``, the default: BART, Whisper, CLIP, OPT
    - ``("to_q", "to_k", "to_v", "to_out.0")``: the ``Attention`` of diffusers, Stable Diffusion's cross-attention
    - ``("self.query", "self.key", "self.value", "output.dense")``: BERT, RoBERTa

    ``scale`` is ``1 / sqrt(d_head)`` by default. ``causal`` hides later positions: a decoder's self-attention.
    ``layer.keys_values(x_2)`` projects what many calls attend to once: an encoder's output, a prompt.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> sizes = dict(d_in=8, d_in_2=6, num_heads=3, d_head=4)
    >>> layer = attention.init(attention.ProjectedAttention, np.random.default_rng(0), **sizes)
    >>> image, prompt = np.ones((2, 16, 8)), np.ones((2, 5, 6))
    >>> layer(image, prompt).shape
    (2, 16, 8)
    """

    query: Linear
    key: Linear
    value: Linear
    out: Linear
    num_heads: int = option(count)
    names: tuple[str, str, str, str] = option(_four, default=NAMES)
    scale: float | None = option(optional(finite), default=None)
    causal: bool = option(flag, default=False)

    size_names: ClassVar[tuple[str, ...]] = ("d_in", "num_heads", "d_head")

    @classmethod
    def parameters(
        cls,
        *,
        d_in_2: int | None = None,
        d_out: int | None = None,
        bias: bool = True,
        names: tuple[str, str, str, str] = NAMES,
        scale: float | None = None,
        causal: bool = False,
        **sizes: Any,
    ) -> dict[str, Parameter]:
        """Return the laws of ``nn.Linear`` for the four parts."""
        d_in, heads, d_head = cls.check_sizes(sizes).values()
        check_optional(d_in_2=d_in_2, d_out=d_out)
        answers = d_in if d_in_2 is None else d_in_2
        depths = (d_in, answers, answers, heads * d_head)
        widths = (*[heads * d_head] * 3, d_in if d_out is None else d_out)
        return {
            f"{name}.{part}": parameter
            for name, d, width in zip(_four("names", names), depths, widths, strict=True)
            for part, parameter in Linear.parameters(bias=bias, d_in=d, d_out=width).items()
        }

    @classmethod
    def from_state_dict(
        cls,
        weights: Mapping[str, Array],
        *,
        num_heads: int,
        names: tuple[str, str, str, str] = NAMES,
        scale: float | None = None,
        causal: bool = False,
    ) -> Self:
        """Make the layer of a checkpoint's weights by their names below the layer's."""
        names = _four("names", names)
        query, key, _, out = (shape_of(weights, f"{name}.weight") for name in names)
        inner, values = query[0], shape_of(weights, f"{names[2]}.weight")[0]
        check_heads(inner, num_heads)
        check_heads(values, num_heads)
        shapes = (query, (inner, key[1]), (values, key[1]), (out[0], values))
        check_named(weights, _linears(names, shapes, weights))
        parts = {part: Linear.from_state_dict(under(name, weights)) for part, name in zip(PARTS, names, strict=True)}
        return cls(**parts, num_heads=num_heads, names=names, scale=scale, causal=causal)

    def state_dict(self) -> dict[str, Array]:
        """Return the weights by the names that the layer was loaded with."""
        renamed = dict(zip(PARTS, self.names, strict=True))
        parts = ((name.split("."), array) for name, array in named_arrays(self).items())
        return {f"{renamed[part]}.{which}": array for (part, which), array in parts}

    def queries(self, x: Array) -> Array:
        return heads_of(self.query, self.num_heads, "x", x)

    def keys_values(self, x_2: Array) -> KeysValues:
        return KeysValues(*(heads_of(linear, self.num_heads, "x_2", x_2) for linear in (self.key, self.value)))

    def cached_sizes(self) -> tuple[int, int, int]:
        keys, values = (part.weight.shape[0] // self.num_heads for part in (self.key, self.value))
        return self.num_heads, keys, values

    def project_out(self, x: Array) -> Array:
        return self.out(x)


def _linears(
    names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], weights: Mapping[str, Array]
) -> dict[str, Parameter]:
    """What is expected: a weight each, and a bias where there is one."""
    expected = {}
    for name, shape in zip(names, shapes, strict=True):
        expected[f"{name}.weight"] = Parameter(shape)
        if f"{name}.bias" in weights:
            expected[f"{name}.bias"] = Parameter(shape[:1])
    return expected
