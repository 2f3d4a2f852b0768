"""The attention of most decoders since Llama 2: grouped key and value heads (Ainslie et al. 2023), and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Self, TypeVar

from ..arrays import Array, cast, compute_dtype
from ..attention import dot_product_attention
from ..cache import Cache, SlidingCache
from ..cache.positions import real
from ..masks import Mask, sliding_window
from ..rotary import Rotary
from ..rotary.rotate import rotate_alike
from ..values import static_int
from .decoding import Decoding, check_decoding, decoding_positions, empty_cache
from .grouped_query_weights import check_weights, parameters_of
from .layer import Layer, Parameter, check_inputs, option
from .linear import Linear, join_heads, split_heads
from .named import named_arrays, under, without
from .norm import RMSNorm
from .options import count, finite, flag, not_negative, optional, positive, rotation

__all__ = ["GroupedQueryAttention"]

K = TypeVar("K", bound=Cache)


@dataclass(frozen=True, eq=False)
class GroupedQueryAttention(Layer):
    """``num_heads`` query heads that share ``num_kv_heads`` key and value heads, with the options of today's models.

    In this order: projections; with ``q_norm`` and ``k_norm``, RMS normalisation of each head (Qwen 3, Gemma 3), or of
    all heads as one vector where the weights are that long (OLMo 2); rotation; attention; with a gate, times its
    sigmoid; output projection. Multi-query attention is ``num_kv_heads=1``. ``docs/models.md`` says which options make
    which model.

    Weights have Hugging Face's names: ``q_proj.weight (num_heads * d_head, d_in)``, ``k_proj``, ``v_proj``, ``o_proj``,
    each with an optional bias; ``q_norm.weight``, ``k_norm.weight``; ``sinks (num_heads,)`` (gpt-oss);
    ``gate_proj.weight (num_heads * d_value, d_in)``, or ``(num_heads, d_in)`` for one number a head.

    Options:
        num_heads, num_kv_heads: query heads, and key and value heads, which divide them.
        rotary: a :class:`Rotary`, or ``None`` for no rotation.
        window: each query sees ``window`` keys, itself among them (Mistral's "sliding window"); not causal, as many on
            either side.
        softcap: a cap of the scores (Gemma 2).
        scale: a factor of the scores, by default ``1 / sqrt(d_head)``.
        causal: whether a query sees only what is not behind it.
        query_gate: ``q_proj`` gives each head its query and then its gate, and is twice as wide (Qwen 3-Next).

    >>> import numpy as np
    >>> import attention_np as attention
    >>> rng, sizes = np.random.default_rng(0), {"d_in": 12, "num_heads": 4, "num_kv_heads": 2, "d_head": 6}
    >>> layer = attention.init(attention.GroupedQueryAttention, rng, **sizes, rotary=attention.Rotary())
    >>> layer(np.ones((5, 12))).shape
    (5, 12)
    """

    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear
    q_norm: RMSNorm | None = None
    k_norm: RMSNorm | None = None
    gate_proj: Linear | None = None
    sinks: Array | None = None
    num_heads: int = option(count, kw_only=True)
    num_kv_heads: int = option(count, kw_only=True)
    rotary: Rotary | None = option(optional(rotation), default=None, kw_only=True)
    window: int | None = option(optional(count), default=None, kw_only=True)
    softcap: float | None = option(optional(positive), default=None, kw_only=True)
    scale: float | None = option(optional(finite), default=None, kw_only=True)
    causal: bool = option(flag, default=True, kw_only=True)
    query_gate: bool = option(flag, default=False, kw_only=True)

    size_names: ClassVar[tuple[str, ...]] = ("d_in", "num_heads", "num_kv_heads", "d_head")

    @classmethod
    def parameters(
        cls,
        *,
        bias: bool = False,
        out_bias: bool | None = None,
        qk_norm: bool = False,
        sinks: bool = False,
        gate: bool = False,
        **sizes: Any,
    ) -> dict[str, Parameter]:
        """Return the weights of the sizes ``d_in``, ``num_heads``, ``num_kv_heads``, ``d_head``, and of the switches.

        ``bias`` is that of all projections, ``out_bias`` that of the last where it differs; ``gate`` asks for
        ``gate_proj``. Options may stand beside them.
        """
        options = {name: sizes.pop(name) for name in cls.option_names() if name in sizes and name not in cls.size_names}
        numbers: dict[str, Any] = cls.check_sizes({"num_kv_heads": sizes.get("num_heads"), **sizes})
        switches = {"bias": bias, "out_bias": bias if out_bias is None else out_bias, "qk_norm": qk_norm}
        switches |= {"sinks": sinks, "gate": gate, "query_gate": bool(options.get("query_gate"))}
        return parameters_of(**numbers, **switches)

    @classmethod
    def from_state_dict(
        cls,
        weights: Mapping[str, Array],
        *,
        num_heads: int,
        num_kv_heads: int | None = None,
        norm_eps: float = 1e-6,
        norm_offset: float = 0.0,
        **options: Any,
    ) -> Self:
        """Make the layer of named weights; which of the optional ones there are, the names tell.

        ``num_kv_heads`` is by default ``num_heads``; ``norm_eps`` and ``norm_offset`` are those of :class:`RMSNorm`
        (Gemma 3: ``norm_offset=1.0``); the other options are the layer's.
        """
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        weights = without(weights, "rotary_emb.inv_freq")  # Llama's first checkpoints hold it
        check_weights(weights, num_heads, num_kv_heads, flag("query_gate", options.get("query_gate", False)))
        norm: dict[str, Any] = {"eps": not_negative("norm_eps", norm_eps), "offset": finite("norm_offset", norm_offset)}
        parts: dict[str, Any] = {name: weights[name] for name in ("sinks",) if name in weights}
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj"):
            if f"{name}.weight" in weights:
                parts[name] = Linear.from_state_dict(under(name, weights))
        for name in ("q_norm", "k_norm"):
            if f"{name}.weight" in weights:
                parts[name] = RMSNorm.from_state_dict(under(name, weights), **norm)
        return cls(**parts, num_heads=num_heads, num_kv_heads=num_kv_heads, **options)

    def state_dict(self) -> dict[str, Array]:
        return named_arrays(self)

    def new_cache(self, kind: type[K], *, batch: tuple[int, ...] = (), **sizes: int) -> K:
        """Return an empty cache of a class of ``cache`` for this layer, of the library and dtype of its weights.

        ``sizes`` are the class's own: ``capacity`` of ``StaticCache``, ``page_size`` of ``PagedCache`` and so on.
        """
        own = {"window": self.window} if self.window is not None and kind is SlidingCache else {}
        depths = (p.weight.shape[0] // self.num_kv_heads for p in (self.k_proj, self.v_proj))
        return empty_cache(kind, self.k_proj.weight, batch, (self.num_kv_heads, *depths), own | sizes)

    def __call__(
        self,
        x: Array,
        *,
        mask: Any = None,
        bias: Any = None,
        positions: int | Array | None = None,
        lengths: int | Array | None = None,
        padding: str = "right",
        cache: Cache | None = None,
        dropout: Any = None,
        impl: str = "auto",
    ) -> Any:
        """Return ``(..., L, d_out)`` of ``x (..., L, d_in)``; with a cache ``(out, cache)``, the cache longer by ``L``.

        ``mask`` further narrows what causality and window leave. ``positions`` are those of the tokens: an integer for
        the first, or integers ``(..., L)``; by default they count from 0, or from where the cache ends. In a padded
        batch ``lengths (...)`` tokens of each item are real, the first ones or, with ``padding="left"``, the last:
        padding is seen by nobody, counts for no position, and its rows of the output mean nothing.
        """
        state = check_weights(self.state_dict(), self.num_heads, self.num_kv_heads, self.query_gate)
        xp = check_inputs(self.q_proj.weight.shape[-1], state, {"x": x})
        decoding: Decoding = {"cache": cache, "lengths": lengths, "padding": padding}
        if cache is not None or lengths is not None or padding != "right":
            given = {"positions": positions, "dropout": dropout, "mask": mask}
            check_decoding(x, self.causal, given, decoding, self.window)
            positions = decoding_positions(x, decoding)
        positions = 0 if positions is None else positions
        query, key, value, gate = self._project(xp, x, positions)
        call: dict[str, Any] = {"mask": self._mask(mask), "bias": bias, "scale": self.scale}
        call |= {"softcap": self.softcap, "sinks": self.sinks, "impl": impl}
        if cache is not None:
            out, cache = cache.attend(query, key, value, lengths=lengths, padding=padding, **call)
            return self._project_out(xp, out, gate), cache
        if lengths is not None:
            call["mask"] = real() if call["mask"] is None else real() & call["mask"]
        call |= {"query_positions": positions, "key_positions": positions, "dropout": dropout}
        return self._project_out(xp, dot_product_attention(query, key, value, **call), gate)

    def _mask(self, mask: Any) -> Mask | None:
        reach = None if self.window is None else static_int("window", self.window, least=1) - 1
        right = 0 if self.causal else reach
        own = None if reach is None and right is None else sliding_window(reach, right)
        if own is None or mask is None:
            return own if mask is None else mask
        return own & mask

    def _project(self, xp: ModuleType, x: Array, positions: Any) -> tuple[Array, Array, Array, Array | None]:
        """Return query ``(..., Hq, L, D)``, key, value, and the gate, which broadcasts to the output's heads."""
        key, value = (split_heads(xp, proj(x), self.num_kv_heads) for proj in (self.k_proj, self.v_proj))
        query, gate = split_heads(xp, self.q_proj(x), self.num_heads), None
        if self.query_gate:
            depth = key.shape[-1]
            query, gate = query[..., :depth], query[..., depth:]
        elif self.gate_proj is not None:
            gate = split_heads(xp, self.gate_proj(x), self.num_heads)
        query, key = _normed(xp, query, self.q_norm), _normed(xp, key, self.k_norm)
        if self.rotary is not None:
            query, key = rotate_alike(xp, (query, key), positions, self.rotary)
        return query, key, value, gate

    def _project_out(self, xp: ModuleType, out: Array, gate: Array | None) -> Array:
        return self.o_proj(join_heads(xp, out if gate is None else _gated(xp, out, gate)))


def _normed(xp: ModuleType, heads: Array, norm: RMSNorm | None) -> Array:
    """Normalise each head, or all of them as one vector where the weights are that long."""
    if norm is None:
        return heads
    if norm.weight.shape[0] == heads.shape[-1]:
        return norm(heads)
    return split_heads(xp, norm(join_heads(xp, heads)), heads.shape[-3])


def _gated(xp: ModuleType, out: Array, gate: Array) -> Array:
    """Return ``out * sigmoid(gate)``, without an overflow on either side."""
    wide = cast(xp, gate, compute_dtype(xp, gate.dtype))
    small = xp.exp(-xp.abs(wide))
    sigmoid = xp.where(wide >= 0, 1 / (1 + small), small / (1 + small))
    return cast(xp, out * sigmoid, out.dtype)
