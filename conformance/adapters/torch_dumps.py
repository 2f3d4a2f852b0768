"""Tensors of a `.pt` file, by `torch.load(weights_only=True)`, which executes nothing that the file holds."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from conformance.adapters.torch_peer import to_numpy


def read_pt(path: Path) -> dict[str, np.ndarray]:
    """Return the file's tensors: one alone, or those of a mapping of names.

    Raises:
        ModuleNotFoundError: PyTorch is not installed.
        ValueError: the file is damaged, or holds no tensors.
    """
    import torch

    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(" ".join(str(error).split())[:300]) from error
    named = {"array": found} if isinstance(found, torch.Tensor) else found
    items = named.items() if isinstance(named, Mapping) else ()
    tensors = {name: each for name, each in items if isinstance(each, torch.Tensor)}
    if not tensors:
        raise ValueError("it holds no tensor and no mapping of tensors")
    return {str(name): to_numpy(tensor) for name, tensor in tensors.items()}
