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

import numpy as np

from . import peers
from .cases import Case, differentiated

MEMORY = """
import sys
from benchmarks.jax_kernel import measure, peers
from benchmarks.jax_kernel.cases import Case
name, *numbers = sys.argv[1:]
case = Case("", (), *map(int, numbers), mask="causal", backward=True)
ready = peers.ours(case) if name == "ours" else peers.PEERS[name][1](case)
if name == "torch":  # its threads start
    peers.torch_sdpa(Case("", (), 64, 64, 64, 1, backward=True)).run()
print(measure.peak_mib(ready.run))
"""


def compare(ours: Callable[[], Any], others: dict[str, Callable[[], Any]], seconds: float) -> list[dict[str, Any]]:
    """Time everybody in turn; a peer's ratio is the median of the rounds' ratios, peer to ours."""
    runs = {"ours": ours, **others}
    once = {name: _once(run) for name, run in runs.items()}
    rounds, end = [], time.perf_counter() + seconds
    while len(rounds) < 3 or (time.perf_counter() < end and len(rounds) < 101):
        rounds.append({name: _several(run, once[name]) for name, run in runs.items()})
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
    }


def _once(run: Callable[[], Any]) -> float:
    run()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _several(run: Callable[[], Any], once: float) -> float:
    """Time calls after one that is discarded, and after the others' threads have gone to sleep."""
    time.sleep(0.02)
    if once < 0.2:
        run()
    number = max(1, math.ceil(0.01 / once))
    start = time.perf_counter()
    for _ in range(number):
        run()
    return (time.perf_counter() - start) / number


def extra_memory(peer: str, case: Case) -> float:
    """Return the peak MiB of a causal call with gradients beyond its inputs and results, in a process of its own."""
    sizes = map(str, (case.queries, case.keys, case.depth, case.heads))
    done = subprocess.run([sys.executable, "-c", MEMORY, peer, *sizes], capture_output=True, text=True, check=True)
    results = 4 * 4 * case.heads * case.queries * case.depth / 2**20  # out and three gradients
    return float(done.stdout) - results


def peak_mib(run: Callable[[], Any]) -> float:
    """Return by how much the process outgrows its present size during a call. Linux counts anew on request."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before, kept = _status("VmRSS"), run()
    del kept
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name)))


def vmap_over_batch() -> float:
    """Return how many times longer ``vmap`` over 8 items takes than the same call on a batch of 8, with gradients."""
    import jax

    case = Case("", (), 512, 512, heads=4, mask="causal", backward=True)
    fn, arrays = differentiated(case.ours(), case), [np.repeat(x, 8, axis=0) for x in case.arrays()]
    batch, mapped = (jax.jit(each).lower(*arrays).compile() for each in (fn, jax.vmap(fn)))
    runs = [lambda program=program: jax.block_until_ready(program(*arrays)) for program in (batch, mapped)]
    (row,) = compare(runs[0], {"vmap": runs[1]}, 3.0)
    return float(row["ratio"])


def growth(lengths: tuple[int, ...]) -> list[dict[str, float]]:
    """Return for each length the time of a window, and the memory that XLA sets aside for it, with gradients."""
    found = []
    for length in lengths:
        ready = peers.ours(Case("", (), length, length, heads=1, mask="window", backward=True))
        mib = ready.compiled.memory_analysis().temp_size_in_bytes / 2**20
        ms = 1e3 * min(_once(ready.run) for _ in range(5))
        found.append({"length": length, "ms": ms, "mib": mib})
    return found


def exponent(points: list[dict[str, float]], what: str) -> float:
    """Return the slope of a quantity against the length, both as logarithms."""
    x, y = ([math.log(max(point[name], 1e-3)) for point in points] for name in ("length", what))
    return statistics.linear_regression(x, y).slope
