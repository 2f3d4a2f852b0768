"""What both kernels' benchmarks measure with: times in turn, what a call adds to memory, slopes against the length."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Run", "compare", "exponent", "once", "peak_mib"]

Run = Callable[[], Any]

SHORT, LONG = 0.01, 0.2  # seconds: calls are repeated up to the first, and longer ones than the second are not warmed
FEWEST, MOST = 3, 201  # rounds


def compare(ours: Run, others: dict[str, Run], seconds: float, pause: float = 0.02) -> list[dict[str, Any]]:
    """Time everybody in turn; a peer's ratio is the median of the rounds' ratios, peer to ours.

    Others' threads need the pause to go to sleep; without threads there is nothing to wait for.
    """
    runs = {"ours": ours, **others}
    length = {name: once(run) for name, run in runs.items()}
    rounds: list[dict[str, float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < FEWEST or (time.perf_counter() < end and len(rounds) < MOST):
        rounds.append({name: _several(run, length[name], pause) for name, run in runs.items()})
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


def once(run: Run) -> float:
    """Return the seconds of one call after one that is discarded."""
    run()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _several(run: Run, length: float, pause: float) -> float:
    time.sleep(pause)
    if length < LONG:
        run()
    number = max(1, math.ceil(SHORT / length))
    start = time.perf_counter()
    for _ in range(number):
        run()
    return (time.perf_counter() - start) / number


def peak_mib(run: Run) -> float:
    """Return by how much the process outgrows its present size during a call, or NaN where nobody counts.

    Linux counts anew on request.
    """
    restart = Path("/proc/self/clear_refs")
    if not restart.exists():
        return math.nan
    restart.write_text("5", encoding="ascii")
    before, kept = _status("VmRSS"), run()
    del kept
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name)))


def exponent(points: list[dict[str, float]], what: str) -> float:
    """Return the slope of a quantity against the length, both as logarithms."""
    x, y = ([math.log(max(point[name], 1e-3)) for point in points] for name in ("length", what))
    return statistics.linear_regression(x, y).slope
