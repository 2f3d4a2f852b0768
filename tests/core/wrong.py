"""What a wrong call is, to the tests: a row of the tables in ``wrong_calls`` and ``wrong_masks``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import attention_core as core
from tests.core.libraries import Library

B, HQ, HKV, LQ, LK, D, DV = 3, 4, 2, 5, 6, 7, 8
F32, I32 = np.float32, np.int32


class Arrays:
    """Makes a library's arrays, traced ones while tracing, and remembers what they held."""

    def __init__(self, library: Library):
        self.library = library
        self.made: list[tuple[Any, np.ndarray]] = []

    def __call__(self, x: np.ndarray) -> Any:
        ours = self.library.to(x)
        if self.library.jit:
            import jax

            return jax.lax.optimization_barrier(ours)
        self.made.append((ours, x.copy()))
        return ours

    def zeros(self, *shape: int, dtype: Any = F32) -> Any:
        return self(np.zeros(shape, dtype))

    @property
    def qkv(self) -> tuple[Any, Any, Any]:
        return self.zeros(B, HQ, LQ, D), self.zeros(B, HKV, LK, D), self.zeros(B, HKV, LK, DV)

    def attend(self, **call: Any) -> Any:
        return core.dot_product_attention(*self.qkv, **call)


@dataclass(frozen=True)
class Wrong:
    """A wrong call, the kind of its error, and words that the message must have: the argument, the rule, what came."""

    name: str
    call: Callable[[Arrays], Any]
    error: type[Exception]
    words: tuple[str, ...]
    lacking: dict[str, str] = field(default_factory=dict)  # library: why the call cannot be written there


def value(name: str, call: Callable[[Arrays], Any], *words: str) -> Wrong:
    return Wrong(name, call, ValueError, words)


def kind(name: str, call: Callable[[Arrays], Any], *words: str, **lacking: str) -> Wrong:
    return Wrong(name, call, TypeError, words, lacking)
