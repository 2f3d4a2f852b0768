"""What `import attention_np` costs over `import numpy`: fresh processes in turn, the best of each.

    python benchmarks/import_time.py [rounds]

Wall time is what users feel; processor time suffers less from what else the machine does. As for an installed package,
the modules are compiled beforehand.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_MS = 60.0
PROGRAM = """
from time import perf_counter, process_time
import numpy
wall, cpu = perf_counter(), process_time()
import {}
print(1e3 * (perf_counter() - wall), 1e3 * (process_time() - cpu))
"""


def cost_ms(module: str, cache: str) -> tuple[float, float]:
    """Milliseconds, wall and processor, that a new interpreter with numpy takes to import `module`."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", PROGRAM.format(module)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    wall, cpu = done.stdout.split()
    return float(wall), float(cpu)


def main(rounds: int = 15) -> None:
    """Print the best of `rounds` imports of each package, after one that compiles it."""
    with tempfile.TemporaryDirectory() as cache:
        for module in ("attention_core", "attention_np"):
            _, *times = (cost_ms(module, cache) for _ in range(rounds + 1))
            wall, cpu = (min(column) for column in zip(*times, strict=True))
            print(f"{module:<15} over numpy: {wall:6.1f} ms wall, {cpu:6.1f} ms processor (limit {LIMIT_MS:.0f} ms)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
