"""What is measured: sizes, masks and biases, and the peers that can do each."""

from dataclasses import dataclass
from typing import Any

import numpy as np

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
        made = {
            None: lambda: None,
            "causal": masks.causal,
            "window": lambda: masks.sliding_window(255, 0),
            "documents": lambda: masks.segments(self.ids()),
            "prefix": lambda: masks.prefix(1024) | masks.causal(),
        }
        bias = biases.alibi(self.heads) if self.bias == "alibi" else None
        call = {"mask": made[self.mask](), "bias": bias}
        if not self.backward:
            return lambda: dot_product_attention(q, k, v, impl=impl, **call)
        result, pullback = vjp(q, k, v, impl=impl, **call)
        cotangent = np.ones_like(result.out)
        return lambda: pullback(cotangent)

    def dense_mask(self) -> Any:
        """Return the mask as booleans, ``None`` for none."""
        i, j = np.arange(self.queries)[:, None], np.arange(self.keys)
        rules = {
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
        slopes = np.array(biases.alibi(self.heads).slopes)[:, None, None]
        return (-slopes * distance).astype(np.float32)[None]

    def float_mask(self) -> Any:
        """Return mask and bias in one array, as PyTorch takes them."""
        mask, bias = self.dense_mask(), self.dense_bias()
        return mask if bias is None else np.where(mask, bias, np.float32(-np.inf))


def all_cases(threads: int) -> list[Case]:
    """Return the table's rows."""
    kernel = ("torch", "plain")
    rows = [
        Case(f"{mask or 'full'}, L {length}, D {depth}", kernel, length, length, depth, mask=mask, heads=2)
        for length, depth in ((2048, 64), (2048, 128), (4096, 64))
        for mask in (None, "causal")
    ]
    rows += [
        Case("onnxruntime, full, L 2048", ("onnxruntime",)),
        Case("onnxruntime, causal", ("onnxruntime",), mask="causal"),
    ]
    long = {"queries": 8192, "keys": 8192, "heads": 1}
    rows += [
        Case(f"{mask}, L 8192", ("torch", "flex"), mask=mask, **long) for mask in ("window", "documents", "prefix")
    ]
    rows += [
        Case("ALiBi, causal, L 2048", ("torch",), heads=8, mask="causal", bias="alibi"),
        Case("large scores (x 16)", ("torch",), heads=2, scale=16.0),
        Case("large scores (x 16), causal", ("torch",), heads=2, scale=16.0, mask="causal"),
        Case("decode, L 8192", ("torch",), 1, 8192, heads=8),
        Case("decode, grouped 32/8, D 128", ("torch",), 1, 8192, 128, 32, 4),
        Case("backward, full, L 2048", ("torch",), heads=2, backward=True),
        Case("backward, causal, L 2048", ("torch",), heads=2, backward=True, mask="causal"),
        Case("small (1, 1, 6, 4)", kernel, 6, 6, 4, 1),
        Case("small (1, 4, 16, 16)", kernel, 16, 16, 16, 4),
        *(
            Case(f"hostile: {kind}", ("ordinary",), heads=2, hostile=kind)
            for kind in ("one far key", "growing", "denormals")
        ),
    ]
    return [Case(**{**vars(row), "threads": threads}) for row in rows]
