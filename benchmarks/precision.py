"""Worst errors against the truth, ours and plain PyTorch's, over groups of random problems.

python -m benchmarks precision [--problems 3000]

Truth is the formula in float64 (for float64 inputs: in 80-bit long double) on the same inputs, already rounded to the
dtype. Plain PyTorch is ``scaled_dot_product_attention`` by its math backend, in that dtype. An error is the largest
absolute difference over a problem's output. A group's ratios are of the worst of a set of 200 problems (the mean over
its sets), of the worst problem of all, with the limits that chance alone would keep, and of the 95th percentiles.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = ("float64", "float32", "float16", "bfloat16")
SHAPES = ((2, 5, 7, 16, 8), (3, 17, 64, 32, 24), (1, 33, 130, 64, 64), (4, 8, 257, 8, 16))  # heads, Lq, Lk, D, Dv
LONG_SHAPES = ((1, 24, 4096, 64, 16), (2, 9, 4096, 32, 16))
SET = 200  # problems
RELABELLED = 2000
COLUMNS = (
    *("NumPy", "JAX (jit)", "PyTorch"),
    *(f"{ours}: {figure}" for ours in ("NumPy", "JAX") for figure in ("worst of a set", "worst of all", "95 %")),
)


@dataclass(frozen=True)
class Group:
    """Kinds of problem that one figure stands for: they take turns."""

    logit_scales: tuple[int, ...]
    masks: tuple[str, ...] = ("none",)
    shapes: tuple[tuple[int, ...], ...] = SHAPES
    share: float = 1.0  # of the problems asked for


GROUPS = {
    **{f"logit scale {scale}": Group((scale,)) for scale in (1, 4, 16, 64)},
    "causal and random masks": Group((1, 4, 16, 64), ("causal", "random")),
    "long rows, 4096 keys": Group((1, 4, 16, 64), ("none", "causal"), LONG_SHAPES, share=1 / 3),
}


@dataclass(frozen=True)
class Trial:
    """One random problem: arrays in the dtype under test, and booleans or ``None``."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: np.ndarray | None


def as_dtype(x: np.ndarray, dtype: str) -> np.ndarray:
    """Round to a dtype by name, bfloat16 included."""
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def trials(rng: np.random.Generator, dtype: str, group: Group, count: int) -> Iterator[Trial]:
    """Draw problems whose logits have the group's standard deviations."""
    kinds = list(product(group.logit_scales, group.masks, group.shapes))
    for n in range(count):
        logit_scale, mask, (heads, queries, keys, depth, value_depth) = kinds[n % len(kinds)]
        q, k = rng.normal(size=(heads, queries, depth)) * logit_scale, rng.normal(size=(heads, keys, depth))
        v = rng.normal(size=(heads, keys, value_depth))
        ends_last = np.tri(queries, keys, keys - queries, dtype=bool)
        seen = {"causal": ends_last, "random": rng.random((heads, queries, keys)) < 0.3}.get(mask)
        yield Trial(as_dtype(q, dtype), as_dtype(k, dtype), as_dtype(v, dtype), seen)


def truth(trial: Trial, dtype: str) -> np.ndarray:
    """The formula, with more digits than the dtype has; a row that sees nothing is 0."""
    wide: Any = np.longdouble if dtype == "float64" else np.float64
    q, k, v = (x.astype(wide) for x in (trial.query, trial.key, trial.value))
    s = q @ k.swapaxes(-1, -2) / np.sqrt(wide(q.shape[-1]))
    seen = np.ones(s.shape, bool) if trial.mask is None else np.broadcast_to(trial.mask, s.shape)
    s = np.where(seen, s, -np.inf)
    e = np.where(seen, np.exp(s - np.maximum(s.max(axis=-1, keepdims=True), np.finfo(wide).min)), 0)
    total = e.sum(axis=-1, keepdims=True)
    return np.asarray(e / np.where(total == 0, 1, total) @ v)


