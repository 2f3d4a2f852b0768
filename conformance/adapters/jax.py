"""attention_jax, eager, jitted, and vmapped in a jit: its public calls, and jax.vjp through them."""

import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from conformance.adapters import ours
from conformance.adapters.base import Adapter
from conformance.cases import Case

Arrays = Mapping[str, Any]
UNREAD = "`packed_attention`: offsets may be traced; then what cannot be read is not checked but defined"


class AttentionJax:
    """The adapter of attention_jax; the whole case, gradients included, is one function, which `way` transforms."""

    def __init__(self, name: str, way: str) -> None:
        self.name = name
        self.way = way
        self.jax = importlib.import_module("jax")
        self.library = importlib.import_module("attention_jax")
        self.compiled: dict[Any, Any] = {}
        self.version = str(self.jax.__version__)

    def supports(self, case: Case) -> str:
        """Say yes to every op; in a trace, to what does not need data read."""
        if self.way != "eager" and "reads_data" in case.flags:
            return UNREAD
        return ours.unsupported(case)

    def compute(self, case: Case, dtype: str) -> Mapping[str, Any]:
        """Call attention_jax with JAX arrays; float64 under `jax.enable_x64`."""
        with self.jax.enable_x64(dtype == "float64"):
            arrays = (case.inputs_as(dtype), case.cotangents_as(dtype), case.tangents_as(dtype))
            ways = {"eager": self._function, "jit": self._jitted, "vmap": self._jitted}
            compute = ways[self.way](case)
            return dict(self.jax.device_get(compute(*self.jax.tree.map(self.jax.numpy.asarray, arrays))))

    def _jitted(self, case: Case) -> Any:
        # Cases that ask the same with other numbers share one compiled function.
        same = (case.op, json.dumps(case.parameters), tuple(case.expected))
        if same not in self.compiled:
            way = self._mapped if self.way == "vmap" else self._function
            self.compiled[same] = self.jax.jit(way(case))
        return self.compiled[same]

    def _mapped(self, case: Case) -> Any:
        """Map over a new first axis: the case, and the case with its real inputs reversed, which must not leak."""
        compute = self._function(case)

        def both(x: Any) -> Any:
            # Other numbers of the same kind; booleans and integers keep their meaning only as they are.
            other = x[..., ::-1] if x.ndim and x.dtype.kind not in "biu" else x
            return self.jax.numpy.stack([x, other])

        def mapped(*arrays: Arrays) -> dict[str, Any]:
            found = self.jax.vmap(compute)(*self.jax.tree.map(both, arrays))
            return {name: array[0] for name, array in found.items()}

        return mapped

    def _function(self, case: Case) -> Callable[..., dict[str, Any]]:
        """From inputs and cotangents to all outputs, gradients included."""
        convert = self.jax.numpy.asarray
        forward = ours.forward(self.library, case, convert)
        differentiable = ours.differentiable(self.library, case, convert)
        wanted = case.gradients()

        def compute(inputs: Arrays, cotangents: Arrays, tangents: Arrays) -> dict[str, Any]:
            outputs = forward(inputs)
            if tangents:
                outputs |= ours.tangents(self.library, case, inputs, tangents, convert)
            if not wanted:
                return outputs

            def with_cotangents(part: dict[str, Any]) -> dict[str, Any]:
                found = differentiable({**inputs, **part})
                return {name: found[name] for name in cotangents}

            found, pullback = self.jax.vjp(with_cotangents, {name: inputs[name] for name in wanted})
            # out's is of the case's dtype, lse's of the wider one that lse has
            (gradients,) = pullback({name: x.astype(found[name].dtype) for name, x in cotangents.items()})
            return {**outputs, **{f"gradient.{name}": array for name, array in gradients.items()}}

        return compute


def make_eager() -> Adapter:
    """Import attention_jax, to run op by op."""
    return AttentionJax("jax", "eager")


def make_jit() -> Adapter:
    """Import attention_jax, to run compiled."""
    return AttentionJax("jax-jit", "jit")


def make_vmap() -> Adapter:
    """Import attention_jax, to run under vmap, compiled as one."""
    return AttentionJax("jax-vmap", "vmap")
