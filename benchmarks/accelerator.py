"""Correctness and speed on whatever device JAX finds, within three minutes, in one table.

python -m benchmarks accelerator [--seconds 180] [--lengths 1024 4096 ...] [--markdown PATH] [--json PATH]

Each cell is milliseconds of a call (or of it with its gradients); an error is the largest difference from the formula
in float32 on the CPU, over its largest value, at the first length.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

WINDOW, DOCUMENTS = 256, 16
LENGTHS = (1024, 8192, 32768, 2048, 4096, 16384)  # the ends and the middle first: time may not do for all
IMPLEMENTATIONS = ("ours", "jax.nn xla", "jax.nn cudnn")
MOST_SCORES = 2**30  # of a head in jax.nn's xla, which holds them all: 4 GiB in float32


@dataclass(frozen=True)
class Case:
    """One row: ``(1, heads, length, depth)`` arrays of one dtype."""

    length: int
    depth: int
    dtype: str
    mask: str
    backward: bool
    heads: int

    def arrays(self) -> list[Any]:
        """Return query, key and value ``(1, L, H, D)``."""
        import jax.numpy as jnp

        shape = (3, 1, self.length, self.heads, self.depth)
        return [jnp.asarray(x, self.dtype) for x in np.random.default_rng(0).standard_normal(shape, np.float32)]

    def ids(self) -> np.ndarray:
        """Return the documents of a packed row, of unequal lengths."""
        return np.sort(np.random.default_rng(1).integers(0, DOCUMENTS, self.length)).astype(np.int32)


def cases(lengths: tuple[int, ...], heads: int) -> Iterator[Case]:
    """Yield the rows."""
    kinds = product(("bfloat16", "float32"), (128, 64), lengths, ("causal", "window", "packed"), (False, True))
    return (Case(length, depth, dtype, mask, back, heads) for dtype, depth, length, mask, back in kinds)


def call(name: str, case: Case) -> Callable[..., Any]:
    """Return one implementation's documented call of query, key and value."""
    return _ours(case) if name == "ours" else _jax_nn(case, name.split()[1])


def _ours(case: Case) -> Callable[..., Any]:
    import attention_jax as attention
    from attention_jax import masks

    makers: dict[str, Callable[[], Any]] = {
        "causal": masks.causal,
        "window": lambda: masks.sliding_window(WINDOW - 1, 0),
        "packed": lambda: masks.segments(case.ids()) & masks.causal(),
    }
    mask = makers[case.mask]()
    return lambda q, k, v: attention.dot_product_attention(q, k, v, mask=mask, layout="BLHD")


def _jax_nn(case: Case, implementation: str) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    options: dict[str, Any] = {"is_causal": case.mask == "causal", "implementation": implementation}
    if case.mask == "window":
        options["local_window_size"] = (WINDOW - 1, 0)
    if case.mask != "packed":
        return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options)

    def run(q: Any, k: Any, v: Any) -> Any:
        ids, place = jnp.asarray(case.ids()), jnp.arange(case.length)
        mask = (ids[:, None] == ids) & (place[:, None] >= place)
        return jax.nn.dot_product_attention(q, k, v, mask=mask[None, None], **options)

    return run


def differentiated(fn: Callable[..., Any], case: Case) -> Callable[..., Any]:
    """Return the call, or it with its gradients by all three arrays."""
    import jax

    def run(*given: Any) -> Any:
        out, pullback = jax.vjp(fn, *given)
        return out, *pullback(out)

    return run if case.backward else fn


def compiled(name: str, case: Case) -> Callable[..., Any]:
    """Compile one implementation's call for the sizes of a case."""
    import jax

    array = jax.ShapeDtypeStruct((1, case.length, case.heads, case.depth), case.dtype)
    return jax.jit(differentiated(call(name, case), case)).lower(array, array, array).compile()


def milliseconds(run: Callable[[], Any], rounds: int = 5) -> float:
    """Return the median time of a call after one that is discarded."""
    run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def truth(case: Case) -> list[np.ndarray]:
    """Return what the formula gives in float32 on the CPU for the same, rounded inputs."""
    import jax

    cpu = jax.devices("cpu")[0]
    given = [jax.device_put(np.asarray(x, np.float32), cpu) for x in case.arrays()]
    fn = differentiated(_jax_nn(replace(case, dtype="float32"), "xla"), case)
    with jax.default_device(cpu), jax.default_matmul_precision("highest"):
        out = jax.jit(fn)(*given)
    return [np.asarray(x) for x in (out if case.backward else (out,))]


