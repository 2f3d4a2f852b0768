"""What was measured as a table in a page, and as a plot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .peers import PEERS

PICTURE = "![Each peer's time divided by ours, a row a case: right of 1 ours is faster](images/jax.png)"
BEGIN, END = "<!-- jax benchmark: begin -->", "<!-- jax benchmark: end -->"
LEFT_OUT = ("L 128", "L 512", "D 128, gradients")  # of the README's table


def table(report: dict[str, Any], short: bool = False) -> str:
    """Return the report in Markdown, or the part of it that the README shows."""
    lines = [f"| peer's time / ours | ours, ms | {' | '.join(PEERS)} |", f"|---|---|{'---|' * len(PEERS)}"]
    for case in dict.fromkeys(row["case"] for row in report["rows"]):
        if short and any(words in case for words in LEFT_OUT):
            continue
        found = {row["peer"]: row for row in report["rows"] if row["case"] == case}
        cells = [f"{found[peer]['ratio']:.2f}" if peer in found else "" for peer in PEERS]
        lines.append(f"| {case} | {next(iter(found.values()))['ours_ms']:.2f} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_figures(report)])


def _figures(report: dict[str, Any]) -> list[str]:
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [f"Measured with {machine['threads']} threads on {machine['processor']}: {versions}, float32."]
    if "memory_mib" in report:
        cells = ", ".join(f"{name} {mib:.0f} MiB" for name, mib in report["memory_mib"].items())
        lines.append(f"Peak memory beyond inputs and results, causal with gradients, L 8192, one head: {cells}.")
    compiled = [f"{case} {seconds:.1f} s" for case, seconds in report["compile_s"].items() if "L 8192" in case]
    if compiled:
        lines.append(f"Compiling ours takes: {'; '.join(compiled)}.")
    if "exponents" in report:
        ms, mib = report["exponents"]["ms"], report["exponents"]["mib"]
        lines.append(f"With a window, time with gradients grows as L to the power {ms:.2f}, memory {mib:.2f}.")
    if "vmap" in report:
        lines.append(f"`vmap` over 8 items takes {report['vmap']:.2f} times the time of a batch of 8, with gradients.")
    return lines


def rewrite(page: Path, report: dict[str, Any], short: bool = False) -> None:
    """Put the report between the page's two marks; the README has its picture above."""
    text = page.read_text(encoding="utf-8")
    marked = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    picture = "" if short else f"\n\n{PICTURE}"
    found = f"{BEGIN}\n{table(report, short)}{picture}\n{END}"
    page.write_text(marked.sub(lambda _: found, text), encoding="utf-8")


def plot(report: dict[str, Any], path: Path) -> None:
    """Draw the ratios as dots about 1, a row a case."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys(row["case"] for row in report["rows"]))
    figure, axes = plt.subplots(figsize=(8, 0.28 * len(cases) + 1.2))
    for peer, colour, marker in zip(PEERS, ("#33567d", "#7a9a4f", "#c2502e"), "osD", strict=True):
        rows = [row for row in report["rows"] if row["peer"] == peer]
        axes.scatter([row["ratio"] for row in rows], [cases.index(row["case"]) for row in rows], label=peer,
                     color=colour, marker=marker, zorder=3)  # fmt: skip
    axes.axvline(1, color="#888888", linewidth=1)
    axes.set(
        xscale="log",
        yticks=range(len(cases)),
        yticklabels=cases,
        xlabel="peer's time / ours (right of 1: ours is faster)",
    )
    axes.set_xticks([0.5, 1, 2, 5, 10, 20, 50, 100], ["0.5", "1", "2", "5", "10", "20", "50", "100"], minor=False)
    axes.grid(axis="x", color="#dddddd")
    axes.invert_yaxis()
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(PEERS), frameon=False)
    figure.savefig(path, bbox_inches="tight", dpi=110, metadata={"Software": None})
