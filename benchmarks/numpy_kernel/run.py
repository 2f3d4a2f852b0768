"""``python -m benchmarks numpy``: measure, print, and write JSON, the tables of the documentation and their plot."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from typing import Any
from unittest import mock

from threadpoolctl import threadpool_limits

from attention_np import exponent, gemm
from attention_np.config import set_num_threads, show_config, use_provider

from ..published import Published, machine, options
from ..turns import Run, compare
from ..turns import exponent as slope_of
from . import page
from .cases import Case, all_cases
from .measure import MASKS, extra_memory, growth
from .peers import PEERS

PACKAGES = ("numpy", "torch", "onnxruntime", "mkl", "numba", "threadpoolctl")
QUICK_SCORES = 2**23


def main(arguments: list[str]) -> None:
    chosen = _options().parse_args(arguments)
    report: dict[str, Any] = {"machine": {**machine(PACKAGES), **show_config()}, "rows": []}
    print(json.dumps(report["machine"], indent=2))
    for case in all_cases():
        if chosen.rows in case.name and not (chosen.quick and case.scores() > QUICK_SCORES):
            measure(case, 0.5 if chosen.quick else chosen.seconds, report)
    if not (chosen.no_growth or chosen.quick):
        _beyond_time(report)
    Published("numpy", page.PEERS, page.table).write(report, chosen)


def _options() -> argparse.ArgumentParser:
    parser = options("numpy", seconds=6.0)
    parser.add_argument("--quick", action="store_true", help="the shorter rows alone, half a second each")
    return parser


def measure(case: Case, seconds: float, report: dict[str, Any]) -> None:
    """Add a case's rows to the report, everybody on the case's number of threads."""
    if case.extra and not gemm.has(case.extra):
        print(f"{case.name:36} not measured: {case.extra} is not installed")
        return
    set_num_threads(case.threads)
    with threadpool_limits(case.threads), _installed(case.extra):
        others = {name: run for name in case.peers if (run := _ready(name, case)) is not None}
        for row in compare(case.ours(), others, seconds, pause=0.02 if case.threads > 1 else 0.0):
            report["rows"].append({"case": case.name, "threads": case.threads, "short": case.short, **row})
            form = "{case:36} vs {peer:12} {ratio:6.2f}  ({low:.2f} .. {high:.2f})  {ours_ms:10.3f} ms"
            print(form.format(**report["rows"][-1]), flush=True)


@contextmanager
def _installed(extra: str | None) -> Iterator[None]:
    """Let the kernel choose as where this extra alone is installed."""

    def has(name: str, dtype: Any = "float32", real: Any = gemm.has) -> bool:
        return name == extra and bool(real(name, dtype))

    use_provider("auto")
    with mock.patch.object(gemm, "has", has), mock.patch.object(exponent, "has", has):
        yield


def _ready(name: str, case: Case) -> Run | None:
    module, make = PEERS[name]
    if util.find_spec(module) is None:
        print(f"{case.name:36} vs {name:12} not measured: {module} is not installed")
        return None
    if module == "torch":
        import torch

        torch.set_num_threads(case.threads)
    try:
        return make(case)
    except RuntimeError as error:  # flex_attention needs a C++ compiler
        print(f"{case.name:36} vs {name:12} not measured: {str(error).splitlines()[0]}")
        return None


def _beyond_time(report: dict[str, Any]) -> None:
    set_num_threads(1)
    points = report["growth"] = growth((512, 1024, 2048, 4096, 8192, 16384))
    report["exponents"] = {what: slope_of(points[-3:], what) for what in ("ms", "mib")}
    report["memory_mib"] = {mask: extra_memory(16384, mask) for mask in MASKS}
    print(json.dumps({name: report[name] for name in ("growth", "exponents", "memory_mib")}, indent=2))