def error(found: Any, expected: list[np.ndarray]) -> float:
    """Return the largest error, over the largest value, of out and gradients."""
    arrays = found if isinstance(found, tuple) else (found,)
    pairs = zip(arrays, expected, strict=True)
    return max(float(np.abs(np.asarray(a, np.float32) - b).max() / np.abs(b).max()) for a, b in pairs)


def measure(case: Case, programs: dict[str, Future[Any]], check: bool) -> dict[str, Any]:
    """Return a row: times by implementation, or in words why there is none, and errors."""
    import jax

    row: dict[str, Any] = {**asdict(case), "ms": {}, "error": {}}
    arrays, expected = case.arrays(), truth(case) if check else None
    for name, program in programs.items():
        try:
            run = partial(_finished, jax.block_until_ready, program.result(), arrays)
            row["ms"][name] = milliseconds(run)
            if expected is not None:
                row["error"][name] = error(run(), expected)
        except Exception as refusal:  # noqa: BLE001  a peer's limits are a result, whatever it raises
            row["ms"][name] = f"{type(refusal).__name__}: {str(refusal).splitlines()[0][:60]}"
    return row


def _finished(wait: Callable[[Any], Any], program: Callable[..., Any], arrays: list[Any]) -> Any:
    return wait(program(*arrays))


def names_of(case: Case) -> list[str]:
    """Return who is asked: jax.nn's xla holds all scores, and so not of what is too large."""
    large = case.length**2 * case.heads > MOST_SCORES
    return [name for name in IMPLEMENTATIONS if not (large and name == "jax.nn xla")]


def measured(todo: list[Case], end: float, ahead: int) -> Iterator[dict[str, Any]]:
    """Yield the rows as they are measured, while a few later ones are being compiled."""
    programs: dict[Case, dict[str, Future[Any]]] = {}
    with ThreadPoolExecutor(ahead) as pool:
        for n, case in enumerate(todo):
            if time.perf_counter() > end:
                pool.shutdown(cancel_futures=True)
                return
            for later in todo[n : n + ahead]:
                if later not in programs:
                    programs[later] = {name: pool.submit(compiled, name, later) for name in names_of(later)}
            yield measure(case, programs.pop(case), case.length == todo[0].length)


def line(row: dict[str, Any]) -> str:
    """Return one line of the table."""
    cells = [row["ms"].get(name, "too large") for name in IMPLEMENTATIONS]
    shown = [f"{cell:.2f}" if isinstance(cell, float) else cell for cell in cells]
    errors = [f"{row['error'][name]:.1e}" if name in row["error"] else "" for name in IMPLEMENTATIONS]
    what = f"{row['mask']}{', gradients' * row['backward']}"
    return f"| {row['dtype']} | {row['depth']} | {row['length']} | {what} | {' | '.join(shown + errors)} |"


def header(device: Any, heads: int) -> list[str]:
    """Return the lines above the rows."""
    import jax

    names = [*(f"{name}, ms" for name in IMPLEMENTATIONS), *(f"error: {name}" for name in IMPLEMENTATIONS)]
    titles = ["dtype", "D", "L", "mask", *names]
    what = f"{device.device_kind} ({device.platform}), jax {jax.__version__}"
    sizes = f"{heads} heads, window {WINDOW}, {DOCUMENTS} packed documents"
    return [f"{what}, {sizes}", "", f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks accelerator")
    parser.add_argument("--seconds", type=float, default=180.0, help="in all")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    end = time.perf_counter() + chosen.seconds
    import jax

    device, todo = jax.devices()[0], list(cases(tuple(chosen.lengths), chosen.heads))
    lines, rows = header(device, chosen.heads), []
    print("\n".join(lines))
    for row in measured(todo, end, 1 if device.platform == "cpu" else os.cpu_count() or 1):
        rows.append(row)
        lines.append(line(row))
        print(lines[-1], flush=True)
    lines += ["", f"{len(rows)} of {len(todo)} rows within {chosen.seconds:.0f} s."]
    print("\n".join(lines[-2:]))
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if chosen.json:
        chosen.json.write_text(json.dumps({"device": lines[0], "rows": rows}, indent=1) + "\n", encoding="utf-8")
