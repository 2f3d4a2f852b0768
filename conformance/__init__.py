"""Is an attention right? Saved PyTorch tensors as portable test vectors, and what checks an attention by them.

Start with `attention-conformance run`, or with `assert_conforms(my_attention)` in a test of your own; the vectors are
plain data under `conformance/vectors/`, usable without Python.
"""

from pathlib import Path

from conformance.assertion import Nonconforming, assert_conforms

VECTORS = Path(__file__).resolve().parent / "vectors"

__all__ = ["VECTORS", "Nonconforming", "assert_conforms"]
