"""Everybody's own documented call, compiled once for a case and then only timed."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .cases import WINDOW, Case, differentiated


class Ready(NamedTuple):
    """A call that waits for its result, and the seconds that compiling it took."""

    run: Callable[[], Any]
    compile_s: float
    compiled: Any = None


def ours(case: Case) -> Ready:
    return _jitted(case.ours(), case, "BHLD")


def jax_nn(case: Case) -> Ready:
    import jax

    return _jitted(functools.partial(jax.nn.dot_product_attention, implementation="xla", **_options(case)), case)


def tokamax(case: Case) -> Ready:
    import tokamax
    from absl import flags

    flags.FLAGS(["benchmarks"])  # or it takes this command's options for its own
    call = functools.partial(tokamax.dot_product_attention, implementation="xla_chunked", **_options(case))
    return _jitted(call, case)


def _options(case: Case) -> dict[str, Any]:
    if case.mask == "window":
        return {"local_window_size": (WINDOW - 1, 0)}
    return {"is_causal": case.mask == "causal"}


def _jitted(fn: Callable[..., Any], case: Case, layout: str = "BLHD") -> Ready:
    import jax

    arrays = [jax.numpy.asarray(x) for x in case.arrays(layout)]
    start = time.perf_counter()
    compiled = jax.jit(differentiated(fn, case)).lower(*arrays).compile()
    return Ready(lambda: jax.block_until_ready(compiled(*arrays)), time.perf_counter() - start, compiled)


def torch_sdpa(case: Case) -> Ready:
    import torch

    leaves = [torch.from_numpy(x).requires_grad_(case.backward) for x in case.arrays()]
    options: dict[str, Any] = {"is_causal": True} if case.mask == "causal" else {}
    options |= {"enable_gqa": True} if case.group > 1 else {}
    call: Callable[..., Any] = torch.nn.functional.scaled_dot_product_attention

    def run() -> Any:
        out = call(*leaves, **options)
        return (out, *torch.autograd.grad(out, leaves, out.detach())) if case.backward else out

    return Ready(run, 0.0)


PEERS: dict[str, tuple[str, Callable[[Case], Ready]]] = {
    "jax.nn": ("jax", jax_nn),
    "tokamax": ("tokamax", tokamax),
    "torch": ("torch", torch_sdpa),
}
