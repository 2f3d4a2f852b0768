"""What `import attention_np` costs over `import numpy`: fresh processes in turn, the best of each.

python benchmarks/import_time.py [rounds]
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "import time; start = time.perf_counter(); import {}; print(1e3 * (time.perf_counter() - start))"
MODULES = ("numpy", "attention_np", "attention_core")
LIMIT_MS = 60.0


def import_ms(module: str) -> float:
    """Milliseconds that a new interpreter takes to import `module`."""
    command = [sys.executable, "-c", PROGRAM.format(module)]
    return float(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def main(rounds: int = 15) -> None:
    """Print the best of `rounds` interleaved imports of each module, and the difference that users pay."""
    times = {module: min(column) for module, column in _columns(rounds).items()}
    for module, best in times.items():
        print(f"{module:<16}{best:8.1f} ms")
    cost = times["attention_np"] - times["numpy"]
    print(f"attention_np over numpy: {cost:.1f} ms (limit {LIMIT_MS:.0f} ms)")


def _columns(rounds: int) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {module: [] for module in MODULES}
    for _ in range(rounds):
        for module, column in columns.items():
            column.append(import_ms(module))
    return columns


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
