"""Self-attention of layers of heads with a cache, or of a padded batch: positions come from what is real."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, TypeVar

from ..arrays import Array, array_namespace, describe
from ..cache import Cache
from ..cache.base import Kept
from ..cache.call import left_of
from ..cache.positions import check_padding, real, token_positions
from ..masks import Mask
from ..problem import Result
from .headed_call import HeadedCall, KeysValues, attention_result

__all__ = [
    "Decoding",
    "attend_cache",
    "attend_decoding",
    "check_decoding",
    "decoding_positions",
    "empty_cache",
    "padded_call",
]

K = TypeVar("K", bound=Cache)


class Decoding(TypedDict, total=False):
    """Where the tokens of a call stand: after those of a cache, and which of them are padding."""

    cache: Cache | None
    lengths: int | Array | None
    padding: str


def check_decoding(
    x: Array, causal: bool, call: Mapping[str, Any], decoding: Decoding, window: int | None = None, name: str = "x"
) -> None:
    """Raise for what a cache, or lengths, cannot be together with; ``window`` keys are what a query sees."""
    cache = decoding.get("cache")
    array_namespace((name, x))
    if x.ndim < 2:
        raise ValueError(f"`{name}` must have at least the axes (L, d_in); got shape {tuple(x.shape)}")
    check_padding(decoding.get("lengths"), decoding.get("padding", "right"), tuple(x.shape[:-2]))
    given = [name for name in ("positions", "query_positions", "key_positions") if call.get(name) is not None]
    if given:
        raise ValueError(f"`{given[0]}` was given, but a cache, and `lengths`, say themselves where tokens stand")
    if cache is None:
        return
    if not isinstance(cache, Cache):
        raise TypeError(f"`cache` must be a value of a class of `cache`; got {describe(cache)}")
    if not causal and call.get("mask") is None:
        raise ValueError(
            "`cache` was given, but the layer is not causal: what it gave would change with later tokens; "
            "say by `mask=masks.causal()`, or another mask by positions, that none of them is seen"
        )
    if call.get("dropout") is not None:
        raise ValueError("`dropout` was given with a cache: it is for training, a cache for decoding")
    seen = _keys_seen(window, call.get("mask"))
    if cache.reach is not None and (seen is None or cache.reach < seen):
        number = "all" if seen is None else seen
        raise ValueError(f"`cache` keeps {cache.reach} tokens of each sequence, but the layer's queries see {number}")


def _keys_seen(window: int | None, mask: Any) -> int | None:
    """Return how many keys a query sees, its own among them: within the layer's window and that of a call's mask."""
    left = left_of(mask) if isinstance(mask, Mask) else None
    return min((n for n in (window, None if left is None else left + 1) if n is not None), default=None)


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
    if cache is None:
        return attention_result(queries, new, scale, False, padded_call(call, positions)).out, None
    result, longer = attend_cache(cache, queries, new, scale, call, decoding)
    return result.out, longer


def attend_cache(
    cache: K, queries: Array, new: KeysValues, scale: float | None, call: HeadedCall, decoding: Decoding
) -> tuple[Result, K]:
    """Return out and lse of the queries, which see what is cached and themselves, and the longer cache."""
    rest: dict[str, Any] = {name: x for name, x in call.items() if name != "dropout"}
    padded: dict[str, Any] = {"lengths": decoding.get("lengths"), "padding": decoding.get("padding", "right")}
    return cache.attend(queries, new.keys, new.values, scale=scale, return_lse=True, **padded, **rest)


def padded_call(call: HeadedCall, positions: Array) -> HeadedCall:
    """Return the call of a padded batch without a cache, whose tokens stand at ``positions``; ``-1`` is none."""
    mask = call.get("mask")
    at: HeadedCall = {"mask": real() if mask is None else real() & mask}
    return {**call, **at, "query_positions": positions, "key_positions": positions}


def empty_cache(kind: type[K], like: Array, batch: tuple[int, ...], sizes: tuple[int, int, int], own: Any) -> K:
    """Return an empty cache of a class for ``(heads, depth, value depth)``."""
    _check_kind(kind)
    cls: Any = kind
    heads, depth, value_depth = sizes
    return cls.empty(like, batch=batch, num_kv_heads=heads, depth=depth, value_depth=value_depth, **own)


def _check_kind(kind: Any) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Kept)):
        raise TypeError(f"`kind` must be a class of `cache` that holds tokens itself; got {kind!r}")
