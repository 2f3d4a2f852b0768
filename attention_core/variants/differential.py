"""Differential attention (Ye et al. 2024): the difference of two softmax maps, so that what both see cancels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from types import ModuleType
from typing import Any, ClassVar, Self, TypeVar, Unpack

from ..arrays import Array, array_namespace, cast, compute_dtype, device_of
from ..cache import Cache
from ..problem import Result
from ..rotary import Rotary, rotate
from .decoding import Decoding, attend_decoding, check_decoding, decoding_positions, empty_cache
from .headed import HeadedCall, KeysValues, attention_result, check_heads, heads_of, shape_of, with_causal
from .layer import Layer, Normal, Parameter, Uniform, check_optional, option
from .linear import Linear, join_heads
from .named import check_named, named_arrays, under
from .norm import RMSNorm
from .options import count, finite, flag, not_negative, one_of, optional, rotation, text

__all__ = ["DifferentialAttention", "lambda_init_of"]

K = TypeVar("K", bound=Cache)

LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
PROJECTIONS = ("q_proj", "k_proj", "v_proj")
OUTPUTS = ("out_proj", "o_proj")
PAIRINGS = ("neighbours", "halves")


def lambda_init_of(layer: int) -> float:
    """Return the paper's ``0.8 - 0.6 exp(-0.3 layer)``, for layers counted from 0.

    >>> from attention_core.variants import lambda_init_of
    >>> round(lambda_init_of(0), 3), round(lambda_init_of(11), 3)
    (0.2, 0.778)
    """
    return 0.8 - 0.6 * exp(-0.3 * layer)


@dataclass(frozen=True, eq=False, kw_only=True)
class DifferentialAttention(Layer):
    """``out((1 - lambda_init) norm((softmax(q_1 k_1^T) - lambda softmax(q_2 k_2^T)) v))``, head by head.

    ``lambda = exp(lambda_q1 . lambda_k1) - exp(lambda_q2 . lambda_k2) + lambda_init``. Each of ``num_heads`` has two
    queries and two keys of depth ``d``, and one value of depth ``2 d``, which is normalised by its root mean square;
    ``num_kv_heads`` of them share keys and values in groups. The weights are those of the paper's own module
    (``subln.weight`` is the norm's, ``out_proj`` the output's) or of DiffLlama (no weight, ``o_proj``).

    ``pairing`` says which heads of the projections are the two of a pair: ``"neighbours"``, 2 h and 2 h + 1, in the
    paper's module, or ``"halves"``, h and h + num_heads, in DiffLlama. ``lambda_init`` is ``lambda_init_of(layer)``.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> rng, sizes = np.random.default_rng(0), {"d_in": 12, "num_heads": 3, "d_head": 2}
    >>> layer = attention.init(attention.DifferentialAttention, rng, **sizes)
    >>> layer(np.ones((5, 12))).shape
    (5, 12)
    """

    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    out_proj: Linear
    lambda_q1: Array
    lambda_k1: Array
    lambda_q2: Array
    lambda_k2: Array
    subln: RMSNorm | None = None
    num_heads: int = option(count)
    num_kv_heads: int | None = option(optional(count), default=None)
    lambda_init: float = option(finite, default=0.8)
    pairing: str = option(one_of(*PAIRINGS), default="neighbours")
    out_name: str = option(text, default="out_proj")
    rotary: Rotary | None = option(optional(rotation), default=None)
    norm_eps: float = option(not_negative, default=1e-5)
    causal: bool = option(flag, default=True)

    size_names: ClassVar[tuple[str, ...]] = ("d_in", "num_heads", "d_head")

    @classmethod
    def parameters(
        cls,
        *,
        num_kv_heads: int | None = None,
        out_name: str = "out_proj",
        bias: bool = False,
        norm_weight: bool = True,
        **sizes: Any,
    ) -> dict[str, Parameter]:
        """Return the laws of ``nn.Linear``, ``lambda_*`` of deviation 0.1, and a norm that changes nothing."""
        options = {name for name in cls.option_names() if name not in cls.size_names}
        d_in, heads, depth = cls.check_sizes({n: size for n, size in sizes.items() if n not in options}).values()
        check_optional(num_kv_heads=num_kv_heads)
        groups = heads if num_kv_heads is None else num_kv_heads
        if heads % groups:
            raise ValueError(f"`num_kv_heads` is {groups}, which does not divide the {heads} of `num_heads`")
        widths = (2 * heads * depth, 2 * groups * depth, 2 * groups * depth)
        linears = {name: (d_in, width) for name, width in zip(PROJECTIONS, widths, strict=True)}
        expected = {
            f"{name}.{part}": parameter
            for name, (d, width) in (linears | {out_name: (2 * heads * depth, d_in)}).items()
            for part, parameter in Linear.parameters(bias=bias, d_in=d, d_out=width).items()
        }
        expected |= {name: Parameter((depth,), Normal(0.1)) for name in LAMBDAS}
        return expected | ({"subln.weight": Parameter((2 * depth,), Uniform(1.0, 1.0))} if norm_weight else {})

    @classmethod
    def from_state_dict(
        cls,
        weights: Mapping[str, Array],
        *,
        num_heads: int,
        num_kv_heads: int | None = None,
        out_name: str | None = None,
        **options: Any,
    ) -> Self:
        """Make the layer of named weights; ``options`` are the layer's, whether there are biases the names tell."""
        out = out_name or next((name for name in OUTPUTS if f"{name}.weight" in weights), OUTPUTS[0])
        width, d_in = shape_of(weights, "q_proj.weight")
        check_heads(width, num_heads)
        expected = cls.parameters(
            d_in=d_in,
            num_heads=num_heads,
            d_head=shape_of(weights, "lambda_q1", ndim=1)[0],
            num_kv_heads=num_kv_heads,
            out_name=out,
            bias="q_proj.bias" in weights,
            norm_weight="subln.weight" in weights,
        )
        check_named(weights, expected)
        parts: dict[str, Any] = {name: Linear.from_state_dict(under(name, weights)) for name in PROJECTIONS}
        parts |= {"out_proj": Linear.from_state_dict(under(out, weights))} | {name: weights[name] for name in LAMBDAS}
        if "subln.weight" in weights:
            eps = not_negative("norm_eps", options.get("norm_eps", 1e-5))
            parts["subln"] = RMSNorm.from_state_dict(under("subln", weights), eps=eps)
        return cls(**parts, num_heads=num_heads, num_kv_heads=num_kv_heads, out_name=out, **options)

    def state_dict(self) -> dict[str, Array]:
        """Return the weights by the names that the layer was loaded with."""
        named = named_arrays(self).items()
        return {
            self.out_name + name.removeprefix("out_proj") if name.startswith("out_proj") else name: x
            for name, x in named
        }

    def factor(self) -> Array:
        """Return ``lambda``, the factor of the second map, in the compute dtype."""
        xp = array_namespace(*((name, getattr(self, name)) for name in LAMBDAS))
        q1, k1, q2, k2 = (cast(xp, x, compute_dtype(xp, x.dtype)) for x in (getattr(self, name) for name in LAMBDAS))
        return xp.exp(xp.sum(q1 * k1)) - xp.exp(xp.sum(q2 * k2)) + self.lambda_init

    def __call__(
        self,
        x: Array,
        *,
        cache: Cache | None = None,
        lengths: int | Array | None = None,
        padding: str = "right",
        return_weights: bool = False,
        **call: Unpack[HeadedCall],
    ) -> Any:
        """Return ``(..., L, d_in)``; with ``return_weights`` a ``Result`` with the difference of the two maps.

        ``x`` stands at ``query_positions``. The other arguments are those of :func:`dot_product_attention`. With a
        cache ``(out, cache)``; in a padded batch ``lengths (...)`` tokens of each item are real, the first ones or,
        with ``padding="left"``, the last.
        """
        if cache is not None or lengths is not None or padding != "right":
            if return_weights:
                raise ValueError("`return_weights` does not go with `cache` and `lengths`")
            return self._decode(x, call, {"cache": cache, "lengths": lengths, "padding": padding})
        if "key_positions" in call:
            raise ValueError("`key_positions` was given, but `x` attends to itself, at `query_positions`")
        positions = call["key_positions"] = call.get("query_positions", 0)
        queries, keys, values = self._project(x, positions)
        call = with_causal(call) if self.causal else call
        first, second = (
            attention_result(query, KeysValues(key, values), None, return_weights, call)
            for query, key in zip(queries, keys, strict=True)
        )
        out = self._out(x, first.out, second.out)
        return Result(out, None, first.weights - self.factor() * second.weights) if return_weights else out

    def new_cache(self, kind: type[K], *, batch: tuple[int, ...] = (), **sizes: int) -> K:
        """Return an empty cache of a class of ``cache`` for this layer; ``sizes`` are the class's own.

        It holds both keys of a head side by side.
        """
        width = 2 * self.lambda_q1.shape[0]
        return empty_cache(kind, self.q_proj.weight, batch, (self._groups, width, width), sizes)

    def _decode(self, x: Array, call: HeadedCall, decoding: Decoding) -> Any:
        """Both maps read one key of both: a query is as wide, and 0 where the other's key stands."""
        check_decoding(x, self.causal, call, decoding)
        positions = decoding_positions(x, decoding)
        (first, second), keys, values = self._project(x, positions)
        xp = array_namespace(("x", x))
        nothing, new = xp.zeros_like(first), KeysValues(xp.concat(keys, axis=-1), values)
        wide = [xp.concat(parts, axis=-1) for parts in ((first, nothing), (nothing, second))]
        by_head = any(call.get(name) is not None for name in ("mask", "bias", "dropout"))
        own = with_causal(call) if self.causal else call

        def look(queries: Array) -> tuple[Array, Cache | None]:
            return attend_decoding(queries, new, first.shape[-1] ** -0.5, own, positions, decoding)

        if by_head:  # what tells heads apart means the layer's heads, so each map is a call of its own
            (one, cache), (other, _) = map(look, wide)
        else:
            heads, cache = look(_side_by_side(xp, wide, self._groups))
            one, other = _apart(xp, heads, self._groups)
        out = self._out(x, one, other)
        return out if cache is None else (out, cache)

    @property
    def _groups(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    def _project(self, x: Array, positions: Any) -> tuple[tuple[Array, Array], tuple[Array, Array], Array]:
        """Return both queries ``(..., H, L, d)``, both keys ``(..., Hkv, L, d)``, and values ``(..., Hkv, L, 2 d)``."""
        queries, keys, values = (
            heads_of(linear, 2 * count, "x", x)
            for linear, count in zip(
                (self.q_proj, self.k_proj, self.v_proj), (self.num_heads, self._groups, self._groups), strict=True
            )
        )
        if self.rotary is not None:
            queries, keys = (rotate(heads, positions, self.rotary) for heads in (queries, keys))
        xp = array_namespace(("x", x))
        return self._pair(queries), self._pair(keys), xp.concat(self._pair(values), axis=-1)

    def _out(self, x: Array, first: Array, second: Array) -> Array:
        xp = array_namespace(("x", x))
        return self.out_proj(join_heads(xp, self._normed(xp, first, second)))

    def _pair(self, heads: Array) -> tuple[Array, Array]:
        """Return the first and the second of each pair of heads, ``(..., H, L, d)`` of ``(..., 2 H, L, d)``."""
        half = heads.shape[-3] // 2
        if self.pairing == "halves":
            return heads[..., :half, :, :], heads[..., half:, :, :]
        return heads[..., 0::2, :, :], heads[..., 1::2, :, :]

    def _normed(self, xp: ModuleType, first: Array, second: Array) -> Array:
        wide = compute_dtype(xp, first.dtype)
        difference = cast(xp, first, wide) - cast(xp, self.factor(), wide) * cast(xp, second, wide)
        ones = xp.ones((difference.shape[-1],), dtype=wide, device=device_of(xp, difference))
        norm = RMSNorm(ones, self.norm_eps) if self.subln is None else self.subln
        return cast(xp, (1 - self.lambda_init) * norm(difference), first.dtype)


def _side_by_side(xp: ModuleType, maps: list[Array], groups: int) -> Array:
    """Two of ``(..., H, L, d)`` as ``(..., 2 H, L, d)``, in which the heads of a group stay together."""
    *batch, heads, length, depth = maps[0].shape
    by_group = [xp.reshape(each, (*batch, groups, heads // groups, length, depth)) for each in maps]
    return xp.reshape(xp.concat(by_group, axis=-3), (*batch, 2 * heads, length, depth))


def _apart(xp: ModuleType, both: Array, groups: int) -> list[Array]:
    *batch, heads, length, depth = both.shape
    by_group = xp.reshape(both, (*batch, groups, 2, heads // 2 // groups, length, depth))
    shape = (*batch, heads // 2, length, depth)
    return [xp.reshape(by_group[..., n, :, :, :], shape) for n in range(2)]
