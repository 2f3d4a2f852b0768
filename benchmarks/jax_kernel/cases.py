"""What is measured: sizes and masks, with and without gradients, and our own call for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

WINDOW = 256  # keys that a query sees, itself included


@dataclass(frozen=True)
class Case:
    """One row of the table; float32, each peer in the layout that it documents."""

    name: str
    peers: tuple[str, ...]
    queries: int = 2048
    keys: int = 2048
    depth: int = 64
    heads: int = 4
    group: int = 1
    mask: str | None = None
    backward: bool = False

    def arrays(self, layout: str = "BHLD") -> list[np.ndarray]:
        """Return query, key and value, the same each time."""
        rng = np.random.default_rng(0)
        shapes = [(self.heads, self.queries), *[(self.heads // self.group, self.keys)] * 2]
        given = [rng.standard_normal((1, *shape, self.depth), np.float32) for shape in shapes]
        return given if layout == "BHLD" else [np.ascontiguousarray(x.swapaxes(1, 2)) for x in given]

    def ours(self, impl: str = "auto") -> Callable[..., Any]:
        """Return our function of query, key and value."""
        from attention_jax import dot_product_attention, masks

        makers: dict[str | None, Callable[[], Any]] = {
            None: lambda: None,
            "causal": masks.causal,
            "window": lambda: masks.sliding_window(WINDOW - 1, 0),
        }
        mask = makers[self.mask]()
        return lambda q, k, v: dot_product_attention(q, k, v, mask=mask, impl=impl)


def differentiated(fn: Callable[..., Any], case: Case) -> Callable[..., Any]:
    """Return what is timed: the call, or it and its gradients by all three arrays."""
    import jax

    if not case.backward:
        return fn

    def run(*arrays: Any) -> Any:
        out, pullback = jax.vjp(fn, *arrays)
        return out, pullback(out)

    return run


def all_cases() -> list[Case]:
    """Return the table's rows."""
    jax_peers, peers = ("jax.nn", "tokamax"), ("jax.nn", "tokamax", "torch")
    rows = [
        Case(f"{mask or 'full'}, L {length}, D {depth}{', gradients' * backward}", peers, length, length, depth, heads,
             mask=mask, backward=backward)
        for backward in (False, True)
        for length, depth, heads in ((2048, 64, 4), (2048, 128, 4), (8192, 64, 1))
        for mask in (None, "causal")
        if not (backward and length == 8192 and mask is None)
    ]  # fmt: skip
    rows += [
        Case(f"window {WINDOW}, L 8192{', gradients' * backward}", jax_peers, 8192, 8192, 64, 1, 1, "window", backward)
        for backward in (False, True)
    ]
    rows += [
        Case(f"{mask or 'full'}, L {length}{', gradients' * backward}", peers, length, length, 64, 8, 1, mask, backward)
        for length in (128, 512)
        for mask in (None, "causal")
        for backward in (False, True)
    ]
    return [
        *rows,
        Case("decode, 8192 keys", peers, 1, 8192, 64, 8),
        Case("decode, 8192 keys, grouped 32/8, D 128", peers, 1, 8192, 128, 32, 4),
    ]
