"""What attention is: written once against the Python Array API, for the arrays of any library.

The shape legend is that of :class:`Sizes`; the conventions are in ``docs/conventions.md``.
"""

from . import biases, cache, dialects, masks, rotary, variants
from .attention import attention_scores, dot_product_attention, jvp, vjp, which_kernel
from .biases import Bias
from .dropout import dropout
from .kernels import Choice, Kernel, register_kernel
from .masks import Mask
from .packed import packed_attention, segment_ids, segment_positions
from .problem import Gradients, Result
from .rotary import Rotary, rotate
from .softmax import merge
from .variants import (
    AdditiveAttention,
    BloomAttention,
    CausalSelfAttention,
    CrossAttention,
    DifferentialAttention,
    GPT2Attention,
    GroupedQueryAttention,
    LatentAttention,
    LinearAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    ProjectedAttention,
    SelfAttention,
    T5Attention,
)

__version__ = "0.1.0"

__all__ = [
    "AdditiveAttention",
    "Bias",
    "BloomAttention",
    "CausalSelfAttention",
    "Choice",
    "CrossAttention",
    "DifferentialAttention",
    "GPT2Attention",
    "Gradients",
    "GroupedQueryAttention",
    "Kernel",
    "LatentAttention",
    "LinearAttention",
    "Mask",
    "MultiHeadAttention",
    "MultiHeadAttentionWrapper",
    "ProjectedAttention",
    "Result",
    "Rotary",
    "SelfAttention",
    "T5Attention",
    "attention_scores",
    "biases",
    "cache",
    "dialects",
    "dot_product_attention",
    "dropout",
    "jvp",
    "masks",
    "merge",
    "packed_attention",
    "register_kernel",
    "rotary",
    "rotate",
    "segment_ids",
    "segment_positions",
    "variants",
    "vjp",
    "which_kernel",
]
