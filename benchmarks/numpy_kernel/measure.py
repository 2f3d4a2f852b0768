"""Times in turn, memory in processes of their own, and slopes against the length."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cases import Case

Run = Callable[[], Any]

MASKS = ("none", "causal", "window", "prefix", "documents", "rule", "global")

MEMORY = """
import sys
from pathlib import Path
import numpy as np
from attention_np import dot_product_attention, masks
def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
length = int(sys.argv[1])
x = np.ones((1, 4, length, 64), np.float32)
made = {"none": None, "causal": masks.causal(), "window": masks.sliding_window(255, 0),
        "prefix": masks.prefix(99) | masks.causal(), "documents": masks.segments(np.arange(length) // 600),
        "rule": masks.rule(lambda b, h, i, j: (i + j) % 3 > 0),
        "global": masks.global_tokens(9) | masks.sliding_window(99, 0)}
dot_product_attention(x[:, :, :600], x[:, :, :600], x[:, :, :600], impl="tiled")
Path("/proc/self/clear_refs").write_text("5")  # the peak counts anew
before = status("VmRSS")
out = dot_product_attention(x, x, x, mask=made[sys.argv[2]])
print((status("VmHWM") - before) / 1024 - out.nbytes / 2**20)
"""


def compare(ours: Run, others: dict[str, Run], seconds: float, pause: float) -> list[dict[str, Any]]:
    """Time everybody in turn; a peer's ratio is the median of the rounds' ratios, peer to ours."""
    runs = {"ours": ours, **others}
    once = {name: _once(run) for name, run in runs.items()}
    rounds: list[dict[str, float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < 3 or (time.perf_counter() < end and len(rounds) < 201):
        rounds.append({name: _several(run, once[name], pause) for name, run in runs.items()})
    return [_row(name, rounds) for name in others]


def _row(name: str, rounds: list[dict[str, float]]) -> dict[str, Any]:
    ratios = sorted(each[name] / each["ours"] for each in rounds)
    return {
        "peer": name,
        "ratio": statistics.median(ratios),
        "low": ratios[len(ratios) // 4],
        "high": ratios[-1 - len(ratios) // 4],
        "ours_ms": 1e3 * statistics.median(each["ours"] for each in rounds),
        "peer_ms": 1e3 * statistics.median(each[name] for each in rounds),
        "rounds": len(rounds),
    }


def _once(run: Run) -> float:
    run()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _several(run: Run, once: float, pause: float) -> float:
    """Time calls after one that is discarded, and after the others' threads have gone to sleep."""
    time.sleep(pause)
    if once < 0.2:
        run()
    number = max(1, math.ceil(0.01 / once))
    start = time.perf_counter()
    for _ in range(number):
        run()
    return (time.perf_counter() - start) / number


def extra_memory(length: int, mask: str) -> float:
    """Return the peak MiB of one call beyond inputs and output, in a process of its own; Linux counts it."""
    if not Path("/proc/self/clear_refs").exists():
        return math.nan
    command = [sys.executable, "-c", MEMORY, str(length), mask]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def growth(lengths: tuple[int, ...]) -> list[dict[str, float]]:
    """Return time and extra memory of a causal call of 4 heads for each length."""
    found = []
    for length in lengths:
        ours = Case("", (), length, length, heads=4, mask="causal").ours("tiled")
        seconds = min(_once(ours) for _ in range(3 if length < 8192 else 1))
        found.append({"length": length, "ms": 1e3 * seconds, "mib": extra_memory(length, "causal")})
    return found


def exponent(points: list[dict[str, float]], what: str) -> float:
    """Return the slope of a quantity against the length over the last three points, both as logarithms."""
    x, y = ([math.log(max(point[name], 1e-3)) for point in points[-3:]] for name in ("length", what))
    return statistics.linear_regression(x, y).slope
