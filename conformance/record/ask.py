"""A case of a group in a few lines: sizes, rules, what it must tell apart. Everything else is drawn or computed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DTYPES = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Size:
    """Sizes by their letters; `heads` 0 means plain (L, D) arrays."""

    queries: int
    keys: int
    depth: int
    value_depth: int
    heads: int = 0
    kv: int = 0
    batch: tuple[int, ...] = ()
    kv_batch: tuple[int, ...] | None = None

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of the scores."""
        return (*self.batch, *((self.heads,) if self.heads else ()), self.queries, self.keys)


@dataclass(frozen=True, eq=False)
class Ask:
    """One case to ask. `kills` names the departures that it must tell from the truth, `same` those that coincide.

    `prefer` names those to enter first where they can be told apart. `loud` is how much larger than elsewhere PyTorch's
    own error in 16 bits is in the group, where gradients are large.
    """

    id: str
    name: str
    why: str
    failure: str
    size: Size
    mask: Any = None
    bias: Any = None
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    dropout: float | None = None
    seed: Any = None
    origin: tuple[int, int, int, int] = (0, 0, 0, 0)
    query_positions: Any = 0
    key_positions: Any = 0
    layout: str = "BHLD"
    kills: str = ""
    prefer: str = ""
    same: Mapping[str, str] = field(default_factory=dict)
    reports: str = ""
    outputs: str = "out lse"
    lse_cotangent: bool = False
    gradients: bool = True
    tangents: bool = False
    dtypes: tuple[str, ...] = DTYPES
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    spread: float = 2.0
    loud: float = 1.0
    edit: Callable[[dict[str, np.ndarray]], None] | None = None
    memory: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    valid: bool = True
    flags: tuple[str, ...] = ()
