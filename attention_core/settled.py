"""What one call settles for the next of the same shapes, dtypes and Python values: its checks, its kernel, its pairs.

They look at nothing else, and take longer than all of a small call's arithmetic. The one table is bounded, in entries
and in the size of the pairs that an entry may hold; of a call's own arrays it holds none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import checks
from .arrays import Array, read_only
from .masks.algebra import And, Not, Or
from .masks.given import KeyLengths, QueryLengths
from .masks.rules import Chunked, Dilated, GlobalTokens, LowerRight, Prefix, SlidingWindow

if TYPE_CHECKING:
    from .problem import Problem

__all__ = ["forget", "kind_of", "recall", "remember", "values_of"]

_SETTLED: dict[type, dict[Any, dict[str, Any]]] = {}  # array class -> shapes, dtypes, kind -> all but arrays
_REMEMBERED = 256
_SEEN_PAIRS = 1024  # of an entry, a byte each

_OF_VALUES = frozenset(  # a caller's own rule or class may read what changes
    (And, Or, Not, SlidingWindow, LowerRight, Prefix, GlobalTokens, Chunked, Dilated, KeyLengths, QueryLengths)
)


def kind_of(mask: Any, query_positions: Any, key_positions: Any, layout: str) -> tuple[Any, ...] | None:
    """Return what equal calls have in common besides arrays; ``None`` where mask or positions are more than values."""
    if not type(query_positions) is type(key_positions) is int:
        return None
    if mask is None:
        return None, query_positions, key_positions, layout
    values = values_of(mask)
    return values and (values, query_positions, key_positions, layout)


def values_of(mask: Any) -> tuple[Any, ...] | None:
    """Return a mask as integers and classes; ``None`` where it reads an array, or asks what is not ours."""
    if type(mask) not in _OF_VALUES:
        return None
    values: list[Any] = [type(mask)]
    for x in mask.__dict__.values():
        value = x if x is None or type(x) is int else values_of(x)
        if value is None and x is not None:
            return None
        values.append(value)
    return tuple(values)


def recall(query: Array, key: Array, value: Array, kind: tuple[Any, ...]) -> dict[str, Any] | None:
    """Return the fields of the problem that an earlier call of arrays of one class has settled, all but its arrays."""
    known = _SETTLED.get(type(query))
    if known is None or not type(query) is type(key) is type(value):
        return None
    return known.get((query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype, kind))


def remember(problem: Problem, query: Array, key: Array, value: Array, kind: tuple[Any, ...]) -> None:
    """Settle a checked call of arrays as its caller gave them, with no bias, soft cap, sinks or dropout."""
    p, mask = problem, problem.mask
    if not type(query) is type(key) is type(value):
        return
    if mask is not None and p.sizes.queries * p.sizes.keys <= _SEEN_PAIRS:
        p.__dict__["seen"] = read_only(query, lambda: mask.visible(p.pairs()))
    known = _SETTLED.setdefault(type(query), {})
    if len(known) >= _REMEMBERED:
        known.clear()
    fields = {name: x for name, x in vars(p).items() if name not in ("query", "key", "value")}
    fields["scale"], fields["taken"] = checks.check_scale(None, p.sizes.depth), {}
    known[query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype, kind] = fields


def forget() -> None:
    """Settle everything anew, as when there are other kernels to take."""
    _SETTLED.clear()
