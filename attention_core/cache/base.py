"""What every cache is: keys and values that outlive a call, and where each of them stands in its sequence."""

from __future__ import annotations

from dataclasses import fields, replace
from math import prod
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self, Unpack

from ..arrays import Array, array_namespace, as_array, cast, common_dtype, compute_dtype, device_of, scalar_like
from ..attention import dot_product_attention
from ..checks import check_dtypes
from ..masks import Mask, causal
from ..pairs import as_index
from ..problem import Result
from ..values import Shown, integer_or_array, static_int
from .call import LookCall, check_call, terms
from .positions import check_padding, real, real_tokens, token_positions
from .rows import row_index, take_rows
from .write import put_rows

__all__ = [
    "CAUSAL",
    "Cache",
    "Kept",
    "LookCall",
    "Seen",
    "both",
    "check_call",
    "check_tokens",
    "flat",
    "look",
    "put_tokens",
    "terms",
]

CAUSAL = causal()
FAR = 2**31 - 1


class Seen(NamedTuple):
    """What the new tokens of a call may look at.

    ``keys (..., Hkv, K, D)``, ``values``, their ``positions``, a mask that hides empty places, and which of the new
    tokens are lost, ``(..., L)``, because they found no place; ``None`` where none can be.
    """

    keys: Array
    values: Array
    positions: int | Array
    mask: Mask | None = None
    lost: Array | None = None


class Cache(Shown):
    """Keys and values of the tokens that came so far: a value that never changes, each call returns the next one.

    A cache knows the position of every token, so that no caller computes one: ``positions`` says where the next tokens
    will stand, to rotate them, and ``attend`` appends them and lets them look at themselves and all before.

    What the methods share: ``key (..., Hkv, L, D)`` and ``value (..., Hkv, L, Dv)`` are the new tokens'. In a padded
    batch ``lengths (...)`` of the ``L`` tokens of each item are real, the first ones, or with ``padding="left"`` the
    last; padding is not kept and takes no position.

    >>> import numpy as np
    >>> from attention_np import cache
    >>> empty = cache.GrowingCache.empty(np.ones(1), num_kv_heads=1, depth=2)
    >>> x = np.ones((1, 3, 2))
    >>> out, longer = empty.attend(x, x, x)
    >>> longer.positions(2)
    array([3, 4])
    """

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """Return the names of the fields that hold Python values; all others hold arrays, or caches."""
        return tuple(f.name for f in fields(cls) if f.metadata.get("option"))  # type: ignore[arg-type]  # a dataclass

    @property
    def reach(self) -> int | None:
        """How many tokens of a sequence are kept at most, before the oldest goes; ``None`` if none ever goes."""
        return None

    def positions(self, count: int, *, lengths: Any = None, padding: str = "right") -> Array:
        """Return the positions ``(..., count)`` of the next ``count`` tokens, ``-1`` for padding."""
        raise NotImplementedError(f"{type(self).__qualname__} must define positions(count)")

    def append(self, key: Array, value: Array, *, lengths: Any = None, padding: str = "right") -> Self:
        """Return the cache with more tokens."""
        raise NotImplementedError(f"{type(self).__qualname__} must define append(key, value)")

    def take(self, rows: Array) -> Self:
        """Return the cache of the sequences ``rows (..., n)``, each as often as it is named: for a beam search.

        ``rows`` are integers into the last batch axis; what axes there are before it stay, and may stand before ``n``.
        """
        raise NotImplementedError(f"{type(self).__qualname__} must define take(rows)")

    def truncate(self, lengths: int | Array) -> Self:
        """Return the cache without the tokens at positions ``lengths (...)`` and after: for those taken back.

        A sequence that is no longer stays as it is.
        """
        raise NotImplementedError(f"{type(self).__qualname__} must define truncate(lengths)")

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
        """Return the output of the new tokens' queries ``(..., Hq, L, D)``, and the cache with their keys and values.

        ``mask`` and ``bias`` go by positions: ``masks.causal()``, windows, ``biases.alibi`` and the like; those of
        arrays, whose axes would have to follow the cache's inside, are refused. ``scale``, ``softcap``, ``sinks`` and
        ``impl`` are those of :func:`dot_product_attention`; with ``return_lse`` the output is a ``Result``. Rows of
        padding mean nothing.
        """
        raise NotImplementedError(f"{type(self).__qualname__} must define attend(query, key, value)")


