"""Packed sequences: several of unequal lengths, one after the other along one axis, without padding between them.

``offsets`` are cumulative lengths, ``(n + 1,)``: rows ``offsets[s]`` to ``offsets[s + 1] - 1`` are sequence ``s``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypedDict, Unpack

from .arrays import Array, array_namespace, device_of, dtype_name, is_traced
from .attention import dot_product_attention
from .checks import check_positions
from .masks import Mask, causal, segments
from .masks import dense as _dense
from .masks.algebra import And, Not
from .masks.given import KeyLengths, QueryLengths
from .masks.rules import LowerRight
from .pairs import as_index
from .values import integer_or_array

__all__ = ["packed_attention", "segment_ids", "segment_positions"]


class PackedCall(TypedDict, total=False):
    """What :func:`packed_attention` passes on; :func:`dot_product_attention` explains it."""

    bias: Any
    scale: float | None
    softcap: float | None
    sinks: Array | None
    dropout: Any
    impl: str
    return_lse: bool
    return_weights: bool


def packed_attention(
    query: Array,
    key: Array,
    value: Array,
    query_offsets: Array,
    key_offsets: Array | None = None,
    *,
    mask: Any = None,
    query_positions: int | Array = 0,
    key_positions: int | Array = 0,
    **call: Unpack[PackedCall],
) -> Any:
    """Attention within each of ``n`` sequences that stand one after the other: a call a sequence, made as one call.

    Args:
        query: ``(total_q, Hq, D)``.
        key: ``(total_k, Hkv, D)``.
        value: ``(total_k, Hkv, Dv)``.
        query_offsets: integers ``(n + 1,)`` that start at 0 and do not decrease; sequence ``s`` has the queries
            ``query_offsets[s]`` to ``query_offsets[s + 1] - 1``, none if they are equal. Rows from the last offset on
            are padding, which sees nothing and is seen by nobody.
        key_offsets: the same for key and value; by default ``query_offsets``.
        mask: as in :func:`dot_product_attention`. Positions restart in each sequence, so ``masks.causal()``, windows,
            chunks and the biases by position mean what they mean for the sequence alone; ``causal_lower_right()``
            aligns each sequence's last query with its last key. Arrays have the packed axes ``(Hq, total_q, total_k)``.
        query_positions: the position of each sequence's first query, an integer or integers ``(n,)``.
        key_positions: the position of each sequence's first key, an integer or integers ``(n,)``.
        **call: ``bias``, ``scale``, ``softcap``, ``sinks``, ``dropout``, ``impl``, ``return_lse`` and
            ``return_weights`` as in :func:`dot_product_attention`. Dropout counts the packed rows.

    Returns:
        ``out (total_q, Hq, Dv)``, or ``Result(out, lse, weights)`` with lse ``(Hq, total_q)`` and weights
        ``(Hq, total_q, total_k)``; 0, ``-inf`` (the sink, with one) and 0 in padding.

    Offsets may be traced; then what cannot be read is not checked but defined, see :func:`segment_ids`.

    >>> import numpy as np
    >>> from attention_np import masks, packed_attention
    >>> x = np.arange(6.0).reshape(6, 1, 1)
    >>> packed_attention(x, x, x, np.array([0, 2, 5]), scale=0.0, mask=masks.causal())[:, 0, 0]
    array([0. , 0.5, 2. , 2.5, 3. , 0. ])
    """
    xp = _check(query, key, value, query_offsets, key_offsets)
    key_offsets = query_offsets if key_offsets is None else key_offsets
    queries, keys = query.shape[0], key.shape[0]
    if isinstance(mask, Mask) and any(isinstance(part, LowerRight) for part in mask.parts()):
        query_positions = _lower_right(query_offsets, key_offsets, query_positions, key_positions)
    own = segments(segment_ids(query_offsets, queries), segment_ids(key_offsets, keys))
    return dot_product_attention(
        query,
        key,
        value,
        mask=own if mask is None else own & _within(mask),
        query_positions=_positions(xp, "query_positions", query_offsets, queries, query_positions),
        key_positions=_positions(xp, "key_positions", key_offsets, keys, key_positions),
        layout="BLHD",
        **call,
    )


def segment_ids(offsets: Array, total: int) -> Array:
    """The number of the sequence that each of ``total`` rows belongs to, -1 for padding: ``(total,)``.

    Row ``r`` belongs to sequence ``s`` where ``offsets[s] <= r < offsets[s + 1]``. Safe under ``jax.jit``: ``total`` is
    static, and offsets that are not in order count as if they were sorted.

    >>> import numpy as np
    >>> from attention_np import segment_ids
    >>> segment_ids(np.array([0, 2, 2, 3]), 5)
    array([ 0,  0,  2, -1, -1])
    """
    xp = _check_offsets("offsets", offsets, total)
    ids, _ = _ids_and_starts(xp, offsets, total)
    return ids


def segment_positions(offsets: Array, total: int) -> Array:
    """The place of each of ``total`` rows within its sequence, 0 in padding: ``(total,)``.

    >>> import numpy as np
    >>> from attention_np import segment_positions
    >>> segment_positions(np.array([0, 2, 2, 3]), 5)
    array([0, 1, 0, 0, 0])
    """
    xp = _check_offsets("offsets", offsets, total)
    ids, starts = _ids_and_starts(xp, offsets, total)
    rows = xp.arange(total, device=device_of(xp, offsets))
    return xp.where(ids < 0, xp.zeros_like(rows), rows - starts)


def _ids_and_starts(xp: ModuleType, offsets: Array, total: int) -> tuple[Array, Array]:
    """Return each row's sequence, -1 for padding, and the row where that sequence starts (of padding: any)."""
    rows = xp.arange(total, device=device_of(xp, offsets))
    ordered = xp.sort(xp.astype(offsets, rows.dtype))
    ids = xp.astype(xp.searchsorted(ordered, rows, side="right"), rows.dtype) - 1
    ids = xp.where(ids < offsets.shape[0] - 1, ids, xp.full_like(ids, -1))
    return ids, xp.take(ordered, xp.clip(ids, 0, None))