def numpy_attention(trial: Trial) -> np.ndarray:
    """Ours on NumPy."""
    import attention_np

    return np.asarray(attention_np.dot_product_attention(trial.query, trial.key, trial.value, mask=trial.mask))


def jax_attention() -> Callable[[Trial], np.ndarray]:
    """Ours on JAX, jitted."""
    import jax

    import attention_jax

    jax.config.update("jax_enable_x64", True)
    jitted = jax.jit(lambda q, k, v, mask: attention_jax.dot_product_attention(q, k, v, mask=mask))
    return lambda trial: np.asarray(jitted(trial.query, trial.key, trial.value, trial.mask))


def torch_attention() -> Callable[[Trial], np.ndarray]:
    """Plain PyTorch: its own function by its math backend."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def tensor(x: np.ndarray) -> Any:
        if x.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)[None]
        return torch.from_numpy(x)[None]

    def run(trial: Trial) -> np.ndarray:
        mask = None if trial.mask is None else torch.from_numpy(trial.mask)
        with sdpa_kernel(SDPBackend.MATH):
            out = torch.nn.functional.scaled_dot_product_attention(
                tensor(trial.query), tensor(trial.key), tensor(trial.value), attn_mask=mask
            )
        return np.asarray((out.float() if out.dtype == torch.bfloat16 else out)[0].numpy())

    return run


def errors(runs: dict[str, Callable[[Trial], np.ndarray]], dtype: str, name: str, count: int) -> dict[str, np.ndarray]:
    """Each implementation's error in each problem of one group."""
    rng = np.random.default_rng([DTYPES.index(dtype), list(GROUPS).index(name)])
    found: dict[str, list[float]] = {implementation: [] for implementation in runs}
    for trial in trials(rng, dtype, GROUPS[name], count):
        expected = truth(trial, dtype)
        for implementation, run in runs.items():
            found[implementation].append(float(np.abs(run(trial).astype(expected.dtype) - expected).max()))
    return {implementation: np.array(column) for implementation, column in found.items()}


def by_sets(errors: np.ndarray) -> float:
    """The mean of the worst errors of sets of ``SET`` problems."""
    whole = errors[: max(1, errors.size // SET) * SET] if errors.size >= SET else errors
    return float(whole.reshape(-1, min(SET, whole.size)).max(axis=1).mean())


def by_chance(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Between what limits 95 of 100 ratios of worst errors lie when chance says which error of a problem is whose."""
    swap = np.random.default_rng(0).random((RELABELLED, ours.size)) < 0.5
    ratios = np.where(swap, theirs, ours).max(axis=1) / np.where(swap, ours, theirs).max(axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(low), float(high)


def row(dtype: str, name: str, found: dict[str, np.ndarray]) -> str:
    """One line of the table."""
    theirs = found["torch"]
    cells = [f"{column.max():.2e}" for column in found.values()]
    for ours in (found["numpy"], found["jax"]):
        low, high = by_chance(ours, theirs)
        cells += [f"{by_sets(ours) / by_sets(theirs):.2f}"]
        cells += [f"{ours.max() / theirs.max():.2f} ({low:.2f} .. {high:.2f})"]
        cells += [f"{np.quantile(ours, 0.95) / np.quantile(theirs, 0.95):.2f}"]
    return f"| {dtype} | {name} | {' | '.join(cells)} |"


def main(argv: list[str] | None = None) -> None:
    """Print one line a group: worst errors, and ours over PyTorch's: of a set of problems, of all, of 95 in 100."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks precision", description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=3000, help="random problems a group; of long rows, a third")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    arguments = parser.parse_args(argv)
    runs = {"numpy": numpy_attention, "jax": jax_attention(), "torch": torch_attention()}
    print(f"| dtype | group | {' | '.join(COLUMNS)} |\n|{'---|' * (2 + len(COLUMNS))}")
    for dtype, (name, group) in product(arguments.dtypes, GROUPS.items()):
        count = max(1, int(arguments.problems * group.share))
        print(row(dtype, name, errors(runs, dtype, name, count)), flush=True)


if __name__ == "__main__":
    main()
