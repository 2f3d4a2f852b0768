"""Memory in processes of their own, time under ``vmap``, and growth with the length."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from ..turns import compare, once
from . import peers
from .cases import Case, differentiated

MEMORY = """
import sys
from benchmarks.jax_kernel import peers
from benchmarks.jax_kernel.cases import Case
from benchmarks.turns import peak_mib
name, *numbers = sys.argv[1:]
case = Case("", (), *map(int, numbers), mask="causal", backward=True)
ready = peers.ours(case) if name == "ours" else peers.PEERS[name][1](case)
if name == "torch":  # its threads start
    peers.torch_sdpa(Case("", (), 64, 64, 64, 1, backward=True)).run()
print(peak_mib(ready.run))
"""


def extra_memory(peer: str, case: Case) -> float:
    """Return the peak MiB of a causal call with gradients beyond its inputs and results, in a process of its own."""
    sizes = map(str, (case.queries, case.keys, case.depth, case.heads))
    done = subprocess.run([sys.executable, "-c", MEMORY, peer, *sizes], capture_output=True, text=True, check=True)
    results = 4 * 4 * case.heads * case.queries * case.depth / 2**20  # out and three gradients
    return float(done.stdout) - results


def vmap_over_batch() -> float:
    """Return how many times longer ``vmap`` over 8 items takes than the same call on a batch of 8, with gradients."""
    import jax

    case = Case("", (), 512, 512, heads=4, mask="causal", backward=True)
    fn, arrays = differentiated(case.ours(), case), [np.repeat(x, 8, axis=0) for x in case.arrays()]
    batch, mapped = (jax.jit(each).lower(*arrays).compile() for each in (fn, jax.vmap(fn)))
    runs = [lambda program=program: jax.block_until_ready(program(*arrays)) for program in (batch, mapped)]
    (row,) = compare(runs[0], {"vmap": runs[1]}, 3.0)
    return float(row["ratio"])


def growth(lengths: tuple[int, ...]) -> list[dict[str, float]]:
    """Return for each length the time of a window, and the memory that XLA sets aside for it, with gradients."""
    found = []
    for length in lengths:
        ready = peers.ours(Case("", (), length, length, heads=1, mask="window", backward=True))
        mib = ready.compiled.memory_analysis().temp_size_in_bytes / 2**20
        ms = 1e3 * min(once(ready.run) for _ in range(5))
        found.append({"length": length, "ms": ms, "mib": mib})
    return found
