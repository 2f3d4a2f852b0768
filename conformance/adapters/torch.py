"""PyTorch itself: the article's own lines on this machine's PyTorch and processor."""

import importlib
from collections.abc import Mapping
from typing import Any

from conformance.adapters.base import Adapter
from conformance.cases import Case
from conformance.record import plain


class PyTorch:
    """The adapter of plain PyTorch."""

    name = "torch"

    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")
        self.version = str(self.torch.__version__)

    def supports(self, case: Case) -> str:
        """Say yes to the article's cases."""
        return "" if case.group.startswith("article-") else "the article does not say this call"

    def compute(self, case: Case, dtype: str) -> Mapping[str, Any]:
        """Run the article's lines, and autograd through them."""
        wanted = case.gradients()
        inputs = {name: self.torch.from_numpy(array) for name, array in case.inputs_as(dtype).items()}
        for name in wanted:
            inputs[name].requires_grad_()
        outputs = plain.OPS[case.op](inputs, case.parameters)
        cotangents = {name: self.torch.from_numpy(array) for name, array in case.cotangents_as(dtype).items()}
        found = plain.gradients(outputs, cotangents, inputs, wanted) if wanted else {}
        return {name: tensor.detach().numpy() for name, tensor in {**outputs, **found}.items()}


def make() -> Adapter:
    """Import torch."""
    return PyTorch()
