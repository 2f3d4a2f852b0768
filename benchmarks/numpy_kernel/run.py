"""Measure, print, and write what was measured as JSON and as a plot."""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path
from typing import Any

from attention_np import threads
from attention_np.config import show_config

from . import peers
from .cases import Case, all_cases

PEERS: dict[str, tuple[str, Callable[[Case], peers.Run]]] = {
    "torch": ("torch", peers.torch_sdpa),
    "flex": ("torch", peers.flex),
    "onnxruntime": ("onnxruntime", peers.onnx_runtime),
    "plain": ("numpy", peers.plain),
    "ordinary": ("numpy", lambda case: Case(**{**vars(case), "hostile": None}).ours()),
}


def compare(ours: peers.Run, theirs: peers.Run, seconds: float) -> dict[str, float]:
    """Time both in turn; the ratio is the median of the rounds' ratios, peer to ours."""
    number = max(1, math.ceil(0.01 / _once(ours)))
    _once(theirs)
    rounds, end = [], time.perf_counter() + seconds
    while len(rounds) < 5 or (time.perf_counter() < end and len(rounds) < 101):
        rounds.append((_several(ours, number), _several(theirs, number)))
    ratios = sorted(b / a for a, b in rounds)
    return {
        "ratio": statistics.median(ratios),
        "low": ratios[len(ratios) // 4],
        "high": ratios[-1 - len(ratios) // 4],
        "ours_ms": 1e3 * statistics.median(a for a, _ in rounds),
        "peer_ms": 1e3 * statistics.median(b for _, b in rounds),
    }


def _once(run: peers.Run) -> float:
    run()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _several(run: peers.Run, number: int) -> float:
    """Time calls after one that is discarded, and after the other's threads have gone to sleep."""
    if threads.get_num_threads() > 1:
        time.sleep(0.02)
    run()
    start = time.perf_counter()
    for _ in range(number):
        run()
    return (time.perf_counter() - start) / number


MEMORY = """
import resource, sys
import numpy as np
from attention_np import dot_product_attention, masks
length = int(sys.argv[1])
x = np.ones((1, 4, length, 64), np.float32)
made = {"none": None, "causal": masks.causal(), "window": masks.sliding_window(255, 0),
        "prefix": masks.prefix(99) | masks.causal(), "documents": masks.segments(np.arange(length) // 600),
        "rule": masks.rule(lambda b, h, i, j: (i + j) % 3 > 0),
        "global": masks.global_tokens(9) | masks.sliding_window(99, 0)}
dot_product_attention(x[:, :, :600], x[:, :, :600], x[:, :, :600], impl="tiled")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out = dot_product_attention(x, x, x, mask=made[sys.argv[2]])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 - out.nbytes / 2**20)
"""


def extra_memory(length: int, mask: str) -> float:
    """Return the peak MiB of one call beyond inputs and output, in a process of its own."""
    command = [sys.executable, "-c", MEMORY, str(length), mask]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def growth(lengths: tuple[int, ...]) -> list[dict[str, float]]:
    """Return time and extra memory of a causal call for each length."""
    found = []
    for length in lengths:
        ours = Case("", (), length, length, heads=4, mask="causal").ours("tiled")
        seconds = min(_once(ours) for _ in range(3))
        found.append({"length": length, "ms": 1e3 * seconds, "mib": extra_memory(length, "causal")})
    return found


def exponent(points: list[dict[str, float]], what: str) -> float:
    """Return the slope of a quantity against the length, both as logarithms."""
    x, y = ([math.log(max(point[name], 1e-3)) for point in points[-3:]] for name in ("length", what))
    return statistics.linear_regression(x, y).slope


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks numpy")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each comparison")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--no-growth", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    chosen = parser.parse_args(arguments)
    _limit(chosen.threads)
    report: dict[str, Any] = {"machine": describe(chosen.threads), "rows": []}
    print(json.dumps(report["machine"], indent=2))
    for case in all_cases(chosen.threads):
        for peer in case.peers:
            module, make = PEERS[peer]
            if chosen.only in case.name and util.find_spec(module) is not None:
                row = {"case": case.name, "peer": peer, **compare(case.ours(), make(case), chosen.seconds)}
                report["rows"].append(row)
                print(
                    "{case:32} vs {peer:12} {ratio:6.2f}  ({low:.2f} .. {high:.2f})  {ours_ms:9.3f} ms".format(**row),
                    flush=True,
                )
    if not chosen.no_growth:
        points = report["growth"] = growth((512, 1024, 2048, 4096, 8192, 16384))
        report["exponents"] = {what: exponent(points, what) for what in ("ms", "mib")}
        report["memory_mib"] = {
            m: extra_memory(16384, m) for m in ("none", "causal", "window", "prefix", "documents", "rule", "global")
        }
        print(json.dumps({name: report[name] for name in ("growth", "exponents", "memory_mib")}, indent=2))
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if chosen.plot:
        plot(report, chosen.plot)


def _limit(number: int) -> None:
    threads.set_num_threads(number)
    if util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(number)


def describe(number: int) -> dict[str, Any]:
    """Return what the figures depend on."""
    names = ("numpy", "torch", "onnxruntime", "mkl", "threadpoolctl")
    versions = {name: metadata.version(name) for name in names if _has(name)}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "load": load,
        "threads": number,
        "versions": versions,
        **show_config(),
    }


def _has(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def plot(report: dict[str, Any], path: Path) -> None:
    """Draw the ratios as bars about 1."""
    import matplotlib.pyplot as plt

    rows = report["rows"]
    figure, axes = plt.subplots(figsize=(8, 0.3 * len(rows) + 1))
    axes.barh([f"{row['case']} vs {row['peer']}" for row in rows], [row["ratio"] for row in rows], color="#33567d")
    axes.axvline(1, color="#e8a33d")
    axes.set(xscale="log", xlabel="peer's time / ours (right of the line we are faster)")
    axes.invert_yaxis()
    figure.savefig(path, bbox_inches="tight")
