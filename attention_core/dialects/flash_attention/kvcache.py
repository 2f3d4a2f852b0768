"""``flash_attn_with_kvcache``, which returns the cache that FlashAttention changes in place."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from ... import masks
from ...arrays import Array, as_array, device_of
from ...attention import dot_product_attention
from ...masks import Mask
from ...pairs import as_index
from ...values import integer_or_array
from ..shared import all_of, check_axes
from .rotary import rotated
from .rules import alibi, cap, window

__all__ = ["Appended", "flash_attn_with_kvcache"]

_AXES = {4: "(B, L, H, D)"}


class Appended(NamedTuple):
    """The output, and the caches with the new keys and values in them.

    >>> import numpy as np
    >>> from attention_np.dialects.flash_attention import flash_attn_with_kvcache
    >>> cache, new = np.zeros((1, 3, 1, 1)), np.ones((1, 1, 1, 1))
    >>> flash_attn_with_kvcache(new, cache, cache, new, new, cache_seqlens=1).k_cache[0, :, 0, 0]
    array([0., 1., 0.])
    """

    out: Array
    softmax_lse: Array | None
    k_cache: Array
    v_cache: Array


def flash_attn_with_kvcache(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: Array | None = None,
    v: Array | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    cache_seqlens: int | Array | None = None,
    cache_batch_idx: Array | None = None,
    cache_leftpad: Array | None = None,
    block_table: Array | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Array | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention to a cache, after new keys and values have been written into it.

    Args:
        q: ``(B, Lq, Hq, D)``.
        k_cache: ``(items, S, Hkv, D)``; with ``block_table``, pages ``(pages, page, Hkv, D)``.
        v_cache: the same with ``Dv``.
        k: ``(B, new, Hkv, D)``, written at ``cache_seqlens`` and after; what the cache has no room for is left out.
        v: ``(B, new, Hkv, Dv)``.
        rotary_cos: ``(positions, Dr / 2)``, with ``k``: keys are rotated at ``cache_seqlens, cache_seqlens + 1, ...``,
            queries too if causal or local, else all of them at ``cache_seqlens``. ``Dr <= D`` depths are rotated.
        rotary_sin: the same.
        cache_seqlens: an integer or integers ``(B,)``: how many keys the cache holds; by default it is full.
        cache_batch_idx: integers ``(B,)``: the item of the cache that each batch item reads.
        cache_leftpad: integers ``(B,)``: keys before it are invisible.
        block_table: integers ``(B, blocks)``: the pages of each batch item.
        softmax_scale: by default ``1/sqrt(D)``.
        causal: the last query sees the last key, new ones counted.
        window_size: ``(left, right)``, from the same diagonal; -1 for no bound.
        softcap: above 0, before bias and mask.
        rotary_interleaved: rotate neighbours, else halves.
        alibi_slopes: ``(Hq,)`` or ``(B, Hq)``.
        num_splits: accepted; it chooses a means.
        return_softmax_lse: return lse ``(B, Hq, Lq)`` too.

    Returns:
        ``out (B, Lq, Hq, Dv)`` or ``(out, lse)``; with ``k`` and ``v`` :class:`Appended`: no argument is modified.

    >>> import numpy as np
    >>> from attention_np.dialects.flash_attention import flash_attn_with_kvcache
    >>> cache = np.arange(4.0)[None, :, None, None]
    >>> flash_attn_with_kvcache(cache[:, :1], cache, cache, cache_seqlens=3, softmax_scale=0.0)[0, 0]
    array([[1.]])
    """
    xp = check_axes(_AXES, q=q, k_cache=k_cache, v_cache=v_cache)
    lengths = _integers(xp, "cache_seqlens", cache_seqlens)
    batch_idx, leftpad = (
        _integers(xp, name, x) for name, x in (("cache_batch_idx", cache_batch_idx), ("cache_leftpad", cache_leftpad))
    )
    table = _integers(xp, "block_table", block_table)
    _check(k, v, rotary_cos, rotary_sin, lengths, batch_idx, table)
    pages = batch_idx[:, None] if batch_idx is not None else table
    moving = causal or tuple(window_size) != (-1, -1)
    if k is not None and v is not None:
        check_axes(_AXES, k=k, v=v)
        if rotary_cos is not None:
            q = rotated(xp, q, rotary_cos, rotary_sin, lengths, 1 if moving else 0, rotary_interleaved)
            k = rotated(xp, k, rotary_cos, rotary_sin, lengths, 1, rotary_interleaved)
        slots = _slots(xp, k_cache, k, pages, lengths)
        k_cache, v_cache = _written(xp, k_cache, k, slots), _written(xp, v_cache, v, slots)
        lengths = lengths + k.shape[1]
    keys, values = (x if pages is None else _read(xp, x, pages) for x in (k_cache, v_cache))
    out, lse, _ = dot_product_attention(
        q,
        keys,
        values,
        mask=all_of(window(causal, window_size), *_valid(lengths, leftpad)),
        bias=alibi(xp, alibi_slopes, q.shape[0], q.shape[2]),
        scale=softmax_scale,
        softcap=cap(softcap),
        query_positions=_positions(xp, q, keys.shape[1] if lengths is None else lengths),
        layout="BLHD",
        return_lse=True,
    )
    if k is not None:
        return Appended(out, lse if return_softmax_lse else None, k_cache, v_cache)
    return (out, lse) if return_softmax_lse else out


