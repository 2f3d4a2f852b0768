"""Write rows into a pool without changing it: in place under JAX's compiler, by a copy and slices elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from ..arrays import Array, cast, library_name

__all__ = ["put_rows"]


class _Run(NamedTuple):
    """Rows ``row ... row + length - 1`` of one sequence that go to as many slots of one page, from ``slot`` on."""

    sequence: int
    row: int
    page: int
    slot: int
    length: int


def put_rows(xp: ModuleType, pool: Array, pages: Array, slots: Array, rows: Array) -> Array:
    """Return ``pool (N, H, S, D)`` with ``rows (B, H, L, D)`` at ``[pages, :, slots]``, both ``(B, L)``.

    No two rows have one place; a row whose page or slot is negative is dropped.
    """
    rows = cast(xp, rows, pool.dtype)
    if library_name(xp) == "jax":
        nowhere = (pages < 0) | (slots < 0)
        pages, slots = xp.where(nowhere, pool.shape[0], pages), xp.where(nowhere, 0, slots)
        return pool.at[pages, :, slots].set(xp.moveaxis(rows, 1, 2), mode="drop")
    written = xp.asarray(pool, copy=True)
    for b, row, page, slot, length in _runs(_numbers(pages), _numbers(slots)):
        written[page, :, slot : slot + length, :] = rows[b, :, row : row + length, :]
    return written


def _numbers(x: Array) -> list[list[int]]:
    if hasattr(x, "tolist"):  # not in the standard, but everywhere that matters, and many times faster
        return x.tolist()
    return [[int(x[b, t]) for t in range(x.shape[1])] for b in range(x.shape[0])]


def _runs(pages: list[list[int]], slots: list[list[int]]) -> Iterator[_Run]:
    for b, places in enumerate(zip(pages, slots, strict=True)):
        run: _Run | None = None
        for row, (page, slot) in enumerate(zip(*places, strict=True)):
            if run is not None and (page, slot) == (run.page, run.slot + run.length):
                run = run._replace(length=run.length + 1)
                continue
            if run is not None:
                yield run
            run = _Run(b, row, page, slot, 1) if page >= 0 and slot >= 0 else None
        if run is not None:
            yield run
