"""attention_core on tensors of PyTorch: the definition in standard functions, not one of PyTorch's own attentions."""

import importlib
from typing import Any

import numpy as np

from conformance.adapters.base import Adapter
from conformance.adapters.numpy import AttentionOnArrays
from conformance.adapters.torch_peer import to_numpy, to_torch


class AttentionOnTorch(AttentionOnArrays):
    """The dense definition and the tiled kernel on tensors."""

    def __init__(self) -> None:
        version = str(importlib.import_module("torch").__version__)
        super().__init__("array-api-torch", importlib.import_module("attention_core"), version)

    def asarray(self, array: np.ndarray) -> Any:
        """Take a NumPy array to a tensor."""
        return to_torch(array)

    def asnumpy(self, array: Any) -> np.ndarray:
        """Take a tensor back."""
        return to_numpy(array)


def make() -> Adapter:
    """Import torch."""
    return AttentionOnTorch()
