"""Where figures go: JSON, a table between two marks of a page, a plot; and the machine that they were measured on."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["Published", "machine", "options"]

ROOT = Path(__file__).resolve().parents[1]
COLOURS, MARKERS = ("#33567d", "#7a9a4f", "#c2502e", "#8a6fa8"), "osD^"
TICKS = ("0.2", "0.5", "1", "2", "5", "10", "20", "50", "100")


@dataclass(frozen=True)
class Published:
    """The pages of one benchmark: ``docs/NAME.md``, the README and ``docs/images/NAME.png``."""

    name: str
    peers: tuple[str, ...]
    table: Callable[[dict[str, Any], bool], str]  # of a report; True for the README's part of it

    def write(self, report: dict[str, Any], chosen: argparse.Namespace) -> None:
        """Write what the options ask for."""
        if chosen.json:
            chosen.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        if chosen.docs:
            self._rewrite(ROOT / "docs" / f"{self.name}.md", self.table(report, False))
            self._rewrite(ROOT / "README.md", self.table(report, True))
        for path in (chosen.plot, ROOT / "docs" / "images" / f"{self.name}.png" if chosen.docs else None):
            if path is not None:
                self.plot(report, path)

    def _rewrite(self, page: Path, table: str) -> None:
        begin, end = (f"<!-- {self.name} benchmark: {word} -->" for word in ("begin", "end"))
        marked = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        text = page.read_text(encoding="utf-8")
        page.write_text(marked.sub(lambda _: f"{begin}\n{table}\n{end}", text), encoding="utf-8")

    def plot(self, report: dict[str, Any], path: Path) -> None:
        """Draw the ratios as marks about 1, a row a case."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        rows = [row for row in report["rows"] if row["peer"] in self.peers]
        cases = list(dict.fromkeys(row["case"] for row in rows))
        figure, axes = plt.subplots(figsize=(8, 0.28 * len(cases) + 1.2))
        for peer, colour, marker in zip(self.peers, COLOURS, MARKERS, strict=False):
            mine = [row for row in rows if row["peer"] == peer]
            places = [cases.index(row["case"]) for row in mine]
            axes.scatter([row["ratio"] for row in mine], places, label=peer, color=colour, marker=marker, zorder=3)
        axes.axvline(1, color="#888888", linewidth=1)
        axes.set(xscale="log", yticks=range(len(cases)), yticklabels=cases)
        axes.set_xlabel("peer's time / ours (right of 1: ours is faster)")
        most = max(row["ratio"] for row in rows)
        ticks = [tick for tick in TICKS if float(tick) <= 2 * most]
        axes.set_xticks([float(tick) for tick in ticks], ticks, minor=False)
        axes.grid(axis="x", color="#dddddd")
        axes.invert_yaxis()
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(self.peers), frameon=False)
        figure.savefig(path, bbox_inches="tight", dpi=110, metadata={"Software": None})


def options(name: str, seconds: float) -> argparse.ArgumentParser:
    """Return the options that the benchmarks share."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}")
    parser.add_argument("--rows", default="", help="rows whose name contains this")
    parser.add_argument("--seconds", type=float, default=seconds, help="of each row, all peers together")
    parser.add_argument("--no-growth", action="store_true", help="leave out memory and growth")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--docs", action="store_true", help=f"write README.md, {name}.md and {name}.png")
    return parser


def machine(packages: tuple[str, ...]) -> dict[str, Any]:
    """Return what figures depend on: the processor, its cores and load, and the versions of what is installed."""
    versions = {name: version for name in packages if (version := _version(name))}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"processor": _processor(), "cores": os.cpu_count(), "load": load, "versions": versions}


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({platform.machine()})" if names else platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
