"""Record the attention of real models with random weights, from the modules of PyTorch, transformers and diffusers.

    python -m conformance.record.models tests/data/models [NAME ...]

A case is a JSON file, what it is and how our layer is called, and a safetensors file beside it: weights by the module's
names, inputs, output, gradients, and outputs of named wrong variants, all in float64 from the module in float64. Both
packages are needed to record, never to check: pip install transformers==5.24.0 diffusers==0.42.1
"""

import contextlib
import copy
import importlib.metadata
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from conformance import tensors
from conformance.record.portable import portable_torch

Run = Callable[[Any, dict[str, Any]], Any]
"""From a module and its inputs to its output."""

GRID = 64  # weights and inputs are multiples of 1/64 below 4: exact in every dtype, bfloat16 too


@dataclass(frozen=True)
class Wrong:
    """A mistake that a port makes: in a copy of the module, or in how it is run."""

    words: str
    edit: Callable[[Any], None] | None = None
    run: Run | None = None


@dataclass(frozen=True)
class Model:
    """One attention module, and the call of our layer that must equal it."""

    name: str
    source: str
    layer: str
    options: dict[str, Any]
    inputs: dict[str, tuple[int, ...]]
    build: Callable[[], Any]
    run: Run
    call: dict[str, Any] = field(default_factory=dict)
    wrong: dict[str, Wrong] = field(default_factory=dict)


def record(model: Model, folder: Path) -> None:
    """Write one case."""
    torch = portable_torch()
    arrays, inputs = {}, _drawn_inputs(model)
    with exact(torch):
        module = _drawn_weights(model, model.build().double().eval())
        given = {name: torch.from_numpy(x).requires_grad_() for name, x in inputs.items()}
        out = model.run(module, given)
        cotangent = torch.from_numpy(_on_grid(_rng(model.name, "cotangent").normal(size=tuple(out.shape))))
        named = {**given, **dict(module.named_parameters())}
        gradients = torch.autograd.grad((out * cotangent).sum(), list(named.values()))
        for name, gradient in zip(named, gradients, strict=True):
            arrays[f"gradients/{name}"] = gradient
        for name, wrong in model.wrong.items():
            arrays[f"wrong/{name}"] = _wrong_output(model, wrong, module, given)
    arrays |= {f"weights/{name}": x for name, x in module.named_parameters()}
    arrays |= {f"inputs/{name}": x for name, x in given.items()} | {"cotangent": cotangent, "out": out}
    errors = {name: _error(model, module, given, out, dtype) for name, dtype in _small(torch).items()}
    saved = {name: x.detach().numpy() for name, x in arrays.items()}
    (folder / f"{model.name}.safetensors").write_bytes(tensors.dump(saved))
    (folder / f"{model.name}.json").write_text(json.dumps(_described(model, errors), indent=2) + "\n")


def _described(model: Model, errors: dict[str, float]) -> dict[str, Any]:
    packages = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "diffusers")}
    return {
        "name": model.name,
        "source": model.source,
        "packages": packages,
        "layer": model.layer,
        "options": model.options,
        "inputs": list(model.inputs),
        "call": model.call,
        "errors": errors,
        "wrong": {name: wrong.words for name, wrong in model.wrong.items()},
    }


@contextlib.contextmanager
def exact(torch: Any) -> Iterator[None]:
    """Let modules that cast to float32 inside, as most do for softmax, norms and rotation, compute in float64.

    They name the dtype when they run: for this while the names mean float64.
    """
    names, method, default = ("float32", "float"), torch.Tensor.float, torch.get_default_dtype()
    before = {name: getattr(torch, name) for name in names}
    try:
        for name in names:
            setattr(torch, name, torch.float64)
        torch.Tensor.float = torch.Tensor.double
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        for name, dtype in before.items():
            setattr(torch, name, dtype)
        torch.Tensor.float = method
        torch.set_default_dtype(default)


def _wrong_output(model: Model, wrong: Wrong, module: Any, given: dict[str, Any]) -> Any:
    changed = copy.deepcopy(module)
    if wrong.edit is not None:
        wrong.edit(changed)
    return (wrong.run or model.run)(changed, given)


def _error(model: Model, module: Any, given: dict[str, Any], truth: Any, dtype: Any) -> float:
    """The worst error of the module itself in a smaller dtype."""
    small = copy.deepcopy(module).to(dtype)
    out = model.run(small, {name: x.detach().to(dtype) for name, x in given.items()})
    return float((out.double() - truth).detach().abs().max())


def _small(torch: Any) -> dict[str, Any]:
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _rng(*words: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32("/".join(words).encode()))


def _on_grid(x: np.ndarray) -> np.ndarray:
    return np.clip(np.round(x * GRID) / GRID, -3.0, 3.0)


def _drawn_inputs(model: Model) -> dict[str, np.ndarray]:
    return {name: _on_grid(_rng(model.name, name).normal(size=shape)) for name, shape in model.inputs.items()}


def _drawn_weights(model: Model, module: Any) -> Any:
    torch = portable_torch()
    for name, parameter in module.named_parameters():
        drawn = _rng(model.name, name).normal(size=tuple(parameter.shape))
        centre, spread = (1.0, 0.25) if "norm" in name and parameter.ndim == 1 else (0.0, 0.4)
        parameter.data = torch.from_numpy(_on_grid(centre + spread * drawn))
    return module


def main(folder: str, *names: str) -> None:
    """Record the cases whose names begin with one of the words, or all."""
    from conformance.record.models_cases import models

    Path(folder).mkdir(parents=True, exist_ok=True)
    for model in models():
        if not names or model.name.startswith(names):
            record(model, Path(folder))
            sys.stdout.write(f"{model.name}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
