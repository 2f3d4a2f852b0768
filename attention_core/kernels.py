"""Which code computes a call: the dense definition, or a kernel that a backend registered for its arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from .arrays import Array, library_name
from .dense import dense_attention
from .gradient import dense_vjp
from .problem import Gradients, Problem, Result
from .settled import forget
from .tiled import cannot_be_tiled, should_be_tiled, tiled_attention, tiled_vjp

__all__ = ["Choice", "Kernel", "choose", "default_namespace", "explain", "register_kernel"]


@dataclass(frozen=True)
class Kernel:
    """A way to compute attention.

    ``forward(problem, lse=..., weights=...)`` returns the out of a checked problem, heads first, and what is asked for.
    ``backward(problem, result, out_cotangent, lse_cotangent)`` returns the gradients. ``lacks(problem, weights)`` names
    what this kernel cannot do of a call, or returns ``None``; ``suits(problem)`` says whether ``impl="auto"`` takes it;
    neither looks into arrays, since what they say of a call stands for others of its shapes, dtypes, mask and options.
    ``explain(problem)`` is for :func:`which_kernel`: which of its ways this kernel goes for a call, in words.

    >>> from attention_core.kernels import DENSE
    >>> DENSE.name
    'dense'
    """

    name: str
    forward: Callable[..., Result]
    backward: Callable[[Problem, Result, Array, Array | None], Gradients]
    lacks: Callable[[Problem, bool], str | None]
    suits: Callable[[Problem], bool]
    explain: Callable[[Problem], str] = lambda problem: ""


class Choice(NamedTuple):
    """What a call takes, and why not the others.

    >>> import numpy as np
    >>> from attention_np import which_kernel
    >>> x = np.eye(3)
    >>> which_kernel(x, x, x, impl="dense").impl
    'dense'
    """

    impl: str
    reason: str
    refused: dict[str, str]


def _dense_backward(problem: Problem, result: Result, out_cotangent: Array, lse_cotangent: Array | None) -> Gradients:
    return dense_vjp(problem, out_cotangent, lse_cotangent)


DENSE = Kernel("dense", dense_attention, _dense_backward, lambda problem, weights: None, lambda problem: True)

TILED = Kernel("tiled", tiled_attention, tiled_vjp, cannot_be_tiled, should_be_tiled)

_EVERYWHERE = {kernel.name: kernel for kernel in (TILED, DENSE)}  # for a library whose backend has none of the name

_TABLE: dict[str, tuple[ModuleType, dict[str, Kernel]]] = {}  # library -> its namespace, its kernels by impl


def register_kernel(xp: ModuleType, *kernels: Kernel) -> None:
    """Offer kernels for the arrays of ``xp``, the first to suit a call being the one that ``impl="auto"`` takes.

    A backend calls this when it is imported; a kernel of the same name is replaced, also ``"dense"``.

    >>> import numpy as np
    >>> from attention_core import kernels
    >>> kernels.register_kernel(np, kernels.DENSE)
    """
    _, known = _TABLE.get(library_name(xp), (xp, _EVERYWHERE))
    new = {kernel.name: kernel for kernel in kernels}
    _TABLE[library_name(xp)] = (xp, {**new, **{name: known[name] for name in known if name not in new}})
    forget()


def default_namespace() -> ModuleType:
    """Return NumPy's namespace where ``attention_np`` is imported, else that of the backend which is."""
    for xp, _ in sorted(_TABLE.values(), key=lambda row: library_name(row[0]) != "numpy"):
        return xp
    raise ValueError("no array library to compute with: import attention_np or attention_jax, or pass `xp`")


def choose(problem: Problem, impl: Any, weights: bool) -> Kernel:
    """Return the kernel for a call; a named one is used or refused, never swapped."""
    if not isinstance(impl, str) or impl != "auto":
        return _named(problem, impl, weights)
    taken, weights = problem.taken, bool(weights)
    if taken is None:
        return _best(problem, weights)[0]
    kernel: Kernel | None = taken.get(weights)
    if kernel is None:
        kernel = taken[weights] = _best(problem, weights)[0]
    return kernel


def _best(problem: Problem, weights: bool) -> tuple[Kernel, Choice]:
    offered, refused = _offered(problem.xp), dict[str, str]()
    for name, kernel in offered.items():
        lack = kernel.lacks(problem, weights)
        if lack is None and kernel.suits(problem):
            return kernel, Choice(name, "the first that suits the call", refused)
        refused[name] = lack or "not faster for these sizes"
    return offered["dense"], Choice("dense", "the definition", refused)


def _offered(xp: ModuleType) -> dict[str, Kernel]:
    return _TABLE.get(library_name(xp), (xp, _EVERYWHERE))[1]


def _named(problem: Problem, impl: Any, weights: bool) -> Kernel:
    offered = _offered(problem.xp)
    known = {"auto", *_EVERYWHERE}.union(*(kernels for _, kernels in _TABLE.values()))
    if not isinstance(impl, str) or impl not in known:
        raise ValueError(f"`impl` must be one of {', '.join(sorted(known))}; got {impl!r}")
    if impl not in offered:
        raise NotImplementedError(f'`impl="{impl}"` does not compute arrays of {library_name(problem.xp)}')
    lack = offered[impl].lacks(problem, weights)
    if lack is not None:
        raise NotImplementedError(f'`impl="{impl}"` cannot do this call: {lack}')
    return offered[impl]


def explain(problem: Problem, impl: Any, weights: bool) -> Choice:
    """Say which kernel :func:`choose` returns, why and which way, and why not those that it passed over."""
    if isinstance(impl, str) and impl == "auto":
        kernel, choice = _best(problem, weights)
    else:
        kernel, choice = _named(problem, impl, weights), Choice(impl, "named by the caller", {})
    way = kernel.explain(problem)
    return choice._replace(reason=f"{choice.reason}; {way}") if way else choice
