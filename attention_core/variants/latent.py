"""Multi-head latent attention (DeepSeek-V2, 2024): keys and values from one small vector a token, kept by a cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, Unpack

from ..arrays import (
    Array,
    array_namespace,
    broadcast_shapes,
    cast,
    common_dtype,
    compute_dtype,
    describe,
    matmul,
    transpose,
)
from ..cache import Cache
from ..problem import Result
from ..rotary import Rotary, rotate
from ..values import shown
from .decoding import Decoding, attend_decoding, check_decoding, decoding_positions, empty_cache
from .headed import HeadedCall, KeysValues, attention_result, check_heads, heads_of, with_causal
from .latent_weights import parameters_of, sizes_of
from .layer import Layer, Parameter, check_inputs, check_optional, option
from .linear import Linear, join_heads
from .named import check_named, named_arrays, under
from .norm import RMSNorm
from .options import count, finite, flag, not_negative, optional, rotation

__all__ = ["LatentAttention", "Latents"]


K = TypeVar("K", bound=Cache)


class Latents(NamedTuple):
    """What a cache holds of each token, for all heads together: ``kv_lora_rank + qk_rope_head_dim`` numbers.

    ``compressed (..., L, rank)``, normalised, and ``rotated (..., L, d_rope)``, the key's part that turned already.

    >>> import numpy as np
    >>> from attention_core.variants import Latents
    >>> Latents(np.ones((5, 8)), np.ones((5, 2))).rotated.shape
    (5, 2)
    """

    compressed: Array
    rotated: Array

    def __repr__(self) -> str:
        return shown(self, self._fields)


@dataclass(frozen=True, eq=False, kw_only=True)
class LatentAttention(Layer):
    """DeepSeek's attention: ``c = norm(W_a x)`` a token, keys and values ``W_b c`` a head, and a part that turns.

    Scores are ``scale (q_nope . k_nope + rot(q_rope) . rot(k_rope))``, ``scale`` by default
    ``1 / sqrt(d_nope + d_rope)``; ``k_rope`` is one for all heads. Weights have DeepSeek's names: ``q_proj``, or
    ``q_a_proj``, ``q_a_layernorm``, ``q_b_proj``; ``kv_a_proj_with_mqa``, ``kv_a_layernorm``, ``kv_b_proj``,
    ``o_proj``. They tell all sizes but ``num_heads``.

    Two forms of one mathematics, equal to rounding: naive, which makes keys and values of every head, for training and
    long prompts; ``absorbed=True``, which takes ``W_b`` into queries and output and reads the latents as the one key
    and value head of all queries: for decoding, where nothing a head is made of the cache.

    DeepSeek's checkpoints turn neighbouring features: ``rotary=Rotary(interleaved=True)``, the default. With YaRN their
    scale is ``(0.1 m log(factor) + 1)^2 / sqrt(d_nope + d_rope)``, ``m`` the configuration's ``mscale_all_dim``.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> sizes = dict(hidden_size=12, num_heads=3, qk_nope_head_dim=5, qk_rope_head_dim=2, v_head_dim=4, kv_lora_rank=7)
    >>> layer = attention.init(attention.LatentAttention, np.random.default_rng(0), **sizes)
    >>> x = np.random.default_rng(1).normal(size=(6, 12)).astype(np.float32)
    >>> bool(np.allclose(layer(x), layer(x, absorbed=True), atol=1e-6))
    True
    """

    q_proj: Linear | None = None
    q_a_proj: Linear | None = None
    q_a_layernorm: RMSNorm | None = None
    q_b_proj: Linear | None = None
    kv_a_proj_with_mqa: Linear
    kv_a_layernorm: RMSNorm
    kv_b_proj: Linear
    o_proj: Linear
    num_heads: int = option(count)
    rotary: Rotary | None = option(optional(rotation), default=Rotary(interleaved=True))
    scale: float | None = option(optional(finite), default=None)
    causal: bool = option(flag, default=True)

    size_names: ClassVar[tuple[str, ...]] = (
        "hidden_size", "num_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank",
    )  # fmt: skip

    @classmethod
    def parameters(
        cls,
        *,
        q_lora_rank: int | None = None,
        bias: bool = False,
        rotary: Rotary | None = None,
        scale: float | None = None,
        causal: bool = True,
        **sizes: Any,
    ) -> dict[str, Parameter]:
        """Return DeepSeek's laws: weights of deviation 0.02; ``q_lora_rank=None`` projects queries at once."""
        check_optional(q_lora_rank=q_lora_rank)
        return parameters_of(**cls.check_sizes(sizes), q_lora_rank=q_lora_rank, bias=bias)

    @classmethod
    def from_state_dict(
        cls,
        weights: Mapping[str, Array],
        *,
        num_heads: int,
        norm_eps: float = 1e-6,
        **options: Any,
    ) -> Self:
        """Make the layer of a checkpoint's ``self_attn``; ``options`` are ``rotary``, ``scale`` and ``causal``."""
        check_named(weights, parameters_of(**sizes_of(weights, num_heads)))
        eps = not_negative("norm_eps", norm_eps)
        parts: dict[str, Any] = {}
        for name in {each.split(".")[0] for each in weights}:
            own = under(name, weights)
            norm = name.endswith("layernorm")
            parts[name] = RMSNorm.from_state_dict(own, eps=eps) if norm else Linear.from_state_dict(own)
        return cls(**parts, num_heads=num_heads, **options)

    def state_dict(self) -> dict[str, Array]:
        """Return the weights by the checkpoint's names."""
        return named_arrays(self)

    def latents(self, x: Array, positions: int | Array = 0) -> Latents:
        """Return what a cache keeps of ``x (..., L, hidden_size)``, whose tokens stand at ``positions``."""
        check_inputs(self.kv_a_proj_with_mqa.weight.shape[-1], self.kv_a_proj_with_mqa.state_dict(), {"x": x})
        both, rank = self.kv_a_proj_with_mqa(x), self._rank
        rotated = self._turned(both[..., None, :, rank:], positions)
        return Latents(self.kv_a_layernorm(both[..., :rank]), rotated[..., 0, :, :])

    def queries(self, x: Array, positions: int | Array = 0) -> Array:
        """Return the queries ``(..., H, L, d_nope + d_rope)``, their last ``d_rope`` features turned."""
        if self.q_proj is not None:
            heads = heads_of(self.q_proj, self.num_heads, "x", x)
        else:
            first, norm, last = self.q_a_proj, self.q_a_layernorm, self.q_b_proj
            if first is None or norm is None or last is None:
                raise ValueError("a layer needs `q_proj`, or all of `q_a_proj`, `q_a_layernorm` and `q_b_proj`")
            check_inputs(first.weight.shape[-1], first.state_dict(), {"x": x})
            heads = heads_of(last, self.num_heads, "x", norm(first(x)))
        xp, split = array_namespace(("x", heads)), heads.shape[-1] - self._turning
        return xp.concat([heads[..., :split], self._turned(heads[..., split:], positions)], axis=-1)

    def __call__(
        self,
        x: Array,
        latents: Latents | None = None,
        *,
        absorbed: bool = False,
        cache: Cache | None = None,
        lengths: int | Array | None = None,
        padding: str = "right",
        return_weights: bool = False,
        **call: Unpack[HeadedCall],
    ) -> Any:
        """Return ``(..., L, hidden_size)``; with ``return_weights`` a ``Result`` with weights ``(..., H, L, L_2)``.

        ``x`` stands at ``query_positions`` and attends to itself; or to ``latents``, which hold it too, at
        ``key_positions``. The other arguments are those of :func:`dot_product_attention`.

        With a cache, ``(out, cache)``, in the absorbed form: of each token the cache of ``new_cache`` holds one key,
        the latents side by side, and one value, the first of them. In a padded batch ``lengths (...)`` tokens of each
        item are real, the first ones or, with ``padding="left"``, the last.
        """
        if cache is not None or lengths is not None or padding != "right":
            if latents is not None or return_weights:
                raise ValueError("`cache` and `lengths` go with neither `latents` nor weights")
            return self._decode(x, call, {"cache": cache, "lengths": lengths, "padding": padding})
        positions = call.get("query_positions", 0)
        if latents is None:
            if "key_positions" in call:
                raise ValueError("`key_positions` are those of `latents`: `x` attends to itself, at `query_positions`")
            latents, call["key_positions"] = self.latents(x, positions), positions
        _check_latents(latents, self._rank, self._turning)
        queries = self.queries(x, positions)
        if self.causal:
            call = with_causal(call)
        form = self._absorbed if absorbed else self._naive
        return form(queries, latents, return_weights, call)

    def _naive(self, queries: Array, latents: Latents, return_weights: bool, call: HeadedCall) -> Any:
        xp = array_namespace(("queries", queries))
        both = heads_of(self.kv_b_proj, self.num_heads, "latents", latents.compressed)
        nope = queries.shape[-1] - self._turning
        shape = (*both.shape[:-1], latents.rotated.shape[-1])
        shared = xp.broadcast_to(latents.rotated[..., None, :, :], shape)
        keys = xp.concat(_of_one_dtype(xp, both[..., :nope], shared), axis=-1)
        result = attention_result(
            queries, KeysValues(keys, both[..., nope:]), self._scale(queries), return_weights, call
        )
        return self._out(xp, result.out, result.weights, return_weights)

    def new_cache(self, kind: type[K], *, batch: tuple[int, ...] = (), **sizes: int) -> K:
        """Return an empty cache of a class of ``cache``, which holds latents; ``sizes`` are the class's own."""
        shape = (1, self._rank + self._turning, self._rank)
        return empty_cache(kind, self.o_proj.weight, batch, shape, sizes)

    def _decode(self, x: Array, call: HeadedCall, decoding: Decoding) -> Any:
        check_decoding(x, self.causal, call, decoding)
        positions = decoding_positions(x, decoding)
        queries, latents = self.queries(x, positions), self.latents(x, positions)
        wide, shared, to_values = self._absorb(queries, latents)
        call = with_causal(call) if self.causal else call
        heads, cache = attend_decoding(wide, shared, self._scale(queries), call, positions, decoding)
        xp = array_namespace(("x", x))
        out = self.o_proj(join_heads(xp, _product(xp, heads, to_values)))
        return out if cache is None else (out, cache)

    def _absorbed(self, queries: Array, latents: Latents, return_weights: bool, call: HeadedCall) -> Any:
        xp = array_namespace(("queries", queries))
        wide, shared, to_values = self._absorb(queries, latents)
        result = attention_result(wide, shared, self._scale(queries), return_weights, call)
        return self._out(xp, _product(xp, result.out, to_values), result.weights, return_weights)

    def _absorb(self, queries: Array, latents: Latents) -> tuple[Array, KeysValues, Array]:
        """Return queries of latents, the one head of latents that they read, and ``(H, rank, d_v)`` for what comes."""
        xp, split = array_namespace(("queries", queries)), queries.shape[-1] - self._turning
        weight = self.kv_b_proj.weight
        check_heads(weight.shape[0], self.num_heads)
        by_head = xp.reshape(weight, (self.num_heads, -1, weight.shape[-1]))
        inner = _product(xp, queries[..., :split], by_head[:, :split, :])
        wide = xp.concat(_of_one_dtype(xp, inner, queries[..., split:]), axis=-1)
        keys = xp.concat(_of_one_dtype(xp, *latents), axis=-1)[..., None, :, :]
        shared = KeysValues(keys, latents.compressed[..., None, :, :])
        return wide, shared, transpose(xp, by_head[:, split:, :])

    def _out(self, xp: ModuleType, heads: Array, weights: Array | None, return_weights: bool) -> Any:
        out = self.o_proj(join_heads(xp, heads))
        return Result(out, None, weights) if return_weights else out

    def _scale(self, queries: Array) -> float:
        return 1 / sqrt(queries.shape[-1]) if self.scale is None else self.scale

    def _turned(self, x: Array, positions: int | Array) -> Array:
        return x if self.rotary is None else rotate(x, positions, self.rotary)

    @property
    def _rank(self) -> int:
        return int(self.kv_b_proj.weight.shape[-1])

    @property
    def _turning(self) -> int:
        return int(self.kv_a_proj_with_mqa.weight.shape[0]) - self._rank