def _positions(xp: ModuleType, name: str, offsets: Array, total: int, first: int | Array) -> Array:
    within, first = segment_positions(offsets, total), integer_or_array(name, first)
    if isinstance(first, int):
        return within + check_positions(name, first, (), total)
    if first.ndim == 0:
        return within + as_index(xp, first)
    if tuple(first.shape) != (offsets.shape[0] - 1,):
        raise ValueError(
            f"`{name}` has shape {tuple(first.shape)}; it must be an integer or (n,) = ({offsets.shape[0] - 1},)"
        )
    if first.shape[0] == 0:
        return within
    ids = segment_ids(offsets, total)
    return within + xp.astype(xp.take(first, xp.clip(ids, 0, None)), within.dtype)


def _lower_right(query_offsets: Array, key_offsets: Array, *given: int | Array) -> Array:
    """Return the position of each sequence's first query where its last one has that of its last key."""
    for name, first in zip(("query_positions", "key_positions"), given, strict=True):
        if not isinstance(first, int) or first != 0:
            raise ValueError(f"`{name}` was given, but causal_lower_right() sets the positions itself: use causal()")
    query_lengths, key_lengths = (
        as_index(array_namespace(("offsets", x)), x[1:]) - as_index(array_namespace(("offsets", x)), x[:-1])
        for x in (query_offsets, key_offsets)
    )
    return key_lengths - query_lengths


def _within(mask: Any) -> Mask:
    """Return a mask that means in each sequence what the given one means alone."""
    if not isinstance(mask, Mask):
        return _dense(mask)
    if isinstance(mask, LowerRight):
        return causal()
    if isinstance(mask, (KeyLengths, QueryLengths)):
        raise ValueError(f"`mask` holds {mask!r}, which counts rows of one sequence: shorten `offsets` instead")
    if isinstance(mask, And):  # and Or
        return type(mask)(_within(mask.left), _within(mask.right))
    return Not(_within(mask.mask)) if isinstance(mask, Not) else mask


def _check(query: Array, key: Array, value: Array, query_offsets: Array, key_offsets: Array | None) -> ModuleType:
    offsets = [("query_offsets", query_offsets)] + ([] if key_offsets is None else [("key_offsets", key_offsets)])
    arrays = (("query", query), ("key", key), ("value", value))
    xp = array_namespace(*arrays, *offsets)
    for name, x in arrays:
        if x.ndim != 3:
            raise ValueError(f"`{name}` must be packed, (total, H, D); got shape {tuple(x.shape)}")
    _check_offsets("query_offsets", query_offsets, query.shape[0])
    keys_by = "query_offsets" if key_offsets is None else "key_offsets"
    _check_offsets(keys_by, query_offsets if key_offsets is None else key_offsets, key.shape[0])
    if key_offsets is not None and key_offsets.shape != query_offsets.shape:
        raise ValueError(
            f"`key_offsets` has {key_offsets.shape[0] - 1} sequences, "
            f"but `query_offsets` has {query_offsets.shape[0] - 1}: they must be as many"
        )
    return xp


def _check_offsets(name: str, offsets: Any, total: int) -> ModuleType:
    xp = array_namespace((name, offsets))
    if "int" not in dtype_name(offsets.dtype):
        raise TypeError(f"`{name}` must be integers (n + 1,); got an array of {dtype_name(offsets.dtype)}")
    if offsets.ndim != 1 or offsets.shape[0] == 0:
        raise ValueError(f"`{name}` must be integers (n + 1,), at least one; got shape {tuple(offsets.shape)}")
    if is_traced(offsets):
        return xp
    offsets = as_index(xp, offsets)
    if int(offsets[0]) != 0:
        raise ValueError(f"`{name}` must start at 0; got {int(offsets[0])}")
    if bool(xp.any(offsets[1:] < offsets[:-1])):
        raise ValueError(f"`{name}` must not decrease; got {offsets!r}")
    if int(offsets[-1]) > total:
        raise ValueError(f"`{name}` ends at {int(offsets[-1])}, beyond the {total} rows")
    return xp
