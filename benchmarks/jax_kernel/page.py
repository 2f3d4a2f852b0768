"""What was measured as a table."""

from __future__ import annotations

from typing import Any

from .peers import PEERS

PICTURE = "![Each peer's time divided by ours, a row a case: right of 1 ours is faster](images/jax.png)"
HEADS = "Rows differ in their heads (1 to 32): compare ratios, not milliseconds."
LEFT_OUT = ("L 128", "L 512", "D 128, gradients")  # of the README's table


def table(report: dict[str, Any], short: bool) -> str:
    """Return the report in Markdown, or the part of it that the README shows."""
    lines = [f"| peer's time / ours | ours, ms | {' | '.join(PEERS)} |", f"|---|---|{'---|' * len(PEERS)}"]
    for case in dict.fromkeys(row["case"] for row in report["rows"]):
        if short and any(words in case for words in LEFT_OUT):
            continue
        found = {row["peer"]: row for row in report["rows"] if row["case"] == case}
        cells = [f"{found[peer]['ratio']:.2f}" if peer in found else "" for peer in PEERS]
        lines.append(f"| {case} | {next(iter(found.values()))['ours_ms']:.2f} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_figures(report), *([] if short else ["", PICTURE])])


def _figures(report: dict[str, Any]) -> list[str]:
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [f"Measured with {machine['threads']} threads on {machine['processor']}: {versions}, float32.", HEADS]
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
