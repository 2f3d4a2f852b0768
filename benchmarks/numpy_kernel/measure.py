"""Memory in processes of their own, and growth with the length."""

from __future__ import annotations

import subprocess
import sys

from ..turns import once
from .cases import Case

MASKS = ("none", "causal", "window", "prefix", "documents", "rule", "global")

MEMORY = """
import sys
import numpy as np
from attention_np import dot_product_attention, masks
from benchmarks.turns import peak_mib
length = int(sys.argv[1])
x = np.ones((1, 4, length, 64), np.float32)
made = {"none": None, "causal": masks.causal(), "window": masks.sliding_window(255, 0),
        "prefix": masks.prefix(99) | masks.causal(), "documents": masks.segments(np.arange(length) // 600),
        "rule": masks.rule(lambda b, h, i, j: (i + j) % 3 > 0),
        "global": masks.global_tokens(9) | masks.sliding_window(99, 0)}
dot_product_attention(x[:, :, :600], x[:, :, :600], x[:, :, :600], impl="tiled")
print(peak_mib(lambda: dot_product_attention(x, x, x, mask=made[sys.argv[2]])) - x.nbytes / 2**20)
"""


def extra_memory(length: int, mask: str) -> float:
    """Return the peak MiB of one call beyond inputs and output, in a process of its own; Linux counts it."""
    command = [sys.executable, "-c", MEMORY, str(length), mask]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def growth(lengths: tuple[int, ...]) -> list[dict[str, float]]:
    """Return time and extra memory of a causal call of 4 heads for each length."""
    found = []
    for length in lengths:
        ours = Case("", (), length, length, heads=4, mask="causal").ours("tiled")
        seconds = min(once(ours) for _ in range(3 if length < 8192 else 1))
        found.append({"length": length, "ms": 1e3 * seconds, "mib": extra_memory(length, "causal")})
    return found
