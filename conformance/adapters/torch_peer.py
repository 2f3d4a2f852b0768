"""What the adapters of PyTorch's attentions share: tensors in, autograd, and the peer's own words when it refuses."""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.adapters.base import Lacking, Unsupported, quoted
from conformance.adapters.question import Question, refusal
from conformance.cases import Case
from conformance.tensors import dtype_named

REFUSALS = (NotImplementedError, RuntimeError, TypeError, ValueError)


class TorchPeer:
    """One attention of PyTorch. A subclass says its name, its documented call, what that lacks, and calls it."""

    name = ""
    signature = ""
    lacks: tuple[str, ...] = ("dropout",)
    one_depth = False

    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")
        self.version = str(self.torch.__version__)

    def supports(self, case: Case) -> str:
        """Say yes to what the documented call has arguments for."""
        return refusal(case, self.signature, self.lacks)

    def compute(self, case: Case, dtype: str) -> Mapping[str, Any]:
        """Call PyTorch, and autograd through it; where it refuses to be differentiated, without."""
        inputs = {name: to_torch(array) for name, array in case.inputs_as(dtype).items()}
        wanted, reason = case.gradients(), None
        try:
            outputs = self._call(case, {n: x.requires_grad_() if n in wanted else x for n, x in inputs.items()})
        except Unsupported as error:
            if not wanted:
                raise
            inputs, reason = {name: x.detach() for name, x in inputs.items()}, Lacking(str(error))
            outputs = self._call(case, inputs)
        tensors = {name: found for name, found in outputs.items() if not isinstance(found, Lacking)}
        if reason is not None:
            gradients: dict[str, Any] = {f"gradient.{name}": reason for name in wanted}
        else:
            gradients = self._gradients(case, dtype, inputs, tensors)
        return {n: x if isinstance(x, Lacking) else to_numpy(x) for n, x in {**outputs, **gradients}.items()}

    def _call(self, case: Case, inputs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self.call(Question(case, inputs, self.torch, self.one_depth))
        except REFUSALS as error:
            raise Unsupported(quoted(error)) from error

    def call(self, question: Question) -> dict[str, Any]:
        """Return the outputs, in the case's shapes."""
        raise NotImplementedError

    def tensor(self, table: np.ndarray | None) -> Any:
        """Return a NumPy table as a tensor."""
        return None if table is None else to_torch(table)

    def _gradients(self, case: Case, dtype: str, inputs: dict[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
        wanted = case.gradients()
        absent = set(case.cotangents) - set(outputs)
        if not wanted or absent:
            reason = f"its call returns no {', '.join(sorted(absent))}, which the case differentiates"
            return {f"gradient.{name}": Lacking(reason) for name in wanted}
        cotangents = {name: to_torch(array) for name, array in case.cotangents_as(dtype).items()}
        total = sum((outputs[name].to(seed.dtype) * seed).sum() for name, seed in cotangents.items())
        try:
            found = self.torch.autograd.grad(total, [inputs[name] for name in wanted], allow_unused=True)
        except REFUSALS as error:
            return {f"gradient.{name}": Lacking(quoted(error)) for name in wanted}
        unused = Lacking("the call does not reach it")
        return {f"gradient.{n}": unused if x is None else x for n, x in zip(wanted, found, strict=True)}


def to_torch(array: np.ndarray) -> Any:
    """Return a tensor with the array's bits; NumPy's bfloat16 goes over as integers."""
    import torch

    # Tensors have no negative strides, and warn of memory that cannot be written.
    if any(stride < 0 for stride in array.strides) or not array.flags.writeable:
        array = np.array(array)
    if array.dtype == dtype_named("bfloat16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: Any) -> np.ndarray:
    """Return a tensor's bits as an array."""
    import torch

    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return np.array(tensor.view(torch.int16).numpy()).view(dtype_named("bfloat16"))
    return np.array(tensor.numpy())
