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
    """An implementation that has an adapter here: the module, its maker, how to install what it needs."""

    name: str
    maker: str
    install: str
    asked: bool = False  # without being named


ALL = "all"
JAX = "pip install 'array-attention[jax]'"
TORCH = "pip install 'array-attention[record]'"
KNOWN = (
    Known("numpy", "conformance.adapters.numpy:make", "pip install array-attention", asked=True),
    Known("jax", "conformance.adapters.jax:make_eager", JAX, asked=True),
    Known("jax-jit", "conformance.adapters.jax:make_jit", JAX, asked=True),
    Known("jax-vmap", "conformance.adapters.jax:make_vmap", JAX),
    Known("array-api-strict", "conformance.adapters.array_api_strict:make", "pip install array-api-strict"),
    Known("array-api-torch", "conformance.adapters.torch_array_api:make", TORCH),
    Known("torch", "conformance.adapters.torch:make", TORCH, asked=True),
    Known("torch.sdpa-math", "conformance.adapters.torch_sdpa:make_math", TORCH),
    Known("torch.sdpa-flash", "conformance.adapters.torch_sdpa:make_flash", TORCH),
    Known("torch.flex", "conformance.adapters.torch_flex:make", TORCH),
    Known("torch.mha", "conformance.adapters.torch_mha:make", TORCH),
    Known("jax.nn", "conformance.adapters.jax_nn:make", JAX),
    Known("onnx", "conformance.adapters.onnx:make", "pip install onnx"),
    Known("flash-attention", "conformance.adapters.flash_attention:make", "pip install flash-attn"),
    Known("mlx", "conformance.adapters.mlx:make", "pip install 'mlx[cpu]'"),
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
    raise UsageError(f"no implementation `{name}`; known are {names}, `{ALL}`, and your own as module:function")


def load_all(names: Iterable[str] = ()) -> tuple[list[Adapter], list[str]]:
    """Return the named adapters (`all` for every known one), and a line on each that is not installed.

    Without names it is our own and the article's PyTorch, where they are installed.
    """
    names = tuple(dict.fromkeys(names))
    wanted = [known for known in KNOWN if ALL in names or (known.asked and not names)]
    found, missing = [load(name) for name in names if name != ALL], []
    for known in wanted:
        if known.name in names:
            continue
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
        raise NotInstalled(f"not asked, since {error.name} is not installed; {known.install}") from error
    return adapter
