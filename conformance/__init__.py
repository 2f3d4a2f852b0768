"""Is an attention right? Saved PyTorch tensors as portable test vectors, and what checks an attention by them.

Start with `attention-conformance run`; the vectors are plain data under `conformance/vectors/`, usable without Python.
"""

from pathlib import Path

VECTORS = Path(__file__).resolve().parent / "vectors"

__all__ = ["VECTORS"]
