"""What all tiles of one call share, and the order of its jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_core.pairs import Pairs
from attention_core.problem import Problem

from .decode import FEW_BYTES
from .exponent import Exponential, exponential
from .gemm import Multiply, multiply
from .heads import Heads
from .plan import Plan, TilePlan, TileShape, has_few_queries, plans_of, tile_shape
from .scores import Distances, Place
from .threads import get_num_threads

__all__ = ["Call", "Where"]

_FEW_SCORES = 2**19

Where = tuple[tuple[int, ...], int, TilePlan]
"""A job: batch item, key/value head, tile of queries."""


@dataclass(frozen=True, eq=False)
class Call:
    """A problem with its arrays broadcast to ``(*batch, H, L, D)``, its plans, and the means to compute it."""

    problem: Problem
    query: Any
    key: Any
    value: Any
    pairs: Pairs
    plans: dict[tuple[tuple[int, ...], int], Plan]
    exponential: Exponential
    multiply: Multiply
    distances: Distances | None
    heads: Heads
    odd_sinks: bool
    few: bool

    @classmethod
    def of(cls, problem: Problem, shape: TileShape | None = None, few: bool | None = None) -> Call:
        """Plan a call; ``shape`` and ``few`` are for tests."""
        p, sizes = problem, problem.sizes
        few = has_few_queries(p) if few is None else few
        plans = plans_of(p, shape or tile_shape(p, few))
        exp = exponential(np.dtype(p.dtype))
        query, key, value = (np.broadcast_to(x, (*sizes.batch, *x.shape[-3:])) for x in (p.query, p.key, p.value))
        jobs = Counter({(*item, head): len(plan.tiles) for (item, head), plan in plans.items()})
        return cls(
            problem=p,
            query=query,
            key=key,
            value=value,
            pairs=p.pairs(),
            plans=plans,
            exponential=exp,
            multiply=multiply(),
            distances=Distances.of(p, exp.unit),
            heads=Heads(key, value, p.dtype, jobs),
            few=few,
            odd_sinks=p.sinks is not None and not bool((p.sinks.astype(p.dtype) < np.inf).all()),
        )

    def jobs(self) -> Iterator[Where]:
        """Yield head after head, so that few are in memory, and the longest tiles of each first."""
        for (item, head), plan in self.plans.items():
            for tile in sorted(plan.tiles, key=lambda each: -each.cost):
                yield item, head, tile

    def threads(self, number: int | None = None) -> int:
        """Return how many threads are worth it: waking one costs as much as some ten thousand scores."""
        scores = sum(tile.cost for plan in self.plans.values() for tile in plan.tiles) * self.problem.sizes.group
        jobs = sum(len(plan.tiles) for plan in self.plans.values())
        read = (self.key.size + self.value.size) * self.problem.dtype.itemsize
        if (read < FEW_BYTES) if self.few else (scores < _FEW_SCORES):
            return 1
        return max(1, min(number or get_num_threads(), jobs))

    def place(self, where: Where) -> Place:
        """Return where a job's tile stands."""
        (item, head, tile), group = where, self.problem.sizes.group
        return Place(self.problem, self.pairs, item, (head * group, (head + 1) * group), tile)

    def arrays(self, where: Where) -> tuple[Any, Any, Any]:
        """Return a job's query heads, key head and value head as the caller gave them."""
        item, head, _ = where
        group = self.problem.sizes.group
        return self.query[item][head * group : (head + 1) * group], self.key[item][head], self.value[item][head]
