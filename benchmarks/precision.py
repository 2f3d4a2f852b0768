"""Worst errors against the truth, ours and plain PyTorch's, over groups of random problems.

python -m benchmarks precision [--problems 3000]

Truth is the formula in float64 (for float64 inputs: in 80-bit long double) on the same inputs, already rounded to the
dtype. Plain PyTorch is ``scaled_dot_product_attention`` by its math backend, in that dtype. An error is the largest
absolute difference over a problem's output; a group's figure is the worst of its problems. That one is decided by few
near ties of large logits, so the ratio of the 95th percentiles stands beside it.
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
    "long rows, 4096 keys": Group((1, 4, 16, 64), ("none", "causal"), LONG_SHAPES, share=0.1),
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
        yield Trial(*(as_dtype(x, dtype) for x in (q, k, v)), seen)


def truth(trial: Trial, dtype: str) -> np.ndarray:
    """The formula, with more digits than the dtype has; a row that sees nothing is 0."""
    wide = np.longdouble if dtype == "float64" else np.float64
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


def row(dtype: str, name: str, found: dict[str, np.ndarray]) -> str:
    """One line of the table."""
    worst = {implementation: column.max() for implementation, column in found.items()}
    usual = {implementation: np.quantile(column, 0.95) for implementation, column in found.items()}
    cells = [f"{worst[implementation]:.2e}" for implementation in found]
    for figure in (worst, usual):
        cells += [f"{figure[ours] / figure['torch']:.2f}" for ours in ("numpy", "jax")]
    return f"| {dtype} | {name} | {' | '.join(cells)} |"


def row_of_sets(dtype: str, name: str, found: dict[str, np.ndarray]) -> str:
    """One line of the table by sets: the middle one of the sets' ratios of worst errors, and the lowest and highest."""
    sets = {implementation: column.reshape(-1, SET).max(axis=1) for implementation, column in found.items()}
    ratios = (sets[ours] / sets["torch"] for ours in ("numpy", "jax"))
    cells = [f"{np.median(each):.2f} ({each.min():.2f} .. {each.max():.2f})" for each in ratios]
    return f"| {dtype} | {name} | {' | '.join(cells)} |"


def main(argv: list[str] | None = None) -> None:
    """Print one line a group: worst errors, and ours over PyTorch's, by the worst problem and the 95th percentile."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks precision", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--problems", type=int, default=3000, help="random problems a group, a tenth of it for long rows"
    )
    parser.add_argument(
        "--sets", action="store_true", help=f"ratios of worst errors in sets of {SET} problems, long rows too"
    )
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    arguments = parser.parse_args(argv)
    runs = {"numpy": numpy_attention, "jax": jax_attention(), "torch": torch_attention()}
    if arguments.sets:
        print("| dtype | group | worst of a set: NumPy / PyTorch | JAX / PyTorch |\n|---|---|---|---|")
        for dtype, name in product(arguments.dtypes, GROUPS):
            count = max(1, arguments.problems // SET) * SET
            print(row_of_sets(dtype, name, errors(runs, dtype, name, count)), flush=True)
        return
    print(
        "| dtype | group | NumPy | JAX (jit) | PyTorch | worst: NumPy / PyTorch | JAX / PyTorch | 95 %: NumPy | JAX |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for dtype in arguments.dtypes:
        for name, group in GROUPS.items():
            count = int(arguments.problems * group.share)
            print(row(dtype, name, errors(runs, dtype, name, count)), flush=True)


if __name__ == "__main__":
    main()
