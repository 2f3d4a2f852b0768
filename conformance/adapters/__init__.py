"""Adapters: one small file an implementation, each importing its framework only when it is made.

An adapter has a `name`, a `version`, `supports(case)` (an empty string, or why not) and `compute(case, dtype)`, which
returns the outputs that the case expects by name: `out`, `lse`, `weights`, `stage.*`, `step.*`, `gradient.*`. It
translates a case into the implementation's own documented call and never corrects the implementation.
"""

import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass

from conformance.adapters.base import Adapter, Lacking, NotInstalled, Unsupported
from conformance.errors import UsageError

__all__ = ["KNOWN", "Adapter", "Known", "Lacking", "NotInstalled", "Unsupported", "load", "load_all"]


@dataclass(frozen=True)
class Known:
    """An implementation that has an adapter here: the module, its maker, and how to install what it needs."""

    name: str
    maker: str
    install: str


KNOWN = (
    Known("numpy", "conformance.adapters.numpy:make", "pip install array-attention"),
    Known("jax", "conformance.adapters.jax:make_eager", "pip install 'array-attention[jax]'"),
    Known("jax-jit", "conformance.adapters.jax:make_jit", "pip install 'array-attention[jax]'"),
    Known("torch", "conformance.adapters.torch:make", "pip install 'array-attention[record]'"),
)


def load(name: str) -> Adapter:
    """Return the adapter of a known name, or of a user's `module:function`.

    Raises:
        NotInstalled: what it needs is not installed; says how to install it.
        UsageError: there is no such name, module or attribute.
    """
    if ":" in name:
        from conformance.adapters.function import make

        return make(name)
    for known in KNOWN:
        if known.name == name:
            return _made(known)
    names = ", ".join(known.name for known in KNOWN)
    raise UsageError(f"no implementation `{name}`; known are {names}, and your own as module:function")


def load_all(names: Iterable[str] = ()) -> tuple[list[Adapter], list[str]]:
    """Return the named adapters, or all that are installed, and a line on each one that is not."""
    names = tuple(names)
    if names:
        return [load(name) for name in dict.fromkeys(names)], []
    found, missing = [], []
    for known in KNOWN:
        try:
            found.append(_made(known))
        except NotInstalled as error:
            missing.append(f"{known.name}: {error}")
    return found, missing


def _made(known: Known) -> Adapter:
    module, _, maker = known.maker.partition(":")
    try:
        adapter: Adapter = getattr(importlib.import_module(module), maker)()
    except ModuleNotFoundError as error:
        raise NotInstalled(f"not installed ({error.name} is missing); {known.install}") from error
    return adapter
