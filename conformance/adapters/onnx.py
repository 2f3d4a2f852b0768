"""ONNX's `Attention` operator by the reference evaluator of the `onnx` package.

https://onnx.ai/onnx/operators/onnx__Attention.html
"""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance import rules
from conformance.adapters.base import Adapter, Lacking, Unsupported, quoted
from conformance.adapters.question import Question, refusal
from conformance.cases import Case

SIGNATURE = (
    "Attention(Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen; is_causal, scale, softcap, "
    "left_window_size, right_window_size, qk_matmul_output_mode, ...)"
)
# qk_matmul_output_mode of each stage; the bias of mode 2 holds the mask too.
MODES = {"stage.scaled": 0, "stage.capped": 1, "stage.masked": 2, "weights": 3}
NO_GRADIENT = "the reference evaluator has no gradients"
REFUSALS = (NotImplementedError, RuntimeError, TypeError, ValueError)


class Onnx:
    """The adapter of the reference evaluator."""

    name = "onnx"

    def __init__(self) -> None:
        self.onnx = importlib.import_module("onnx")
        self.reference = importlib.import_module("onnx.reference")
        schema = self.onnx.defs.get_schema("Attention")
        self.opset = schema.since_version
        self.has_windows = "left_window_size" in schema.attributes
        self.version = f"{self.onnx.__version__}, opset {self.opset}"

    def supports(self, case: Case) -> str:
        """Say yes to what the operator has inputs and attributes for."""
        return refusal(case, SIGNATURE, ("sinks", "dropout"))

    def compute(self, case: Case, dtype: str) -> Mapping[str, Any]:
        """Evaluate one node, once for each stage that the case expects."""
        question = Question(case, case.inputs_as(dtype), np)
        modes = {name: MODES[name] for name in case.expected if name in MODES}
        try:
            inputs, attributes = self._node(question)
            out, _ = self._evaluate(inputs, attributes, 0)
            found = {name: self._evaluate(inputs, attributes, mode)[1] for name, mode in modes.items()}
        except REFUSALS as error:
            raise Unsupported(quoted(error)) from error
        absent = {f"gradient.{name}": Lacking(NO_GRADIENT) for name in case.gradients()}
        absent["lse"] = Lacking("Attention has no such output")
        return {"out": question.out(out), **{name: question.per_pair(x) for name, x in found.items()}, **absent}

    def _node(self, question: Question) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        query, key, value = question.arrays()
        windows = ("sliding_window",) if self.has_windows else ()
        native, table = question.mask(("causal", "key_lengths", *windows))
        if "key_lengths" in native and len(native) > 1:
            # With lengths, causal and windows start at the end of the valid keys: another question.
            native, table = question.mask(("causal", *windows))
        attributes: dict[str, Any] = {"is_causal": int("causal" in native)}
        if "sliding_window" in native:
            left, right = (native["sliding_window"][name] for name in ("left", "right"))
            attributes |= {"left_window_size": _bound(left), "right_window_size": _bound(right)}
        if not question.default_scale():
            attributes["scale"] = question.case.parameters["scale"]
        if question.case.parameters["softcap"] is not None:
            attributes["softcap"] = question.case.parameters["softcap"]
        inputs = {"Q": query, "K": key, "V": value, "attn_mask": _attn_mask(question, table, key.shape[2])}
        if "key_lengths" in native:
            lengths = rules.integers(native["key_lengths"]["lengths"], question.case.inputs)
            inputs["nonpad_kv_seqlen"] = np.broadcast_to(lengths, question.batch).reshape(-1).astype(np.int64)
        return {name: array for name, array in inputs.items() if array is not None}, attributes

    def _evaluate(self, inputs: Mapping[str, np.ndarray], attributes: Mapping[str, Any], mode: int) -> Any:
        make = self.onnx.helper
        order = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
        names = [name if name in inputs else "" for name in order]
        while not names[-1]:
            names.pop()
        outputs = ["Y", "", "", "qk_matmul_output"]
        node = make.make_node("Attention", names, outputs, **attributes, qk_matmul_output_mode=mode)
        types = {name: make.np_dtype_to_tensor_dtype(array.dtype) for name, array in inputs.items()}
        given = [make.make_tensor_value_info(name, types[name], array.shape) for name, array in inputs.items()]
        wanted = [make.make_tensor_value_info(name, types["Q"], None) for name in ("Y", "qk_matmul_output")]
        graph = make.make_graph([node], "case", given, wanted)
        model = make.make_model(graph, opset_imports=[make.make_opsetid("", self.opset)])
        return self.reference.ReferenceEvaluator(model).run(None, dict(inputs))


def _bound(value: int | None) -> int:
    return -1 if value is None else value


def _attn_mask(question: Question, table: np.ndarray | None, keys: int) -> np.ndarray | None:
    """One input for mask and bias: booleans, or numbers with `-inf` where hidden."""
    dtype = question.inputs["query"].dtype
    bias = question.bias(dtype)
    if bias is not None:
        bias = np.asarray(bias).astype(dtype)
        table = bias if table is None else np.where(table, bias, np.asarray(-np.inf, dtype))
    # A last axis shorter than the keys is padded with "hidden" by the operator, not broadcast.
    return None if table is None else np.ascontiguousarray(np.broadcast_to(table, (*table.shape[:-1], keys)))


def make() -> Adapter:
    """Import onnx."""
    return Onnx()