class Kept(Cache):
    """A cache that holds its tokens itself, the first of them at position ``start``."""

    keys: Array
    values: Array
    lengths: Array
    start: Array
    of_sequences: ClassVar[tuple[str, ...]] = ("keys", "values", "lengths")  # the fields with batch axes

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes."""
        return tuple(self.lengths.shape)

    def stored(self) -> Seen:
        """Return the keys and values that the cache holds, their positions, and a mask that hides empty places."""
        raise NotImplementedError(f"{type(self).__qualname__} must define stored()")

    def lacks(self) -> Array | None:
        """Say which sequences have lost a token that found no place, ``(...)``; ``None`` where none can."""
        return None

    def key_shape(self) -> tuple[int, int, int]:
        """Return ``(Hkv, D, Dv)``."""
        return self.keys.shape[-3], self.keys.shape[-1], self.values.shape[-1]

    def extended(self, key: Array, value: Array, positions: Array, lengths: Array, padded: bool) -> tuple[Seen, Self]:
        """Return what tokens at these positions see, and the cache of ``lengths`` that holds them too."""
        raise NotImplementedError(f"{type(self).__qualname__} must define extended")

    def positions(self, count: int, *, lengths: Any = None, padding: str = "right") -> Array:
        check_padding(lengths, padding, self.batch)
        count = static_int("count", count, least=0)
        xp = array_namespace(("lengths", self.lengths))
        return token_positions(xp, self.start + self.lengths, count, lengths, padding, self.lengths)

    def take(self, rows: Array) -> Self:
        xp = array_namespace(("lengths", self.lengths), ("rows", rows))
        index = row_index(xp, rows, self.batch, self.lengths)
        taken = {name: take_rows(xp, getattr(self, name), self.batch, index) for name in self.of_sequences}
        return replace(self, **taken)  # type: ignore[type-var]  # a dataclass

    def truncate(self, lengths: int | Array) -> Self:
        return replace(self, lengths=self.shortened(lengths))  # type: ignore[type-var]  # a dataclass

    def shortened(self, lengths: Any) -> Array:
        """Return how many tokens are left of each sequence where those at positions ``lengths`` and after go."""
        xp = array_namespace(("lengths", self.lengths))
        left = xp.minimum(self.ends(lengths) - self.start, self.lengths)
        return xp.astype(xp.maximum(left, xp.zeros_like(self.lengths)), self.lengths.dtype)

    def ends(self, lengths: Any) -> Array:
        """Return a caller's ``lengths`` as an array beside the cache's own, or raise for what are none."""
        xp = array_namespace(("lengths", self.lengths))
        lengths = integer_or_array("lengths", lengths)
        check_padding(lengths, "right", self.batch)
        if isinstance(lengths, int):
            return xp.asarray(min(max(lengths, 0), FAR), device=device_of(xp, self.lengths))
        array_namespace(("cache", self.lengths), ("lengths", lengths))
        return as_index(xp, as_array(xp, lengths))

    def append(self, key: Array, value: Array, *, lengths: Any = None, padding: str = "right") -> Self:
        check_tokens(self, key, value)
        return self._extended(key, value, lengths, padding)[2]

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
        check_tokens(self, key, value, query)
        check_call(mask, call, self.reach)
        xp = array_namespace(("query", query))
        dtype = common_dtype(xp, query.dtype, key.dtype, value.dtype)
        if dtype != self.keys.dtype:  # a call of 16 bits may meet a cache of the other 16
            query = cast(xp, query, compute_dtype(xp, dtype))
        positions, seen, cache = self._extended(key, value, lengths, padding)
        result = look(query, positions, seen, mask if lengths is None else both(mask, real()), call)
        out = cast(xp, result.out, dtype)
        return (Result(out, result.lse) if return_lse else out), cache

    def _extended(self, key: Array, value: Array, lengths: Any, padding: str) -> tuple[Array, Seen, Self]:
        count = key.shape[-2]
        positions = self.positions(count, lengths=lengths, padding=padding)
        if lengths is None:
            return positions, *self.extended(key, value, positions, self.lengths + count, False)
        xp = array_namespace(("lengths", self.lengths))
        added = xp.astype(real_tokens(xp, lengths, count, self.lengths), self.lengths.dtype)
        return positions, *self.extended(key, value, positions, self.lengths + added, True)


def check_tokens(cache: Kept, key: Array, value: Array, query: Array | None = None) -> None:
    """Raise for new tokens that do not fit the cache."""
    named = {"key": key, "value": value} | ({} if query is None else {"query": query})
    check_dtypes(array_namespace(*named.items(), ("lengths", cache.lengths)), **named)
    heads, depth, value_depth = cache.key_shape()
    for name, x in named.items():
        if x.ndim < 3 or tuple(x.shape[:-3]) != cache.batch:
            raise ValueError(f"`{name}` has shape {tuple(x.shape)}; the batch axes of this cache are {cache.batch}")
    for name, x, size in (("key", key, depth), ("value", value, value_depth)):
        expected = (*cache.batch, heads, key.shape[-2], size)
        if tuple(x.shape) != expected:
            raise ValueError(f"`{name}` has shape {tuple(x.shape)}; this cache takes {expected}")
    if query is not None and query.shape[-2] != key.shape[-2]:
        raise ValueError(f"`query` has length {query.shape[-2]}, but `key` has {key.shape[-2]}: they are of one token")
    if query is not None and (query.shape[-1] != depth or query.shape[-3] % heads):
        raise ValueError(
            f"`query` has {query.shape[-3]} heads of depth {query.shape[-1]}; this cache takes {depth} deep ones, "
            f"their number a multiple of {heads}"
        )


def look(query: Array, positions: Array, seen: Seen, mask: Any, call: LookCall) -> Result:
    """Attend to what is seen; the rows of tokens that were lost are NaN."""
    result = dot_product_attention(
        query,
        seen.keys,
        seen.values,
        mask=both(mask, seen.mask),
        query_positions=positions,
        key_positions=seen.positions,
        return_lse=True,
        **call,
    )
    if seen.lost is None:
        return result
    xp = array_namespace(("query", query))
    lost = seen.lost[..., None, :]
    out, lse = (
        xp.where(at, scalar_like(xp, xp.nan, x), x) for at, x in ((lost[..., None], result.out), (lost, result.lse))
    )
    return Result(out, lse)


def both(a: Any, b: Any) -> Any:
    """Return the mask of pairs that both see; ``None`` hides nothing."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


def put_tokens(xp: ModuleType, cache: Kept, held: Array, new: Array, slots: Array) -> Array:
    """Return ``held (..., H, S, D)`` with new tokens ``(..., H, L, D)`` at ``slots (..., L)``, not where negative."""
    pool, rows, slots = (flat(xp, x, cache.batch) for x in (held, new, slots))
    pages = xp.arange(pool.shape[0], device=device_of(xp, slots))[:, None] + 0 * slots
    return xp.reshape(put_rows(xp, pool, pages, slots, rows), held.shape)


def flat(xp: ModuleType, x: Array, batch: tuple[int, ...]) -> Array:
    """Return ``x (..., *rest)`` as ``(B, *rest)``."""
    return xp.reshape(x, (prod(batch), *x.shape[len(batch) :]))
