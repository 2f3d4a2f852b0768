"""What is measured: sizes, masks and biases, and the peers that can do each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from attention_core.biases.distance import Alibi
from attention_np import biases, dot_product_attention, masks, vjp


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    peers: tuple[str, ...]
    queries: int = 2048
    keys: int = 2048
    depth: int = 64
    heads: int = 4
    group: int = 1
    mask: str | None = None
    bias: str | None = None
    scale: float = 1.0
    backward: bool = False
    threads: int = 1
    hostile: str | None = None
    extra: str | None = None  # the one that counts as installed
    short: bool = False  # stands in the README too

    def scores(self) -> int:
        """Return how many there are, masked ones too."""
        return self.heads * self.queries * self.keys

    def ordinary(self) -> Case:
        """Return the case with scores as they usually are."""
        return replace(self, hostile=None)

    def arrays(self) -> tuple[Any, Any, Any]:
        """Return query, key and value, the same each time."""
        rng = np.random.default_rng(0)
        shapes = [(self.heads, self.queries), *[(self.heads // self.group, self.keys)] * 2]
        q, k, v = (rng.standard_normal((1, *shape, self.depth), np.float32) for shape in shapes)
        q *= np.float32(self.scale)
        if self.hostile == "one far key":
            k[:, :, self.keys // 2] *= 100
        elif self.hostile == "growing":
            k *= np.linspace(0, 20, self.keys, dtype=np.float32)[:, None]
        elif self.hostile == "denormals":
            q[..., 0], k[..., 0] = 100, np.where(np.arange(self.keys) % 2, 0, -8)
        return q, k, v

    def ids(self) -> Any:
        """Return the documents of the keys, 16 of unequal lengths."""
        return np.sort(np.random.default_rng(1).integers(0, 16, self.keys))

    def ours(self, impl: str = "auto") -> Any:
        """Return the call to time."""
        q, k, v = self.arrays()
        made: dict[str | None, Callable[[], Any]] = {
            None: lambda: None,
            "causal": masks.causal,
            "window": lambda: masks.sliding_window(255, 0),
            "documents": lambda: masks.segments(self.ids()),
            "prefix": lambda: masks.prefix(1024) | masks.causal(),
        }
        bias = biases.alibi(self.heads) if self.bias == "alibi" else None
        call: dict[str, Any] = {"mask": made[self.mask](), "bias": bias}
        if not self.backward:
            return lambda: dot_product_attention(q, k, v, impl=impl, **call)
        result, pullback = vjp(q, k, v, impl=impl, **call)
        cotangent = np.ones_like(result.out)
        return lambda: pullback(cotangent)

    def dense_mask(self) -> Any:
        """Return the mask as booleans, ``None`` for none."""
        i, j = np.arange(self.queries)[:, None], np.arange(self.keys)
        rules: dict[str, Callable[[], Any]] = {
            "causal": lambda: i >= j,
            "window": lambda: (i >= j) & (i - j < 256),
            "documents": lambda: self.ids()[:, None] == self.ids(),
            "prefix": lambda: (i >= j) | (j < 1024),
        }
        return rules[self.mask]() if self.mask else None

    def dense_bias(self) -> Any:
        """Return the bias as numbers, ``None`` for none."""
        if self.bias is None:
            return None
        distance = np.abs(np.arange(self.queries)[:, None] - np.arange(self.keys))
        slopes = np.array(cast(Alibi, biases.alibi(self.heads)).slopes)[:, None, None]
        return (-slopes * distance).astype(np.float32)[None]

    def float_mask(self) -> Any:
        """Return mask and bias in one array, as PyTorch takes them."""
        mask, bias = self.dense_mask(), self.dense_bias()
        return mask if bias is None else np.where(mask, bias, np.float32(-np.inf))


def all_cases() -> list[Case]:
    """Return the table's rows."""
    return [*_whole(), *_with_extras(), *_masked(), *_decoded(), *_backward(), *_small(), *_hostile()]


def _whole() -> list[Case]:
    sizes = [("", 2048, 64, 1), ("", 2048, 128, 1), ("", 4096, 64, 1), ("2 threads, ", 4096, 64, 2)]
    return [
        Case(
            f"{prefix}{mask or 'full'}, L {length}, D {depth}",
            ("torch", "onnxruntime", "plain") if (length, depth) == (2048, 64) else ("torch", "plain"),
            length,
            length,
            depth,
            mask=mask,
            heads=2,
            threads=threads,
            short=length == 2048,
        )
        for prefix, length, depth, threads in sizes
        for mask in (None, "causal")
    ]


def _with_extras() -> list[Case]:
    whole = [case for case in _whole() if case.queries == 2048]
    others = [case for case in (*_whole(), *_masked(), *_backward()) if case.threads == 2 or case not in _whole()]
    return [
        *(_with_extra("mkl", case, ("torch",)) for case in whole),
        *(_with_extra("numba", case, ("torch", "plain")) for case in whole),
        *(replace(_with_extra("numba", case, case.peers), short=False) for case in others),
    ]


def _with_extra(extra: str, case: Case, peers: tuple[str, ...]) -> Case:
    return replace(case, name=f"extra {extra}: {case.name}", peers=peers, extra=extra)


def _masked() -> list[Case]:
    long: dict[str, Any] = {"queries": 8192, "keys": 8192, "heads": 1, "short": True}
    return [
        Case("window 256, L 8192", ("torch", "flex"), mask="window", **long),
        Case("16 documents, L 8192", ("torch", "flex"), mask="documents", **long),
        Case("prefix 1024, L 8192", ("torch", "flex"), mask="prefix", **long),
        Case("ALiBi, causal, L 2048", ("torch",), heads=8, mask="causal", bias="alibi", short=True),
        Case("large scores (x 16), full", ("torch",), heads=2, scale=16.0, short=True),
        Case("large scores (x 16), causal", ("torch",), heads=2, scale=16.0, mask="causal"),
    ]


def _decoded() -> list[Case]:
    return [
        Case("decode, 8192 keys, D 64", ("torch", "plain"), 1, 8192, heads=8, short=True),
        Case("decode, grouped 32/8, D 128", ("torch", "plain"), 1, 8192, 128, 32, 4, short=True),
    ]


def _backward() -> list[Case]:
    return [
        Case(
            f"backward, {mask or 'full'}, L {length}",
            ("torch",),
            length,
            length,
            heads=heads,
            mask=mask,
            backward=True,
            short=length == 2048,
        )
        for length, heads in ((2048, 2), (8192, 1))
        for mask in (None, "causal")
    ]


def _small() -> list[Case]:
    peers = ("torch", "plain")
    return [
        Case("small, (1, 1, 6, 4)", peers, 6, 6, 4, 1, short=True),
        Case("small, (1, 4, 16, 16)", peers, 16, 16, 16, 4, short=True),
        Case("small, (1, 8, 128, 64)", peers, 128, 128, 64, 8),
    ]


def _hostile() -> list[Case]:
    kinds = ("one far key", "growing", "denormals")
    return [Case(f"adversarial: {kind}", ("ordinary",), heads=2, hostile=kind) for kind in kinds]
