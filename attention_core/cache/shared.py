"""The cache of a system prompt: one prompt's keys and values that many sequences read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from types import ModuleType
from typing import Any, Self, Unpack

from ..arrays import Array, array_namespace, cast, common_dtype, compute_dtype, describe, is_traced
from ..biases import Bias
from ..biases.distance import Alibi, Relative
from ..masks import Mask
from ..masks.algebra import And, Not, Or
from ..masks.rules import Chunked, Dilated, GlobalTokens, Prefix, SlidingWindow
from ..problem import Result
from ..softmax import merge
from .base import CAUSAL, Cache, Kept, LookCall, Seen, both, check_call, check_tokens, look, terms
from .positions import real

__all__ = ["SharedPrefixCache"]

_BY_POSITION = (And, Or, Not, SlidingWindow, Prefix, GlobalTokens, Chunked, Dilated, Alibi, Relative)


@dataclass(frozen=True, eq=False)
class SharedPrefixCache(Cache):
    """A prompt that is held once, in ``prefix`` without batch axes, and in ``own`` what each sequence adds to it.

    The tokens of ``own`` come after those of ``prefix``; the outputs over both are merged by their lse, exactly.

    >>> import numpy as np
    >>> from attention_np import cache
    >>> sizes = {"num_kv_heads": 1, "depth": 2}
    >>> prompt, x = np.ones((1, 5, 2)), np.ones((3, 1, 1, 2))
    >>> prefix = cache.GrowingCache.empty(prompt, **sizes).append(prompt, prompt)
    >>> own = cache.GrowingCache.empty(prompt, batch=(3,), **sizes)
    >>> shared = cache.SharedPrefixCache.of(prefix, own)
    >>> out, longer = shared.attend(x, x, x)
    >>> out.shape, longer.positions(1)
    ((3, 1, 1, 2), array([[6],
           [6],
           [6]]))
    """

    prefix: Kept
    own: Kept

    @classmethod
    def of(cls, prefix: Kept, own: Kept) -> Self:
        """Return the cache of sequences that begin with what ``prefix`` holds; ``own`` is empty."""
        for name, each in (("prefix", prefix), ("own", own)):
            if not isinstance(each, Kept):
                raise TypeError(f"`{name}` must be a cache that holds tokens itself; got {describe(each)}")
        array_namespace(("prefix", prefix.lengths), ("own", own.lengths))
        if prefix.batch != ():
            raise ValueError(f"`prefix` is one prompt, without batch axes; got {prefix.batch}")
        if not is_traced(own.lengths) and bool(array_namespace(("lengths", own.lengths)).any(own.lengths > 0)):
            raise ValueError("`own` must be empty: what a sequence adds comes after the prompt")
        shapes = prefix.key_shape(), own.key_shape()
        if shapes[0] != shapes[1]:
            raise ValueError(f"`prefix` and `own` must have the same heads and depths; got {shapes[0]} and {shapes[1]}")
        return cls(prefix, replace(own, start=prefix.start + prefix.lengths))  # type: ignore[type-var]  # a dataclass

    @property
    def reach(self) -> int | None:
        reaches = [each.reach for each in (self.prefix, self.own) if each.reach is not None]
        return min(reaches, default=None)

    def positions(self, count: int, *, lengths: Any = None, padding: str = "right") -> Array:
        return self.own.positions(count, lengths=lengths, padding=padding)

    @property
    def lengths(self) -> Array:
        """How many tokens each sequence has, ``(...)``, those of the prompt among them."""
        return self.own.start + self.own.lengths

    def take(self, rows: Array) -> Self:
        return replace(self, own=self.own.take(rows))

    def truncate(self, lengths: int | Array) -> Self:
        """Return the cache without the tokens at positions ``lengths (...)`` and after; the prompt is left whole."""
        own = self.own.truncate(lengths)
        below = own.start > own.ends(lengths)
        if not is_traced(below) and bool(array_namespace(("lengths", below)).any(below)):
            raise ValueError("`lengths` are those of whole sequences, and the prompt, which all share, is left whole")
        return replace(self, own=own)

    def append(self, key: Array, value: Array, *, lengths: Any = None, padding: str = "right") -> Self:
        own = self.own.append(key, value, lengths=lengths, padding=padding)
        return replace(self, own=own)

    def attend(
        self,
        query: Array,
        key: Array,
        value: Array,
        *,
        lengths: Any = None,
        padding: str = "right",
        mask: Any = CAUSAL,
        return_lse: bool = False,
        **call: Unpack[LookCall],
    ) -> tuple[Any, Self]:
        check_tokens(self.own, key, value, query)
        check_call(mask, call, self.reach)
        xp = array_namespace(("query", query))
        dtype = common_dtype(xp, query.dtype, key.dtype, value.dtype)
        query = cast(xp, query, compute_dtype(xp, dtype))  # or 16 bits would be rounded in the parts, and once more
        positions = self.positions(query.shape[-2], lengths=lengths, padding=padding)
        ours = mask if lengths is None else both(mask, real())
        prefix = self._look_at_prefix(query, positions, ours, call)
        without_sinks: LookCall = {**call, "sinks": None}  # a sink is given to exactly one part
        rest, own = self.own.attend(
            query, key, value, lengths=lengths, padding=padding, mask=mask, return_lse=True, **without_sinks
        )
        out, lse = merge([prefix.out, rest.out], [prefix.lse, rest.lse])
        out = cast(xp, out, dtype)
        return (Result(out, lse) if return_lse else out), replace(self, own=own)

    def _prompt(self) -> Seen:
        """Return what the prompt holds; one that has lost tokens makes all that looks at it NaN, or is an error."""
        seen, lost = self.prefix.stored(), self.prefix.lacks()
        if lost is None:
            return seen
        if is_traced(lost):
            return seen._replace(lost=lost[None])
        if bool(lost):
            raise ValueError("`prefix` has lost tokens for which it had no place, in a compiled call: make it larger")
        return seen

    def _look_at_prefix(self, query: Array, positions: Array, mask: Any, call: LookCall) -> Result:
        """Attend to the prompt: all sequences' queries as one long row of queries, so that its keys are read once."""
        seen, batch = self._prompt(), self.own.batch
        xp = array_namespace(("query", query))
        if not batch or not _goes_by_positions_alone(mask, call.get("bias")):
            return look(query, positions, seen, mask, call)
        result = look(_joined(xp, query), xp.reshape(positions, (-1,)), seen, mask, call)
        heads, count = query.shape[-3:-1]
        out = xp.reshape(result.out, (heads, *batch, count, result.out.shape[-1]))
        lse = xp.reshape(result.lse, (heads, *batch, count))
        return Result(xp.moveaxis(out, 0, -3), xp.moveaxis(lse, 0, -2))


def _joined(xp: ModuleType, query: Array) -> Array:
    """Return ``(..., H, L, D)`` as ``(H, B * L, D)``."""
    by_head = xp.moveaxis(query, -3, 0)
    heads, *rows, depth = by_head.shape
    return xp.reshape(by_head, (heads, prod(rows), depth))


def _goes_by_positions_alone(mask: Mask | None, bias: Bias | None) -> bool:
    """Say whether no batch item differs from another: a caller's rule may read which it is, an array hold one each."""
    parts = [*([] if mask is None else mask.parts()), *([] if bias is None else terms(bias))]
    return all(type(part) in _BY_POSITION and part.is_static() for part in parts)
