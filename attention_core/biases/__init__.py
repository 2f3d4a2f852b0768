"""What is added to the scores: small values that give a tile of themselves, and the gradient of their parameters.

Never ``L x L`` unless the caller's own array is. Biases are added with ``+``.
"""

from .algebra import Bias
from .distance import alibi, relative
from .given import dense, rule

__all__ = ["Bias", "alibi", "dense", "relative", "rule"]
