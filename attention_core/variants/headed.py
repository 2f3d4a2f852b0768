"""What layers of heads share: project, attend once, join the heads, project back."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack

from ..arrays import Array, array_namespace
from ..cache import Cache
from ..problem import Result
from .decoding import Decoding, attend_decoding, check_decoding, decoding_positions, empty_cache
from .headed_call import HeadedCall, KeysValues, attention_result, with_causal
from .layer import Layer, check_inputs
from .linear import Linear, join_heads, split_heads
from .named import shape_of
from .options import count

__all__ = [
    "Headed",
    "HeadedCall",
    "KeysValues",
    "attention_result",
    "check_heads",
    "heads_of",
    "shape_of",
    "with_causal",
]


K = TypeVar("K", bound=Cache)


class Headed(Layer):
    """A layer ``out(attention(queries(x), keys(x_2), values(x_2)))`` of ``num_heads``, ``(..., L, d_out)``.

    Subclasses say how ``queries`` and ``keys_values`` are made, and hold ``out`` and the options.
    """

    num_heads: int
    scale: float | None
    causal: bool

    def queries(self, x: Array) -> Array:
        """Return the queries ``(..., H, L, D)`` of ``x (..., L, d_in)``."""
        raise NotImplementedError(f"{type(self).__qualname__} must define queries(x)")

    def keys_values(self, x_2: Array) -> KeysValues:
        """Return keys and values of ``x_2``, which a later call takes in its place: they are projected once."""
        raise NotImplementedError(f"{type(self).__qualname__} must define keys_values(x_2)")

    def project_out(self, x: Array) -> Array:
        """Return the layer's output of the joined heads ``(..., L, H * Dv)``."""
        raise NotImplementedError(f"{type(self).__qualname__} must define project_out(x)")

    def project(self, x: Array, x_2: Array | KeysValues | None) -> tuple[Array, KeysValues]:
        """Return queries, and keys and values: of ``x_2``, or of ``x`` where there is none, or those given."""
        if isinstance(x_2, KeysValues):
            return self.queries(x), x_2
        return self.queries(x), self.keys_values(x if x_2 is None else x_2)

    def attend(
        self, queries: Array, keys_values: KeysValues, *, return_weights: bool = False, **call: Unpack[HeadedCall]
    ) -> Any:
        """Return ``(..., L, d_out)`` for queries, keys and values that are projected already."""
        result = attention_result(queries, keys_values, self.scale, return_weights, self.with_own(call))
        out = self.project_out(join_heads(array_namespace(("queries", queries)), result.out))
        return Result(out, None, result.weights) if return_weights else out

    def __call__(
        self,
        x: Array,
        x_2: Array | KeysValues | None = None,
        *,
        cache: Cache | None = None,
        lengths: int | Array | None = None,
        padding: str = "right",
        return_weights: bool = False,
        **call: Unpack[HeadedCall],
    ) -> Any:
        """Return ``(..., L, d_out)``; with ``return_weights`` a ``Result`` with the weights ``(..., H, L, L_2)``.

        ``x (..., L, d_in)`` asks, ``x_2 (..., L_2, d_in_2)`` answers: by default ``x`` itself; ``keys_values(x_2)``
        may stand in its place. ``mask``, ``bias``, ``dropout``, ``query_positions``, ``key_positions`` and ``impl`` are
        those of :func:`dot_product_attention`; where ``x`` answers too, its keys stand where its queries do.

        With a cache, of a causal layer, ``(out, cache)``: ``x`` follows what is cached, and the cache is longer by
        ``L``. In a padded batch ``lengths (...)`` tokens of each item are real, the first ones or, with
        ``padding="left"``, the last: padding is seen by nobody, and its rows of the output mean nothing.
        """
        if cache is None and lengths is None and padding == "right":
            if x_2 is None and "query_positions" in call:
                call.setdefault("key_positions", call["query_positions"])
            return self.attend(*self.project(x, x_2), return_weights=return_weights, **call)
        if x_2 is not None or return_weights:
            raise ValueError("`cache` and `lengths` are for self-attention: they go with neither `x_2` nor weights")
        decoding: Decoding = {"cache": cache, "lengths": lengths, "padding": padding}
        return self._decode(x, call, decoding)

    def _decode(self, x: Array, call: HeadedCall, decoding: Decoding) -> Any:
        check_decoding(x, self.causal, call, decoding)
        queries, new = self.project(x, None)
        positions = decoding_positions(x, decoding)
        heads, cache = attend_decoding(queries, new, self.scale, self.with_own(call), positions, decoding)
        out = self.project_out(join_heads(array_namespace(("x", x)), heads))
        return out if cache is None else (out, cache)

    def new_cache(self, kind: type[K], *, batch: tuple[int, ...] = (), **sizes: int) -> K:
        """Return an empty cache of a class of ``cache`` for this layer, of the library and dtype of its weights.

        ``sizes`` are the class's own: ``capacity`` of ``StaticCache``, ``page_size`` of ``PagedCache`` and so on.
        """
        return empty_cache(kind, next(iter(self.state_dict().values())), batch, self.cached_sizes(), sizes)

    def cached_sizes(self) -> tuple[int, int, int]:
        """Return the number of heads of keys and values, the keys' depth and the values'."""
        raise NotImplementedError(f"{type(self).__qualname__} must define cached_sizes()")

    def with_own(self, call: HeadedCall) -> HeadedCall:
        """Return the call with the layer's own mask and bias besides those given."""
        return with_causal(call) if self.causal else call


def heads_of(linear: Linear, heads: int, name: str, x: Array) -> Array:
    """Return ``linear(x)`` cut into heads, ``(..., H, L, d)``."""
    xp = check_inputs(linear.weight.shape[-1], linear.state_dict(), {name: x})
    check_heads(linear.weight.shape[0], heads)
    return split_heads(xp, linear(x), heads)


def check_heads(width: int, heads: Any) -> None:
    """The heads share a width evenly."""
    if width % count("num_heads", heads):
        raise ValueError(f"`num_heads` is {heads}, which does not divide the projections' width {width}")
