"""`mlx.core.fast.scaled_dot_product_attention`, forward.

https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.fast.scaled_dot_product_attention.html
"""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.adapters.base import Adapter, Lacking, Unsupported, quoted
from conformance.adapters.question import Question, refusal
from conformance.cases import Case
from conformance.tensors import dtype_named

SIGNATURE = "mlx.core.fast.scaled_dot_product_attention(q, k, v, *, scale, mask=None, sinks=None)"
ONLY_OUT = "scaled_dot_product_attention returns the output only"
FORWARD = "this adapter asks the output only"
REFUSALS = (NotImplementedError, RuntimeError, TypeError, ValueError)


class Mlx:
    """The adapter of MLX; `attend` takes NumPy arrays and gives one back."""

    name = "mlx"

    def __init__(self) -> None:
        self.mx = importlib.import_module("mlx.core")
        self.version = str(importlib.import_module("importlib.metadata").version("mlx"))

    def supports(self, case: Case) -> str:
        """Say yes to what the documented call has arguments for."""
        return refusal(case, SIGNATURE, ("softcap", "dropout"))

    def compute(self, case: Case, dtype: str) -> Mapping[str, Any]:
        """Call it once."""
        question = Question(case, case.inputs_as(dtype), np)
        arguments = {"scale": case.parameters["scale"], "mask": _mask(question), "sinks": _sinks(question)}
        try:
            out = self.attend(*question.arrays(), **{n: x for n, x in arguments.items() if x is not None})
        except REFUSALS as error:
            raise Unsupported(quoted(error)) from error
        absent = {f"gradient.{name}": Lacking(FORWARD) for name in case.gradients()}
        return {"out": question.out(out), **absent, **dict.fromkeys(("lse", "weights"), Lacking(ONLY_OUT))}

    def attend(self, query: np.ndarray, key: np.ndarray, value: np.ndarray, **arguments: Any) -> np.ndarray:
        """Call MLX with its own arrays."""
        given = {name: self._array(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
        out = self.mx.fast.scaled_dot_product_attention(*map(self._array, (query, key, value)), **given)
        if out.dtype == self.mx.bfloat16:
            return np.array(out.view(self.mx.uint16)).view(dtype_named("bfloat16"))
        return np.array(out)

    def _array(self, x: np.ndarray) -> Any:
        x = np.ascontiguousarray(x)
        if x.dtype == np.float64:
            return self.mx.array(x, dtype=self.mx.float64)
        if x.dtype == dtype_named("bfloat16"):
            return self.mx.array(x.view(np.uint16)).view(self.mx.bfloat16)
        return self.mx.array(x)


def _mask(question: Question) -> Any:
    """`"causal"`, which aligns at the last key; else booleans, or numbers with `-inf` where hidden."""
    dtype, rule = question.inputs["query"].dtype, question.case.parameters["mask"]
    bias = question.bias(dtype)
    square = question.array("query").shape[2] == question.array("key").shape[2] and question.indices_are_positions()
    if bias is None and (rule == {"rule": "causal_lower_right"} or (rule == {"rule": "causal"} and square)):
        return "causal"
    _, table = question.mask()
    if bias is None:
        return table
    bias = np.asarray(bias).astype(dtype)
    return bias if table is None else np.where(table, bias, np.asarray(-np.inf, dtype))


def _sinks(question: Question) -> Any:
    name = question.case.parameters["sinks"]
    return None if name is None else question.inputs[name].astype(question.inputs["query"].dtype)


def make() -> Adapter:
    """Import mlx."""
    return Mlx()
