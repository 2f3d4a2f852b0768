"""What attention is: written once against the Python Array API, for the arrays of any library.

The shape legend is that of :class:`Sizes`; the conventions are in ``docs/conventions.md``. Layers, caches, rotary
embedding and the peers' dialects load when they are first named, so that a call alone costs no more than it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import biases, masks
from .attention import attention_scores, dot_product_attention, jvp, vjp, which_kernel
from .biases import Bias
from .dropout import dropout
from .kernels import Choice, Kernel, register_kernel
from .masks import Mask
from .packed import packed_attention, segment_ids, segment_positions
from .problem import Gradients, Result
from .softmax import merge

if TYPE_CHECKING:
    from . import cache, dialects, rotary, variants
    from .rotary import Rotary, rotate
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

_LATER = ("cache", "dialects", "rotary", "variants")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return import_module(f"{__name__}.{name}")
    if name in __all__:
        homes = (import_module(f"{__name__}.{room}") for room in ("rotary", "cache", "variants"))
        globals()[name] = found = next(getattr(home, name) for home in homes if name in home.__all__)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
