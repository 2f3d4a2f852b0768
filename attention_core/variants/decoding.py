"""Self-attention of layers of heads with a cache, or of a padded batch: positions come from what is real."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, TypeVar

from ..arrays import Array, array_namespace, describe
from ..cache import Cache
from ..cache.base import Kept
from ..cache.positions import check_padding, real, token_positions
from .headed_call import HeadedCall, KeysValues, attention_result

__all__ = ["Decoding", "attend_decoding", "check_decoding", "decoding_positions", "empty_cache"]

K = TypeVar("K", bound=Cache)


class Decoding(TypedDict, total=False):
    """Where the tokens of a call stand: after those of a cache, and which of them are padding."""

    cache: Cache | None
    lengths: int | Array | None
    padding: str


def check_decoding(
    x: Array, causal: bool, call: Mapping[str, Any], decoding: Decoding, window: int | None = None
) -> None:
    """Raise for what a cache, or lengths, cannot be together with; ``window`` keys are what a query sees."""
    cache = decoding.get("cache")
    array_namespace(("x", x))
    if x.ndim < 2:
        raise ValueError(f"`x` must have at least the axes (L, d_in); got shape {tuple(x.shape)}")
    check_padding(decoding.get("lengths"), decoding.get("padding", "right"), tuple(x.shape[:-2]))
    given = [name for name in ("positions", "query_positions", "key_positions") if call.get(name) is not None]
    if given:
        raise ValueError(f"`{given[0]}` was given, but a cache, and `lengths`, say themselves where tokens stand")
    if cache is None:
        return
    if not isinstance(cache, Cache):
        raise TypeError(f"`cache` must be a value of a class of `cache`; got {describe(cache)}")
    if not causal:
        raise ValueError("`cache` was given, but the layer is not causal: what it gave would change with later tokens")
    if call.get("dropout") is not None:
        raise ValueError("`dropout` was given with a cache: it is for training, a cache for decoding")
    if cache.reach is not None and (window is None or cache.reach < window):
        seen = "all" if window is None else window
        raise ValueError(f"`cache` keeps {cache.reach} tokens of each sequence, but the layer's queries see {seen}")


def decoding_positions(x: Array, decoding: Decoding) -> Array:
    """Return the positions ``(..., L)`` of the tokens, ``-1`` for padding."""
    lengths, padding, cache = decoding.get("lengths"), decoding.get("padding", "right"), decoding.get("cache")
    if cache is not None:
        positions = cache.positions(x.shape[-2], lengths=lengths, padding=padding)
        array_namespace(("x", x), ("cache", positions))
        return positions
    return token_positions(array_namespace(("x", x)), 0, x.shape[-2], lengths, padding, x)


def attend_decoding(
    queries: Array, new: KeysValues, scale: float | None, call: HeadedCall, positions: Array, decoding: Decoding
) -> tuple[Array, Cache | None]:
    """Return heads ``(..., H, L, Dv)``, and the longer cache if there is one; ``call`` has the layer's own mask."""
    cache = decoding.get("cache")
    if cache is not None:
        rest: dict[str, Any] = {name: x for name, x in call.items() if name != "dropout"}
        padded: dict[str, Any] = {"lengths": decoding.get("lengths"), "padding": decoding.get("padding", "right")}
        return cache.attend(queries, new.keys, new.values, scale=scale, **padded, **rest)
    mask = call.get("mask")
    at: HeadedCall = {"mask": real() if mask is None else real() & mask}
    call = {**call, **at, "query_positions": positions, "key_positions": positions}
    return attention_result(queries, new, scale, False, call).out, None


def empty_cache(kind: type[K], like: Array, batch: tuple[int, ...], sizes: tuple[int, int, int], own: Any) -> K:
    """Return an empty cache of a class for ``(heads, depth, value depth)``."""
    _check_kind(kind)
    cls: Any = kind
    heads, depth, value_depth = sizes
    return cls.empty(like, batch=batch, num_kv_heads=heads, depth=depth, value_depth=value_depth, **own)


def _check_kind(kind: Any) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Kept)):
        raise TypeError(f"`kind` must be a class of `cache` that holds tokens itself; got {kind!r}")