def _integers(xp: ModuleType, name: str, x: Any) -> Any:
    x = None if x is None else integer_or_array(name, x)
    return x if x is None or isinstance(x, int) else as_index(xp, as_array(xp, x))


def _check(k: Any, v: Any, cos: Any, sin: Any, lengths: Any, batch_idx: Any, table: Any) -> None:
    if (k is None) != (v is None):
        raise ValueError("`k` and `v` must be given together")
    if (cos is None) != (sin is None):
        raise ValueError("`rotary_cos` and `rotary_sin` must be given together")
    if k is None and cos is not None:
        raise ValueError("`rotary_cos` rotates `q` and `k`: it is only applicable if `k` and `v` are passed in")
    if k is not None and lengths is None:
        raise ValueError("`cache_seqlens` must say where `k` and `v` go in the cache")
    if batch_idx is not None and table is not None:
        raise ValueError("`cache_batch_idx` and `block_table` exclude each other: the table says where items are")


def _valid(lengths: int | Array | None, leftpad: Array | None) -> tuple[Mask | None, Mask | None]:
    return (
        None if lengths is None else masks.key_lengths(lengths),
        None if leftpad is None else ~masks.key_lengths(leftpad),
    )


def _positions(xp: ModuleType, q: Array, total: int | Array) -> int | Array:
    """Return the queries' positions where the last one stands at the last key."""
    if isinstance(total, int):
        return total - q.shape[1]
    return xp.reshape(total - q.shape[1], (-1, 1)) + xp.arange(q.shape[1], device=device_of(xp, q))


def _read(xp: ModuleType, cache: Array, pages: Array) -> Array:
    """Return the pages of each batch item, one after the other: ``(B, S, H, D)``."""
    found = xp.take(cache, xp.reshape(pages, (-1,)), axis=0)
    return xp.reshape(found, (pages.shape[0], -1, *cache.shape[2:]))


def _slots(xp: ModuleType, cache: Array, new: Array, pages: Array | None, lengths: int | Array) -> Array:
    """Return the rows of the cache, counted through all its pages, where the new keys go: ``(B * new,)``.

    What there is no room for goes to a row behind the last.
    """
    items, count = new.shape[:2]
    page = cache.shape[1]
    at = xp.arange(count, device=device_of(xp, new)) + xp.reshape(xp.asarray(lengths), (-1, 1))
    at = xp.broadcast_to(at, (items, count))
    if pages is None:
        pages = xp.arange(items, device=device_of(xp, new))[:, None]
    blocks = pages.shape[1]
    block = xp.clip(at // page, 0, blocks - 1) + blocks * xp.arange(items, device=device_of(xp, new))[:, None]
    chosen = xp.reshape(xp.take(xp.reshape(pages, (-1,)), xp.reshape(block, (-1,))), (items, count))
    room = (at >= 0) & (at < blocks * page)
    behind = xp.full_like(at, cache.shape[0] * page)
    return xp.reshape(xp.where(room, chosen * page + at % page, behind), (-1,))


def _written(xp: ModuleType, cache: Array, new: Array, slots: Array) -> Array:
    """Return the cache with the new rows in their slots: each row of it looks for the new one that goes there."""
    if 0 in new.shape:
        return cache
    rows = xp.arange(cache.shape[0] * cache.shape[1], device=device_of(xp, cache))
    order = xp.argsort(slots)
    ordered = xp.take(slots, order)
    nearest = xp.clip(xp.searchsorted(ordered, rows), 0, slots.shape[0] - 1)
    hit = xp.take(ordered, nearest) == rows
    found = xp.take(xp.reshape(new, (-1, *new.shape[2:])), xp.take(order, nearest), axis=0)
    flat = xp.reshape(cache, (-1, *cache.shape[2:]))
    flat = xp.where(hit[:, None, None], xp.astype(found, cache.dtype), flat)
    return xp.reshape(flat, cache.shape)
