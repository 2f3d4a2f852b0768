"""Attention to the keys of a call and, after them, to a few that every query sees: one softmax over both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..arrays import Array, array_namespace, cast, common_dtype, compute_dtype
from ..attention import dot_product_attention
from ..checks import check_dtypes
from ..dropout import Explicit, Seeded
from ..problem import Result
from ..softmax import merge
from .headed import HeadedCall, KeysValues

__all__ = ["attend_with_added", "merged_with_added", "widened"]


def attend_with_added(
    queries: Array, given: KeysValues, added: KeysValues, return_weights: bool, call: HeadedCall
) -> Result:
    """Return out, and weights over ``Lk + n`` keys; mask, bias and positions are those of the given keys.

    Two calls and a merge by lse, so that any mask and bias of the given keys stays as it is; rounded once, after it.
    """
    queries, dtype = widened(queries, given)
    count, dropout = given.keys.shape[-2], call.get("dropout")
    options: dict[str, Any] = {"return_lse": True, "return_weights": return_weights}
    own = {**call, "dropout": _of_keys(dropout, 0, count)}
    first = dot_product_attention(queries, given.keys, given.values, **options, **own)
    dropped = _of_keys(dropout, count, count + added.keys.shape[-2])
    return merged_with_added(queries, first, added, dtype, dropped)


def widened(queries: Array, given: KeysValues) -> tuple[Array, Any]:
    """Return queries in the compute dtype, in which parts are merged, and the dtype of what comes of them."""
    xp = array_namespace(("queries", queries), ("keys", given.keys), ("values", given.values))
    check_dtypes(xp, queries=queries, keys=given.keys, values=given.values)
    dtype = common_dtype(xp, queries.dtype, given.keys.dtype, given.values.dtype)
    return cast(xp, queries, compute_dtype(xp, dtype)), dtype


def merged_with_added(queries: Array, first: Result, added: KeysValues, dtype: Any, dropout: Any = None) -> Result:
    """Return what queries see of the given keys, ``first``, and of those added, in one softmax."""
    xp = array_namespace(("queries", queries))
    queries = xp.broadcast_to(queries, (*first.out.shape[:-1], queries.shape[-1]))  # added keys have no batch axes
    options: dict[str, Any] = {"return_lse": True, "return_weights": first.weights is not None}
    parts = [first, dot_product_attention(queries, added.keys, added.values, **options, dropout=dropout)]
    out, lse = merge([part.out for part in parts], [part.lse for part in parts])
    out = cast(xp, out, dtype)
    if first.weights is None:
        return Result(out)
    weights = [part.weights * xp.exp(part.lse - lse)[..., None] for part in parts]
    return Result(out, None, xp.concat(weights, axis=-1))


def _of_keys(dropout: Any, first: int, last: int) -> Any:
    """The same pairs are dropped as in one call with all the keys."""
    if isinstance(dropout, Explicit) and dropout.keep.shape[-1] != 1:
        return replace(dropout, keep=dropout.keep[..., first:last])
    if isinstance(dropout, Seeded):
        batch, head, query, key = dropout.origin
        return replace(dropout, origin=(batch, head, query, key + first))
    return dropout
