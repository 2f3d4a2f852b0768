"""``python -m benchmarks jax``: measure, print, and write JSON, the documentation's table and its plot."""

from __future__ import annotations

import argparse
import json
import os
from importlib import util
from typing import Any

from ..published import Published, machine, options
from ..turns import compare, exponent
from . import page, peers
from .cases import Case, all_cases
from .measure import extra_memory, growth, vmap_over_batch


def main(arguments: list[str]) -> None:
    chosen = _options().parse_args(arguments)
    _limit(chosen.threads)
    report: dict[str, Any] = {
        "machine": {"threads": chosen.threads, **machine(("jax", "jaxlib", "tokamax", "torch"))},
        "rows": [],
        "compile_s": {},
    }
    print(json.dumps(report["machine"], indent=2))
    for case in all_cases():
        if chosen.rows in case.name:
            measure(case, chosen.seconds, report)
    if not chosen.no_growth:
        _beyond_time(report)
    Published("jax", tuple(peers.PEERS), page.table).write(report, chosen)


def _options() -> argparse.ArgumentParser:
    parser = options("jax", seconds=4.0)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
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


def _limit(number: int) -> None:
    """Leave this process, and those that it starts, so many cores: XLA's pool has a thread a core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:number])
    if util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(number)
