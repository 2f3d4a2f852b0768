"""What this package computes with: how many threads, whose matrix products, and all of it for a bug report."""

from __future__ import annotations

from typing import Any

import numpy as np

from .exponent import exponential
from .gemm import provider, use_provider
from .threads import blas_controller, get_num_threads, set_num_threads

__all__ = ["get_num_threads", "set_num_threads", "show_config", "use_provider"]


def show_config() -> dict[str, Any]:
    """Return the BLAS libraries, the provider of matrix products, the exponential, the threads and the tiles in use.

    >>> from attention_np.config import show_config
    >>> sorted(show_config())
    ['blas', 'exponential', 'gemm', 'numpy', 'threads', 'tiles']
    """
    names = ("internal_api", "version", "threading_layer", "architecture")
    blas = [{name: each[name] for name in names if name in each} for each in blas_controller().info()]
    exponentials = {str(dtype): exponential(np.dtype(dtype)).name for dtype in ("float32", "float64")}
    return {
        "numpy": np.__version__,
        "blas": blas,
        "gemm": provider(),
        "exponential": exponentials,
        "threads": get_num_threads(),
        "tiles": {"queries": 512, "keys": 512, "keys seen in part": 128},
    }