def _check_latents(latents: Any, rank: int, turning: int) -> None:
    """Raise for what is no latents of a layer."""
    if not isinstance(latents, Latents):
        raise TypeError(f"`latents` must be Latents, as `layer.latents(x)` returns them; got {describe(latents)}")
    for name, x, depth in (("compressed", latents.compressed, rank), ("rotated", latents.rotated, turning)):
        array_namespace((f"latents.{name}", x))
        if x.ndim < 2 or x.shape[-1] != depth or x.shape[-2] != latents.compressed.shape[-2]:
            raise ValueError(f"`latents.{name}` must be (..., L, {depth}), one row a token; got shape {tuple(x.shape)}")


def _product(xp: ModuleType, x: Array, weight: Array) -> Array:
    """``x @ weight``, summed in float32 at least, rounded once."""
    dtype = common_dtype(xp, x.dtype, weight.dtype)
    wide = compute_dtype(xp, dtype)
    return cast(xp, matmul(xp, cast(xp, x, wide), cast(xp, weight, wide)), dtype)


def _of_one_dtype(xp: ModuleType, *arrays: Array) -> list[Array]:
    """Bring the parts of a concatenation to one dtype and one batch."""
    dtype = common_dtype(xp, *(x.dtype for x in arrays))
    batch = broadcast_shapes(*(tuple(x.shape[:-1]) for x in arrays))
    return [xp.broadcast_to(cast(xp, x, dtype), (*batch, x.shape[-1])) for x in arrays]
