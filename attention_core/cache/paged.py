"""The cache of a server: pages of one pool, handed to sequences as they grow (PagedAttention, Kwon et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from types import ModuleType
from typing import Self, Unpack

from ..arrays import Array, array_namespace, default_int, device_of, is_traced, library_name
from ..masks import key_lengths
from ..values import static_int
from .base import Kept, Seen, flat
from .empty import Shape, empty_arrays, made_like, no_tokens
from .rows import row_index, take_rows
from .write import put_rows

__all__ = ["PagedCache"]

NO_PAGE = -1


@dataclass(frozen=True, eq=False)
class PagedCache(Kept):
    """Keys and values in ``pages`` of ``page_size`` tokens, so that short sequences leave their room to long ones.

    Token ``i`` of a sequence stands in page ``table[..., i // page_size]``, row ``i % page_size``. Pages are taken as
    they are needed, and given back by ``release``. All shapes are fixed, for ``jax.jit`` and scans.

    A token for which no page is left, or beyond ``max_pages`` of its sequence, is a ``ValueError`` where that is known.
    Under a trace it is not: then it is not kept, and its rows of the output are NaN, as are those of all tokens after.

    >>> import numpy as np
    >>> from attention_np import cache
    >>> sizes = {"num_kv_heads": 1, "depth": 2, "pages": 5, "page_size": 2}
    >>> empty = cache.PagedCache.empty(np.ones(1), batch=(2,), **sizes)
    >>> x = np.ones((2, 1, 3, 2))
    >>> held = empty.append(x, x, lengths=np.array([1, 3]))
    >>> held.table[:, :3]
    array([[ 0, -1, -1],
           [ 1,  2, -1]])
    >>> held.release(np.array([True, False])).free_pages
    3
    """

    keys: Array
    values: Array
    table: Array
    free: Array
    used: Array
    lengths: Array
    start: Array

    @classmethod
    def empty(
        cls, like: Array, *, pages: int, page_size: int, max_pages: int | None = None, **shape: Unpack[Shape]
    ) -> Self:
        """Return a cache without tokens, of the library, dtype and device of ``like``.

        A sequence may have ``max_pages`` pages, by default all there are.
        """
        xp, batch, heads, depths = made_like(like, shape)
        pages, size = static_int("pages", pages, least=1), static_int("page_size", page_size, least=1)
        most = pages if max_pages is None else static_int("max_pages", max_pages, least=1)
        keys, values = empty_arrays(like, xp, *((pages, heads, size, each) for each in depths))
        dtype, device = default_int(xp), device_of(xp, like)
        table = xp.full((*batch, most), NO_PAGE, dtype=dtype, device=device)
        free, used = xp.arange(pages, device=device), xp.zeros((), dtype=dtype, device=device)
        return cls(keys, values, table, free, used, *no_tokens(like, xp, batch))

    @property
    def page_size(self) -> int:
        """Tokens a page."""
        return int(self.keys.shape[-2])

    @property
    def free_pages(self) -> int:
        """How many pages of the pool no sequence has."""
        return int(self.free.shape[0] - self.used)

    def lacks(self) -> Array:
        xp = array_namespace(("lengths", self.lengths))
        return self.lengths > self.page_size * _unbroken(xp, self.table)

    def stored(self) -> Seen:
        """Return all pages of each sequence side by side: a copy as large as the longest one, or all where traced."""
        xp = array_namespace(("keys", self.keys))
        table, most = flat(xp, self.table, self.batch), self.table.shape[-1]
        if library_name(xp) != "jax" and 0 not in self.lengths.shape:
            most = min(most, max(1, -(-int(xp.max(self.lengths)) // self.page_size)))
        pages = xp.reshape(xp.clip(table[:, :most], 0, None), (-1,))
        keys, values = (self._gathered(xp, xp.take(x, pages, axis=0), most) for x in (self.keys, self.values))
        return Seen(keys, values, self.start, key_lengths(self.lengths))

    def _gathered(self, xp: ModuleType, taken: Array, most: int) -> Array:
        """Return pages ``(B * most, H, S, D)`` as ``(..., H, most * S, D)``."""
        _, heads, size, depth = taken.shape
        by_head = xp.moveaxis(xp.reshape(taken, (prod(self.batch), most, heads, size, depth)), 2, 1)
        return xp.reshape(by_head, (*self.batch, heads, most * size, depth))

    def extended(self, key: Array, value: Array, positions: Array, lengths: Array, padded: bool) -> tuple[Seen, Self]:
        xp = array_namespace(("key", key))
        table, used = self._with_pages(xp, lengths)
        pages, lost = _pages_of(xp, table, flat(xp, positions - self.start, self.batch) // self.page_size)
        lost = xp.reshape(lost, positions.shape) & (positions >= 0)
        if not is_traced(lost) and bool(xp.any(lost)):
            raise ValueError(
                f"this cache has {self.free_pages} free pages of {self.page_size} tokens, and at most "
                f"{self.table.shape[-1]} a sequence: too few for sequences of up to {int(xp.max(lengths))} tokens"
            )
        kept = flat(xp, (positions >= 0) & ~lost, self.batch)
        rows = xp.where(kept, flat(xp, positions - self.start, self.batch) % self.page_size, -1)
        keys, values = (
            put_rows(xp, pool, pages, rows, flat(xp, new, self.batch))
            for pool, new in ((self.keys, key), (self.values, value))
        )
        table = xp.reshape(table, self.table.shape)
        cache = replace(self, keys=keys, values=values, table=table, used=used, lengths=lengths)
        return cache.stored()._replace(lost=lost if is_traced(lost) else None), cache

    def _with_pages(self, xp: ModuleType, lengths: Array) -> tuple[Array, Array]:
        """Return the table ``(B, max_pages)`` with pages for these lengths, and how many pages are in use."""
        table, most = flat(xp, self.table, self.batch), self.table.shape[-1]
        held, needed = (
            xp.clip(-(-flat(xp, x, self.batch) // self.page_size), 0, most)[:, None] for x in (self.lengths, lengths)
        )
        items = xp.arange(table.shape[0], device=device_of(xp, table))
        before = xp.where(items[:, None] > items[None, :], (needed - held)[None, :, 0], 0 * items[None, :])
        first = self.used + xp.sum(before, axis=-1, keepdims=True, dtype=self.used.dtype)
        column = xp.arange(most, device=device_of(xp, table))[None, :]
        rank, pool = first + column - held, self.free.shape[0]
        page = xp.reshape(xp.take(self.free, xp.reshape(xp.clip(rank, 0, pool - 1), (-1,))), rank.shape)
        page = xp.where(rank < pool, page, NO_PAGE + 0 * page)
        taken = xp.where((column >= held) & (column < needed), page, table)
        return taken, xp.clip(self.used + xp.sum(needed - held, dtype=self.used.dtype), 0, pool)

    def release(self, finished: Array) -> Self:
        """Return the cache in which the sequences where ``finished (...)`` is true are empty, and their pages free."""
        xp = array_namespace(("finished", finished), ("lengths", self.lengths))
        if finished.dtype != xp.bool or tuple(finished.shape) != self.batch:
            raise ValueError(
                f"`finished` must be booleans of shape {self.batch}; got {finished.dtype} {finished.shape}"
            )
        return self._only(xp.where(finished, xp.zeros_like(self.lengths), self.lengths))

    def truncate(self, lengths: int | Array) -> Self:
        return self._only(self.shortened(lengths))

    def _only(self, lengths: Array) -> Self:
        """Return the cache with as many tokens of each sequence, and all other pages free."""
        xp = array_namespace(("lengths", lengths))
        column = xp.arange(self.table.shape[-1], device=device_of(xp, lengths))
        table = xp.where(column < -(-lengths // self.page_size)[..., None], self.table, NO_PAGE)
        pages = xp.arange(self.free.shape[0], device=device_of(xp, table))
        in_use = xp.any(xp.reshape(table, (-1, 1)) == pages[None, :], axis=0)
        dtype = self.used.dtype
        free = xp.astype(xp.argsort(xp.astype(~in_use, dtype), stable=True), self.free.dtype)
        return replace(
            self, table=table, free=free, used=xp.sum(xp.astype(in_use, dtype), dtype=dtype), lengths=lengths
        )

    def take(self, rows: Array) -> Self:
        """Return the cache of the sequences ``rows (..., n)``, each with pages of its own, copied."""
        xp = array_namespace(("lengths", self.lengths), ("rows", rows))
        index = row_index(xp, rows, self.batch, self.lengths)
        lengths, old = (take_rows(xp, x, self.batch, index) for x in (self.lengths, self.table))
        column = xp.arange(old.shape[-1], device=device_of(xp, old))
        old = xp.where(column < _unbroken(xp, old)[..., None], old, NO_PAGE)  # or a page would take a lost one's place
        table, sources = _repacked(xp, xp.reshape(old, (-1, old.shape[-1])), self.free)
        if not is_traced(table) and bool(xp.any((xp.reshape(table, old.shape) == NO_PAGE) & (old != NO_PAGE))):
            raise ValueError(f"this cache has {self.free.shape[0]} pages, too few for these `rows`: each has its own")
        keys, values = (xp.take(pool, sources, axis=0) for pool in (self.keys, self.values))
        used = xp.sum(xp.astype(table != NO_PAGE, self.used.dtype), dtype=self.used.dtype)
        free = xp.arange(self.free.shape[0], device=device_of(xp, table))
        table = xp.reshape(table, old.shape)
        return replace(self, keys=keys, values=values, table=table, free=free, used=used, lengths=lengths)


def _pages_of(xp: ModuleType, table: Array, columns: Array) -> tuple[Array, Array]:
    """Return the pages of columns ``(B, L)`` of the table, and whether a page is missing there or before."""
    count, most = table.shape
    missing = _unbroken(xp, table)[:, None]
    first = xp.arange(count, device=device_of(xp, table))[:, None] * most
    places = first + xp.clip(columns, 0, most - 1)
    pages = xp.reshape(xp.take(xp.reshape(table, (-1,)), xp.reshape(places, (-1,))), places.shape)
    return pages, columns >= missing


def _unbroken(xp: ModuleType, table: Array) -> Array:
    """Return how many pages each sequence has before the first that is missing, ``(...)`` of ``(..., max_pages)``."""
    column, most = xp.arange(table.shape[-1], device=device_of(xp, table)), table.shape[-1]
    return xp.min(xp.where(table == NO_PAGE, column, most + 0 * column), axis=-1)


def _repacked(xp: ModuleType, old: Array, free: Array) -> tuple[Array, Array]:
    """Return a table ``(B, max_pages)`` of the first pages, one after the other, and the old page of each new one."""
    (count, most), pool = old.shape, free.shape[0]
    held = xp.sum(xp.astype(old != NO_PAGE, old.dtype), axis=-1, dtype=old.dtype)
    ends = xp.cumulative_sum(held)
    first = ends - held
    column, pages = (xp.arange(n, device=device_of(xp, old)) for n in (most, pool))
    page = first[:, None] + column
    table = xp.where((column < held[:, None]) & (page < pool), page, NO_PAGE)
    if count == 0:
        return table, pages
    owner = xp.clip(xp.searchsorted(ends, pages, side="right"), 0, count - 1)
    place = owner * most + xp.clip(pages - xp.take(first, owner), 0, most - 1)
    return table, xp.clip(xp.take(xp.reshape(old, (-1,)), place), 0, None)
