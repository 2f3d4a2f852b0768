"""What was measured as a table in a page, and as a plot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- numpy benchmark: begin -->", "<!-- numpy benchmark: end -->"
PEERS = ("torch", "flex", "onnxruntime", "plain")


def table(report: dict[str, Any], *, short: bool) -> str:
    """Return the report in Markdown, or the part of it that the README shows."""
    titles = ("PyTorch SDPA", "compiled flex_attention", "onnxruntime", "plain NumPy")
    lines = [f"| peer's time / ours | ours, ms | {' | '.join(titles)} |", f"|---|---|{'---|' * len(titles)}"]
    rows = [row for row in report["rows"] if row["peer"] in PEERS and (row["short"] or not short)]
    for case in dict.fromkeys(row["case"] for row in rows):
        found = {row["peer"]: row for row in rows if row["case"] == case}
        cells = [f"{found[peer]['ratio']:.2f}" if peer in found else "" for peer in PEERS]
        lines.append(f"| {case} | {_ms(next(iter(found.values()))['ours_ms'])} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", " ".join(_figures(report))])


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.3f}" if milliseconds < 1 else f"{milliseconds:.1f}"


def _figures(report: dict[str, Any]) -> list[str]:
    found = [_machine(report["machine"])]
    hostile = [1 / row["ratio"] for row in report["rows"] if row["peer"] == "ordinary"]
    if hostile:
        found.append(f"Adversarial scores (a far key, growing, denormal) take up to {max(hostile):.1f} times as long.")
    if "memory_mib" in report:
        most, slope = max(report["memory_mib"].values()), report["exponents"]
        found.append(f"At L 16384 with 4 heads any mask takes at most {most:.0f} MiB beyond inputs and output.")
        found.append(f"A causal call's time grows as L to the power {slope['ms']:.2f}, its memory {slope['mib']:.2f}.")
    return found


def _machine(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    blas = ", ".join(f"{each['internal_api']} {each['version']} ({each['architecture']})" for each in machine["blas"])
    load = "" if machine["load"] is None else f", load {machine['load']:.1f} at the start"
    cores = f"{machine['processor']}, {machine['cores']} cores{load}"
    return f"float32, one thread where nothing else is said; {cores}; {versions}; BLAS: {blas}."


def rewrite(page: Path, report: dict[str, Any], *, short: bool) -> None:
    """Put the report between the page's two marks."""
    text = page.read_text(encoding="utf-8")
    marked = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    page.write_text(marked.sub(lambda _: f"{BEGIN}\n{table(report, short=short)}\n{END}", text), encoding="utf-8")


def plot(report: dict[str, Any], path: Path) -> None:
    """Draw the ratios as marks about 1, a row a case."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in report["rows"] if row["peer"] in PEERS]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure, axes = plt.subplots(figsize=(8, 0.28 * len(cases) + 1.2))
    for peer, colour, marker in zip(PEERS, ("#33567d", "#7a9a4f", "#c2502e", "#8a6fa8"), "osD^", strict=True):
        mine = [row for row in rows if row["peer"] == peer]
        places = [cases.index(row["case"]) for row in mine]
        axes.scatter([row["ratio"] for row in mine], places, label=peer, color=colour, marker=marker, zorder=3)
    axes.axvline(1, color="#888888", linewidth=1)
    axes.set(
        xscale="log",
        yticks=range(len(cases)),
        yticklabels=cases,
        xlabel="peer's time / ours (right of 1: ours is faster)",
    )
    axes.set_xticks([0.2, 0.5, 1, 2, 5, 10, 20], ["0.2", "0.5", "1", "2", "5", "10", "20"], minor=False)
    axes.grid(axis="x", color="#dddddd")
    axes.invert_yaxis()
    axes.legend(loc="lower right")
    figure.savefig(path, bbox_inches="tight", dpi=110, metadata={"Software": None})
