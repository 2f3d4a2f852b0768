"""Multi-head attention by the names, options and weights of ``torch.nn.MultiheadAttention`` (Vaswani et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Self, TypeVar, Unpack

from ..arrays import Array, array_namespace, cast, common_dtype, device_of
from ..cache import Cache
from ..problem import Result
from .added_keys import attend_with_added, merged_with_added, widened
from .decoding import Decoding, attend_cache, check_decoding, decoding_positions, empty_cache, padded_call
from .headed import HeadedCall, KeysValues, attention_result, check_heads, heads_of, shape_of
from .layer import Layer, Normal, Parameter, Uniform, check_optional, option
from .linear import Linear, join_heads
from .named import check_named, named_arrays, under
from .options import count, flag

__all__ = ["MultiHeadAttention"]

K = TypeVar("K", bound=Cache)

SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True, eq=False, kw_only=True)
class MultiHeadAttention(Layer):
    """``torch.nn.MultiheadAttention``: ``out_proj(attention(query W_q^T, key W_k^T, value W_v^T))``, head by head.

    ``query (..., L, embed_dim)``, ``key (..., L_2, kdim)``, ``value (..., L_2, vdim)`` give ``(..., L, embed_dim)``.
    The weights are a module's ``state_dict`` as it is. What the module's options are here:

    - ``bias``, ``kdim``, ``vdim``, ``add_bias_kv``: the weights tell. ``add_zero_attn=True``: an option.
    - ``batch_first=False``: the batch axes come first here; hand ``moveaxis(x, 0, 1)`` in and out.
    - ``attn_mask``, ``key_padding_mask``: a ``mask``, where ``True`` = may attend: ``~attn_mask``, and
      ``masks.dense(~key_padding_mask[:, None, None, :])`` or ``masks.key_lengths(lengths)``; numbers are a ``bias``.
      A mask a head, ``(N * num_heads, L, S)``, is reshaped to ``(N, num_heads, L, S)``.
    - ``is_causal``: ``mask=masks.causal()``. ``dropout``: a ``dropout`` value.
    - ``need_weights``: ``return_weights``, those before dropout; ``average_attn_weights``: ``average_weights``.

    The keys that ``add_bias_kv`` and ``add_zero_attn`` append are seen by every query, and have the last columns of the
    weights. A query that sees no key gives ``out_proj(0)``, where the module gives NaN.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> layer = attention.init(attention.MultiHeadAttention, np.random.default_rng(0), embed_dim=12, num_heads=3)
    >>> list(layer.state_dict())
    ['in_proj_weight', 'in_proj_bias', 'out_proj.weight', 'out_proj.bias']
    >>> layer(np.ones((2, 5, 12)), mask=attention.masks.causal()).shape
    (2, 5, 12)
    """

    in_proj_weight: Array | None = None
    q_proj_weight: Array | None = None
    k_proj_weight: Array | None = None
    v_proj_weight: Array | None = None
    in_proj_bias: Array | None = None
    bias_k: Array | None = None
    bias_v: Array | None = None
    out_proj: Linear
    num_heads: int = option(count)
    add_zero_attn: bool = option(flag, default=False)

    size_names: ClassVar[tuple[str, ...]] = ("embed_dim", "num_heads")

    @classmethod
    def parameters(
        cls,
        *,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        **sizes: Any,
    ) -> dict[str, Parameter]:
        """Return the module's shapes and laws: Xavier's for the projections, zeros for the biases."""
        width, heads = cls.check_sizes(sizes).values()
        check_optional(kdim=kdim, vdim=vdim)
        check_heads(width, heads)
        shapes = _projections(width, width if kdim is None else kdim, width if vdim is None else vdim)
        expected = {name: Parameter(shape, _xavier(shape)) for name, shape in shapes.items()}
        if bias:
            expected["in_proj_bias"] = Parameter((3 * width,), Normal(0.0))
        if add_bias_kv:
            expected |= {name: Parameter((1, 1, width), Normal(1 / sqrt(width))) for name in ("bias_k", "bias_v")}
        out = {"weight": Parameter((width, width), Uniform(-1 / sqrt(width), 1 / sqrt(width)))}
        out |= {"bias": Parameter((width,), Normal(0.0))} if bias else {}
        return expected | {f"out_proj.{name}": parameter for name, parameter in out.items()}

    @classmethod
    def from_state_dict(cls, weights: Mapping[str, Array], *, num_heads: int, add_zero_attn: bool = False) -> Self:
        """Make the layer of a module's ``state_dict``; ``num_heads`` and ``add_zero_attn`` are not in it."""
        width, _ = shape_of(weights, "out_proj.weight")
        separate = "in_proj_weight" not in weights and any(name in weights for name in SEPARATE)
        expected = cls.parameters(
            embed_dim=width,
            num_heads=num_heads,
            bias="in_proj_bias" in weights or "out_proj.bias" in weights,
            add_bias_kv="bias_k" in weights or "bias_v" in weights,
            kdim=shape_of(weights, SEPARATE[1])[1] if separate else None,
            vdim=shape_of(weights, SEPARATE[2])[1] if separate else None,
        )
        check_named(weights, expected)
        own = {name: array for name, array in weights.items() if "." not in name}
        out = Linear.from_state_dict(under("out_proj", weights))
        return cls(**own, out_proj=out, num_heads=num_heads, add_zero_attn=add_zero_attn)

    def state_dict(self) -> dict[str, Array]:
        """Return the weights by the module's names, in its order."""
        return named_arrays(self)

    def queries(self, x: Array) -> Array:
        """Return the queries ``(..., H, L, D)`` of ``query``."""
        return heads_of(self._linear(0), self.num_heads, "query", x)

    def keys_values(self, x_2: Array, value: Array | None = None) -> KeysValues:
        """Return keys of ``key`` and values of ``value``, by default of ``key`` too; a later call takes them."""
        keys = heads_of(self._linear(1), self.num_heads, "key", x_2)
        return KeysValues(keys, heads_of(self._linear(2), self.num_heads, "value", x_2 if value is None else value))

    def __call__(
        self,
        query: Array,
        key: Array | KeysValues | None = None,
        value: Array | None = None,
        *,
        cache: Cache | None = None,
        lengths: int | Array | None = None,
        padding: str = "right",
        return_weights: bool = False,
        average_weights: bool = False,
        **call: Unpack[HeadedCall],
    ) -> Any:
        """Return ``(..., L, embed_dim)``; with ``return_weights`` a ``Result`` with the weights ``(..., H, L, L_2)``.

        ``key`` is ``query`` by default, and ``value`` is ``key``. ``average_weights`` returns the weights' mean over
        the heads, ``(..., L, L_2)``. The other arguments are those of :func:`dot_product_attention`; where ``query``
        is the key too, its keys stand where its queries do.

        With a cache, ``(out, cache)``: ``query`` alone is given, follows what is cached, and attends to it by a mask
        that hides what comes later, as ``masks.causal()``. The cache holds no added keys, which every query sees. In a
        padded batch ``lengths (...)`` tokens of each item are real, the first ones or, with ``padding="left"``, the
        last: padding is seen by nobody, and its rows of the output mean nothing.
        """
        if cache is not None or lengths is not None or padding != "right":
            if not (key is None and value is None) or return_weights or average_weights:
                raise ValueError(
                    "`cache` and `lengths` are for self-attention: they go with neither `key`, `value` nor weights"
                )
            return self._decode(query, call, {"cache": cache, "lengths": lengths, "padding": padding})
        if isinstance(key, KeysValues) and value is not None:
            raise ValueError("`value` was given, but `key` holds the values already")
        if key is None and "query_positions" in call:
            call.setdefault("key_positions", call["query_positions"])
        queries = self.queries(query)
        keys_values = key if isinstance(key, KeysValues) else self.keys_values(query if key is None else key, value)
        result = self.attend(queries, keys_values, return_weights=return_weights or average_weights, **call)
        if not average_weights:
            return result
        xp = array_namespace(("weights", result.weights))
        return Result(result.out, None, xp.mean(result.weights, axis=-3))

    def attend(
        self, queries: Array, keys_values: KeysValues, *, return_weights: bool = False, **call: Unpack[HeadedCall]
    ) -> Any:
        """Return ``(..., L, embed_dim)`` for queries, keys and values that are projected already."""
        xp = array_namespace(("queries", queries))
        added = self._added(keys_values)
        if added is None:
            result = attention_result(queries, keys_values, None, return_weights, call)
        else:
            result = attend_with_added(queries, keys_values, added, return_weights, call)
        out = self.out_proj(join_heads(xp, result.out))
        return Result(out, None, result.weights) if return_weights else out

    def new_cache(self, kind: type[K], *, batch: tuple[int, ...] = (), **sizes: int) -> K:
        """Return an empty cache of a class of ``cache`` for this layer; ``sizes`` are the class's own."""
        width = self.out_proj.weight.shape[0]
        shape = (self.num_heads, width // self.num_heads, width // self.num_heads)
        return empty_cache(kind, self.out_proj.weight, batch, shape, sizes)

    def _decode(self, query: Array, call: HeadedCall, decoding: Decoding) -> Any:
        check_decoding(query, False, call, decoding, name="query")
        positions, cache = decoding_positions(query, decoding), decoding.get("cache")
        queries, new = self.queries(query), self.keys_values(query)
        if cache is None:
            return self.attend(queries, new, **padded_call(call, positions))
        added, (wide, dtype) = self._added(new), widened(queries, new)
        result, cache = attend_cache(cache, queries if added is None else wide, new, None, call, decoding)
        if added is not None:
            result = merged_with_added(wide, result, added, dtype)
        return self.out_proj(join_heads(array_namespace(("query", query)), result.out)), cache

    def _linear(self, index: int) -> Linear:
        """The projection of query (0), key (1) or value (2)."""
        width = self.out_proj.weight.shape[0]
        rows = slice(index * width, (index + 1) * width)
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[index]
        weight = separate if self.in_proj_weight is None else self.in_proj_weight[rows, :]
        return Linear(weight, None if self.in_proj_bias is None else self.in_proj_bias[rows])

    def _added(self, given: KeysValues) -> KeysValues | None:
        """Keys and values ``(H, n, D)`` that stand after those given: a learned one, a zero."""
        xp = array_namespace(("keys", given.keys))
        heads, depth = self.num_heads, given.keys.shape[-1]
        dtype = common_dtype(xp, given.keys.dtype, given.values.dtype)
        pairs: list[tuple[Array, Array]] = []
        if self.bias_k is not None:
            pairs.append((xp.reshape(self.bias_k, (heads, 1, depth)), xp.reshape(self.bias_v, (heads, 1, depth))))
        if self.add_zero_attn:
            zero = xp.zeros((heads, 1, depth), dtype=dtype, device=device_of(xp, given.keys))
            pairs.append((zero, zero))
        if not pairs:
            return None
        return KeysValues(
            *(xp.concat([cast(xp, x, dtype) for x in parts], axis=-2) for parts in zip(*pairs, strict=True))
        )


def _projections(width: int, kdim: int, vdim: int) -> dict[str, tuple[int, int]]:
    if kdim == width and vdim == width:
        return {"in_proj_weight": (3 * width, width)}
    return {name: (width, depth) for name, depth in zip(SEPARATE, (width, kdim, vdim), strict=True)}


def _xavier(shape: tuple[int, int]) -> Uniform:
    bound = sqrt(6 / sum(shape))
    return Uniform(-bound, bound)
