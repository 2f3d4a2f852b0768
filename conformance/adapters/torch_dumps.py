"""Tensors of a `.pt` file, by `torch.load(weights_only=True)`, which executes nothing that the file holds."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from conformance.adapters.torch_peer import to_numpy


def read_pt(path: Path) -> dict[str, np.ndarray]:
    """Return the file's tensors: one alone, or a mapping of names.

    Raises:
        ModuleNotFoundError: PyTorch is not installed.
        ValueError: the file is damaged, or holds other things than tensors.
    """
    import torch

    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(" ".join(str(error).split())[:300]) from error
    named = {"array": found} if isinstance(found, torch.Tensor) else found
    if not isinstance(named, dict) or not all(isinstance(each, torch.Tensor) for each in named.values()):
        raise ValueError("it holds no tensor and no mapping of tensors")
    return {str(name): to_numpy(tensor) for name, tensor in named.items()}
