"""The layers of one head: three matrices, by the article's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ..arrays import Array, array_namespace
from .layer import Layer, Parameter
from .projected import Projections, check_weights, weight_parameters

__all__ = ["SingleHead"]


@dataclass(frozen=True, eq=False)
class SingleHead(Layer):
    """``W_query`` and ``W_key`` are ``(d_in, d_out_kq)``, ``W_value`` is ``(d_in, d_out_v)``, ``d_out_v`` free."""

    W_query: Array
    W_key: Array
    W_value: Array

    size_names: ClassVar[tuple[str, ...]] = ("d_in", "d_out_kq", "d_out_v")

    @classmethod
    def parameters(cls, **sizes: Any) -> dict[str, Parameter]:
        return weight_parameters("", **cls.check_sizes(sizes))

    @classmethod
    def from_state_dict(cls, weights: Mapping[str, Array]) -> Self:
        check_weights(weights)
        return cls(**weights)

    def state_dict(self) -> dict[str, Array]:
        return {"W_query": self.W_query, "W_key": self.W_key, "W_value": self.W_value}

    def _stacked(self) -> Projections:
        weights = self.state_dict()
        array_namespace(*weights.items())  # a constructor takes anything
        return Projections(*(weight[None, ...] for weight in weights.values()))

    @classmethod
    def _of(cls, weights: Projections) -> Self:
        return cls(*(weight[0, ...] for weight in weights))
