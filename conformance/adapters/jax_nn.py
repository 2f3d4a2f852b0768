"""`jax.nn.dot_product_attention`, its own arguments where it has them, tables where it has none.

https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html
"""

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from conformance import rules
from conformance.adapters.base import Adapter, Lacking, Unsupported, quoted
from conformance.adapters.question import Question, refusal
from conformance.cases import Case

SIGNATURE = (
    "jax.nn.dot_product_attention(query, key, value, bias=None, mask=None, *, scale=None, is_causal=False, "
    "query_seq_lengths=None, key_value_seq_lengths=None, local_window_size=None, implementation=None, "
    "return_residual=False)"
)
NATIVE = ("causal", "sliding_window", "key_lengths", "query_lengths")
REFUSALS = (NotImplementedError, TypeError, ValueError)


class JaxNn:
    """The adapter of JAX's own attention: a case and its gradients compiled as one, which is several times faster.

    float16 is asked eagerly: "The precision 'F16_F16_F32' is not supported by dot_general on CPU" under jit.
    """

    name = "jax.nn"

    def __init__(self) -> None:
        self.jax = importlib.import_module("jax")
        self.version = f"jax {self.jax.__version__}"
        self.attend = self.jax.nn.dot_product_attention

    def supports(self, case: Case) -> str:
        """Say yes to what the documented call has arguments for."""
        return refusal(case, SIGNATURE, ("softcap", "sinks", "dropout"))

    def compute(self, case: Case, dtype: str) -> Mapping[str, Any]:
        """Call JAX, and jax.vjp through it; float64 under `jax.enable_x64`."""
        with self.jax.enable_x64(dtype == "float64"):
            arrays = (case.inputs_as(dtype), case.cotangents_as(dtype))
            whole = partial(self._forward_and_back, case)
            ask = whole if dtype == "float16" else self.jax.jit(whole)
            try:
                found = ask(*self.jax.tree.map(self.jax.numpy.asarray, arrays))
            except (*REFUSALS, self.jax.errors.JaxRuntimeError) as error:
                raise Unsupported(quoted(error)) from error
            absent = Lacking("jax.nn.dot_product_attention returns no weights")
            return {**self.jax.device_get(found), "weights": absent}

    def _forward_and_back(self, case: Case, inputs: Any, cotangents: Any) -> dict[str, Any]:
        wanted = case.gradients()

        def forward(part: dict[str, Any]) -> dict[str, Any]:
            return self._call(Question(case, {**inputs, **part}, self.jax.numpy, one_depth=True))

        outputs, pullback = self.jax.vjp(forward, {name: inputs[name] for name in wanted})
        seeds = {
            name: cotangents.get(name, self.jax.numpy.zeros_like(x)).astype(x.dtype) for name, x in outputs.items()
        }
        (found,) = pullback(seeds) if wanted else ({},)
        return {**outputs, **{f"gradient.{name}": array for name, array in found.items()}}

    def _call(self, question: Question) -> dict[str, Any]:
        query, key, value = (x.swapaxes(1, 2) for x in question.arrays())
        native, table = question.mask(NATIVE)
        out, lse = self.attend(
            query,
            key,
            value,
            bias=question.bias(query.dtype),
            mask=table,
            scale=question.case.parameters["scale"],
            return_residual=True,
            **_arguments(native, question),
        )
        return {"out": question.out(out.swapaxes(1, 2)), "lse": question.per_pair(lse.swapaxes(1, 2))}


def _arguments(native: Mapping[str, rules.Rule], question: Question) -> dict[str, Any]:
    arguments: dict[str, Any] = {"is_causal": "causal" in native}
    names = {"query_lengths": "query_seq_lengths", "key_lengths": "key_value_seq_lengths"}
    for rule, argument in names.items():
        if rule in native:
            lengths = rules.integers(native[rule]["lengths"], question.case.inputs)
            arguments[argument] = np.broadcast_to(lengths, question.batch).reshape(-1).astype(np.int32)
    if "sliding_window" in native:
        arguments["local_window_size"] = _window(native["sliding_window"], question)
    return arguments


def _window(rule: rules.Rule, question: Question) -> tuple[int, int]:
    # There is no "unbounded": a bound as long as the longest distance is the same.
    far = max(rules.lengths(question.case))
    left, right = (far if rule[name] is None else rule[name] for name in ("left", "right"))
    return left, right


def make() -> Adapter:
    """Import jax."""
    return JaxNn()
