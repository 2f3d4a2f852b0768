"""What was measured as a table."""

from __future__ import annotations

from typing import Any

PEERS = ("torch", "flex", "onnxruntime", "plain")


def table(report: dict[str, Any], short: bool) -> str:
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
    rule = "float32, one thread and no extra where nothing else is said"
    heads = "Rows differ in their heads (1 to 32): compare ratios, not milliseconds."
    return f"{rule}; {cores}; {versions}; BLAS: {blas}. {heads}"
