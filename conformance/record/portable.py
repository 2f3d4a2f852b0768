"""PyTorch as every processor has it.

`torch.nn.Embedding` draws normal numbers with other instructions on a processor with AVX2 than elsewhere, and the last
bits of the draw differ: they change the article's fourth decimal at one place. The recording therefore takes the
kernels without vector instructions, in one thread, so that its inputs are the same bits on every machine.
"""

import os
import platform
import sys
from pathlib import Path
from typing import Any

from conformance.cases import Stamp
from conformance.errors import RecordError
from conformance.format import RECORDER

ENVIRONMENT = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}


def portable_torch() -> Any:
    """Import torch with its plain kernels and one thread.

    Raises:
        RecordError: torch is missing, or was imported before with other kernels.
    """
    if "torch" not in sys.modules:
        os.environ.update(ENVIRONMENT)
    try:
        import torch
    except ImportError as error:
        raise RecordError("recording needs PyTorch: pip install 'array-attention[record]'") from error
    if torch.backends.cpu.get_cpu_capability() != "DEFAULT":
        wanted = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
        raise RecordError(f"torch was loaded with this processor's kernels; start a new process with {wanted}")
    torch.set_num_threads(1)
    return torch


def stamp() -> Stamp:
    """Return what this recording is made with."""
    torch = portable_torch()
    return Stamp(RECORDER, str(torch.__version__), platform.python_version(), f"{platform.machine()}, {_processor()}")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
