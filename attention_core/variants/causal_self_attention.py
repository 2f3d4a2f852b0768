"""Self-attention that looks back only: the article's last section as a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from ..arrays import Array, array_namespace, device_of, scalar_like
from ..attention import dot_product_attention
from ..cache import Cache
from ..masks import Mask, causal
from .decoding import empty_cache
from .projected import attend_steps, decode, one_head
from .self_attention import SelfAttention

__all__ = ["CausalSelfAttention"]

K = TypeVar("K", bound=Cache)


@dataclass(frozen=True, eq=False)
class CausalSelfAttention(SelfAttention):
    """:class:`SelfAttention` with ``-inf`` above the diagonal before the softmax: token ``i`` sees tokens ``0 ... i``.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> layer = attention.init(attention.CausalSelfAttention, np.random.default_rng(0), d_in=3, d_out_kq=2, d_out_v=4)
    >>> layer.steps(np.ones((3, 3)))["attn_weights"].round(2)
    array([[1.  , 0.  , 0.  ],
           [0.5 , 0.5 , 0.  ],
           [0.33, 0.33, 0.33]])
    """

    mask: ClassVar[Mask | None] = causal()

    def __call__(
        self,
        x: Array,
        *,
        cache: Cache | None = None,
        lengths: int | Array | None = None,
        padding: str = "right",
    ) -> Any:
        """Return the context vectors ``(..., L, d_out_v)`` of ``x (..., L, d_in)``; with a cache ``(out, cache)``.

        ``x`` then follows what is cached. ``lengths`` and ``padding`` are those of :class:`SelfAttention`.
        """
        if cache is None:
            return super().__call__(x, lengths=lengths, padding=padding)
        return decode(self._stacked(), self.mask, x, {"cache": cache, "lengths": lengths, "padding": padding})

    def new_cache(self, kind: type[K], *, batch: tuple[int, ...] = (), **sizes: int) -> K:
        """Return an empty cache of a class of ``cache``, of one head; ``sizes`` are the class's own."""
        shape = (1, self.W_key.shape[-1], self.W_value.shape[-1])
        return empty_cache(kind, self.W_key, batch, shape, sizes)

    def steps(self, x: Array) -> dict[str, Array]:
        """Return the steps of :class:`SelfAttention`, and the article's two ways to the causal weights.

        The first way: ``full_weights`` without a mask, times the lower triangle ``mask_simple``, gives
        ``masked_simple``; divided by its ``row_sums``, ``masked_simple_norm``. The second: ``masked``, the unscaled
        scores with ``-inf`` above the diagonal, whose scaled softmax is ``attn_weights``.
        """
        steps = one_head(attend_steps(self._stacked(), self.mask, {"x": x}))
        xp = array_namespace(("x", x))
        scores, values = steps["attn_scores"], steps["values"]
        queries, keys = (steps[name][..., None, :, :] for name in ("queries", "keys"))
        full = dot_product_attention(queries, keys, values[..., None, :, :], return_weights=True).weights[..., 0, :, :]
        seen = causal().array(scores.shape[-2], scores.shape[-1], xp=xp)[0, ...]
        seen = xp.asarray(seen, device=device_of(xp, scores))
        mask_simple = xp.astype(seen, full.dtype)
        masked_simple = full * mask_simple
        row_sums = xp.sum(masked_simple, axis=-1, keepdims=True)
        return steps | {
            "full_weights": full,
            "mask_simple": mask_simple,
            "masked_simple": masked_simple,
            "row_sums": row_sums,
            "masked_simple_norm": masked_simple / row_sums,
            "masked": xp.where(seen, scores, scalar_like(xp, -xp.inf, scores)),
        }
