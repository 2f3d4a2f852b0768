"""``python -m benchmarks numpy``: measure, print, and write JSON, the tables of the documentation and their plot."""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib import metadata, util
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from attention_np.config import set_num_threads, show_config

from . import page
from .cases import Case, all_cases
from .measure import MASKS, Run, compare, exponent, extra_memory, growth
from .peers import PEERS

ROOT = Path(__file__).resolve().parents[2]
DOCS, README, IMAGE = ROOT / "docs" / "numpy.md", ROOT / "README.md", ROOT / "docs" / "images" / "numpy.png"
QUICK_SCORES = 2**23


def main(arguments: list[str]) -> None:
    chosen = _options().parse_args(arguments)
    report: dict[str, Any] = {"machine": describe(), "rows": []}
    print(json.dumps(report["machine"], indent=2))
    for case in all_cases():
        if chosen.rows in case.name and not (chosen.quick and case.scores() > QUICK_SCORES):
            measure(case, 0.5 if chosen.quick else chosen.seconds, report)
    if not (chosen.no_growth or chosen.quick):
        _beyond_time(report)
    _write(report, chosen)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks numpy")
    parser.add_argument("--rows", default="", help="rows whose name contains this")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each row, all peers together")
    parser.add_argument("--quick", action="store_true", help="the shorter rows alone, half a second each")
    parser.add_argument("--no-growth", action="store_true", help="leave out memory and growth")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--docs", action="store_true", help=f"write {README.name}, {DOCS.name} and {IMAGE.name}")
    return parser


def measure(case: Case, seconds: float, report: dict[str, Any]) -> None:
    """Add a case's rows to the report, everybody on the case's number of threads."""
    set_num_threads(case.threads)
    with threadpool_limits(case.threads):
        others = {name: run for name in case.peers if (run := _ready(name, case)) is not None}
        for row in compare(case.ours(), others, seconds, pause=0.02 if case.threads > 1 else 0.0):
            report["rows"].append({"case": case.name, "threads": case.threads, "short": case.short, **row})
            form = "{case:32} vs {peer:12} {ratio:6.2f}  ({low:.2f} .. {high:.2f})  {ours_ms:10.3f} ms"
            print(form.format(**report["rows"][-1]), flush=True)


def _ready(name: str, case: Case) -> Run | None:
    module, make = PEERS[name]
    if util.find_spec(module) is None:
        print(f"{case.name:32} vs {name:12} not measured: {module} is not installed")
        return None
    if module == "torch":
        import torch

        torch.set_num_threads(case.threads)
    try:
        return make(case)
    except RuntimeError as error:  # flex_attention needs a C++ compiler
        print(f"{case.name:32} vs {name:12} not measured: {str(error).splitlines()[0]}")
        return None


def _beyond_time(report: dict[str, Any]) -> None:
    set_num_threads(1)
    points = report["growth"] = growth((512, 1024, 2048, 4096, 8192, 16384))
    report["exponents"] = {what: exponent(points, what) for what in ("ms", "mib")}
    report["memory_mib"] = {mask: extra_memory(16384, mask) for mask in MASKS}
    print(json.dumps({name: report[name] for name in ("growth", "exponents", "memory_mib")}, indent=2))


def _write(report: dict[str, Any], chosen: argparse.Namespace) -> None:
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if chosen.docs:
        page.rewrite(DOCS, report, short=False)
        page.rewrite(README, report, short=True)
    for path in (chosen.plot, IMAGE if chosen.docs else None):
        if path is not None:
            page.plot(report, path)


def describe() -> dict[str, Any]:
    """Return what the figures depend on."""
    names = ("numpy", "torch", "onnxruntime", "mkl", "threadpoolctl")
    versions = {name: metadata.version(name) for name in names if _has(name)}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"processor": _processor(), "cores": os.cpu_count(), "load": load, "versions": versions, **show_config()}


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _has(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
