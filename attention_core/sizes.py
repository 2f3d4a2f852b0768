"""The shape legend: the letters that every docstring and error message uses."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Sizes"]


class Sizes(NamedTuple):
    """Sizes of one call.

    ========  ==================================================================================
    letter    meaning
    ========  ==================================================================================
    ``...``   leading (batch) axes, broadcast together: ``batch``
    ``Hq``    query heads: ``heads``; query head ``h`` reads key/value head ``h // (Hq / Hkv)``
    ``Hkv``   key/value heads: ``kv_heads``
    ``Lq``    number of queries: ``queries``
    ``Lk``    number of keys: ``keys``
    ``D``     depth of query and key: ``depth``
    ``Dv``    depth of value: ``value_depth``
    ========  ==================================================================================
    """

    batch: tuple[int, ...]
    heads: int
    kv_heads: int
    queries: int
    keys: int
    depth: int
    value_depth: int

    @property
    def scores(self) -> tuple[int, ...]:
        """Shape of scores, weights, mask and bias: ``(..., Hq, Lq, Lk)``."""
        return (*self.batch, self.heads, self.queries, self.keys)

    @property
    def out(self) -> tuple[int, ...]:
        """Shape of the output: ``(..., Hq, Lq, Dv)``."""
        return (*self.batch, self.heads, self.queries, self.value_depth)

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads if self.kv_heads else 1
