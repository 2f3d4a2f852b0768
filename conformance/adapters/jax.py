"""attention_jax, eager and jitted: forward by its public calls, gradients by jax.vjp through them."""

import importlib
from collections.abc import Mapping
from typing import Any

from conformance.adapters import ours
from conformance.adapters.base import Adapter
from conformance.cases import Case


class AttentionJax:
    """The adapter of attention_jax; `jit` compiles the whole case, gradients included, as one function of its inputs."""

    def __init__(self, name: str, jit: bool) -> None:
        self.name = name
        self.jit = jit
        self.jax = importlib.import_module("jax")
        self.library = importlib.import_module("attention_jax")
        self.version = f"jax {self.jax.__version__}"

    def supports(self, case: Case) -> str:
        """Say yes to every op of the article."""
        return ours.unsupported(case)

    def compute(self, case: Case, dtype: str) -> Mapping[str, Any]:
        """Call attention_jax with JAX arrays; float64 under `jax.enable_x64`."""
        with self.jax.enable_x64(dtype == "float64"):
            compute = self.jax.jit(self._function(case)) if self.jit else self._function(case)
            inputs = self.jax.tree.map(self.jax.numpy.asarray, (case.inputs_as(dtype), case.cotangents_as(dtype)))
            return dict(self.jax.device_get(compute(*inputs)))

    def _function(self, case: Case) -> Any:
        forward, wanted = ours.forward(self.library, case), case.gradients()

        def compute(inputs: dict[str, Any], cotangents: dict[str, Any]) -> dict[str, Any]:
            outputs = forward(inputs)
            if not wanted:
                return outputs

            def differentiated(part: dict[str, Any]) -> dict[str, Any]:
                again = forward({**inputs, **part})
                return {name: again[name] for name in cotangents}

            _, pullback = self.jax.vjp(differentiated, {name: inputs[name] for name in wanted})
            return {**outputs, **{f"gradient.{name}": array for name, array in pullback(cotangents)[0].items()}}

        return compute


def make_eager() -> Adapter:
    """Import attention_jax, to run op by op."""
    return AttentionJax("jax", jit=False)


def make_jit() -> Adapter:
    """Import attention_jax, to run compiled."""
    return AttentionJax("jax-jit", jit=True)
