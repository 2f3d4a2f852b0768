"""Rotary position embedding (RoPE, Su et al. 2021): pairs of features turned by angles that grow with the position.

>>> from attention_np import rotary
>>> rotary.Rotary(base=100.0, scaling=rotary.linear(2.0)).frequencies(4)
(0.5, 0.05)
"""

from .rotate import Rotary, rotate
from .scaling import Scaling, linear, llama3, longrope, ntk, yarn

__all__ = ["Rotary", "Scaling", "linear", "llama3", "longrope", "ntk", "rotate", "yarn"]
