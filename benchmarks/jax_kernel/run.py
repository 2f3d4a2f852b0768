"""``python -m benchmarks jax``: measure, print, and write JSON, the documentation's table and its plot."""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib import metadata, util
from pathlib import Path
from typing import Any

from . import page, peers
from .cases import Case, all_cases
from .measure import compare, exponent, extra_memory, growth, vmap_over_batch

ROOT = Path(__file__).resolve().parents[2]
DOCS, README, IMAGE = ROOT / "docs" / "jax.md", ROOT / "README.md", ROOT / "docs" / "images" / "jax.png"


def main(arguments: list[str]) -> None:
    chosen = _options().parse_args(arguments)
    _limit(chosen.threads)
    report: dict[str, Any] = {"machine": describe(chosen.threads), "rows": [], "compile_s": {}}
    print(json.dumps(report["machine"], indent=2))
    for case in all_cases():
        if chosen.rows in case.name:
            measure(case, chosen.seconds, report)
    if not chosen.no_growth:
        _beyond_time(report)
    _write(report, chosen)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks jax")
    parser.add_argument("--rows", default="", help="rows whose name contains this")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--seconds", type=float, default=4.0, help="of each row, all peers together")
    parser.add_argument("--no-growth", action="store_true", help="leave out memory and growth")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--docs", action="store_true", help=f"write {README.name}, {DOCS.name} and {IMAGE.name}")
    return parser


def measure(case: Case, seconds: float, report: dict[str, Any]) -> None:
    """Add a case's rows to the report."""
    ours = peers.ours(case)
    installed = {name: make for name, (module, make) in peers.PEERS.items() if util.find_spec(module) is not None}
    ready = {name: make(case) for name, make in installed.items() if name in case.peers}
    report["compile_s"][case.name] = ours.compile_s
    for row in compare(ours.run, {name: each.run for name, each in ready.items()}, seconds):
        report["rows"].append({"case": case.name, **row})
        print(
            "{case:40} vs {peer:8} {ratio:6.2f}  ({low:.2f} .. {high:.2f})  {ours_ms:9.3f} ms".format(
                case=case.name, **row
            )
        )
    print(f"{case.name:40} compiled in {ours.compile_s:.2f} s", flush=True)


def _beyond_time(report: dict[str, Any]) -> None:
    long = Case("", (), 8192, 8192, 64, 1)
    names = ["ours", *(name for name, (module, _) in peers.PEERS.items() if util.find_spec(module) is not None)]
    report["memory_mib"] = {name: extra_memory(name, long) for name in names}
    report["vmap"] = vmap_over_batch()
    points = report["growth"] = growth((2048, 4096, 8192, 16384))
    report["exponents"] = {what: exponent(points, what) for what in ("ms", "mib")}
    print(json.dumps({name: report[name] for name in ("memory_mib", "vmap", "growth", "exponents")}, indent=2))


def _write(report: dict[str, Any], chosen: argparse.Namespace) -> None:
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if chosen.docs:
        page.rewrite(DOCS, report)
        page.rewrite(README, report, short=True)
    for path in (chosen.plot, IMAGE if chosen.docs else None):
        if path is not None:
            page.plot(report, path)


def _limit(number: int) -> None:
    """Leave this process, and those that it starts, so many cores: XLA's pool has a thread a core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:number])
    if util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(number)


def describe(number: int) -> dict[str, Any]:
    """Return what the figures depend on."""
    names = [name for name in ("jax", "jaxlib", "tokamax", "torch") if util.find_spec(name) is not None]
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "threads": number,
        "versions": {name: metadata.version(name) for name in names},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({platform.machine()})" if names else platform.machine()
