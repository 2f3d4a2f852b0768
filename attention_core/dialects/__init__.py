"""The peers' calls by the peers' names and documented rules, each a few lines on the public call.

A dialect takes a peer's arguments, on the arrays of any library, and gives what the peer's documentation promises, not
its rounding. Whatever only a peer means, such as the mean of the values for a row that sees no key, is written here.
``docs/dialects`` has a page a peer.
"""

from . import flash_attention, jax_nn, mlx, onnx, torch

__all__ = ["flash_attention", "jax_nn", "mlx", "onnx", "torch"]
