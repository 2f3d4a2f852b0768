"""A small layer, what it gives for whole sequences by loops, and an empty cache of each kind for it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_core import GroupedQueryAttention, Rotary
from attention_core.cache import GrowingCache, PagedCache, SharedPrefixCache, SlidingCache, StaticCache
from tests.variants.decoder_loops import Spec, grouped

D_IN, D_HEAD, LENGTH = 12, 4, 7
SPECS = {"full": Spec(softcap=2.0), "window": Spec(window=3)}
SIZES = {"d_in": D_IN, "d_head": D_HEAD, "num_heads": 6, "num_kv_heads": 2}


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    named = GroupedQueryAttention.parameters(**SIZES, sinks=True)
    return {name: rng.normal(0.1, 0.6, each.shape) for name, each in named.items()}


def layer(window: bool, put: Callable[[np.ndarray], Any] = np.asarray) -> GroupedQueryAttention:
    spec = SPECS["window" if window else "full"]
    return GroupedQueryAttention.from_state_dict(
        {name: put(x) for name, x in weights().items()},
        num_heads=6,
        num_kv_heads=2,
        rotary=Rotary(500.0),
        softcap=spec.softcap,
        window=spec.window,
    )


def tokens(batch: tuple[int, ...] = (), length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(len(batch) + 1).normal(size=(*batch, length, D_IN))


def alone(x: np.ndarray, window: bool) -> np.ndarray:
    """The layer over one whole sequence, by loops."""
    return grouped(x, weights(), SPECS["window" if window else "full"]).reshape(-1, D_IN)


def each_alone(x: np.ndarray, window: bool) -> np.ndarray:
    flat = x.reshape(-1, *x.shape[-2:])
    return np.stack([alone(item, window) for item in flat]).reshape(*x.shape[:-1], D_IN)


def growing(made: GroupedQueryAttention, batch: tuple[int, ...]) -> Any:
    return made.new_cache(GrowingCache, batch=batch)


def static(made: GroupedQueryAttention, batch: tuple[int, ...]) -> Any:
    return made.new_cache(StaticCache, batch=batch, capacity=LENGTH + 2)


def sliding(made: GroupedQueryAttention, batch: tuple[int, ...]) -> Any:
    return made.new_cache(SlidingCache, batch=batch)


def wide_sliding(made: GroupedQueryAttention, batch: tuple[int, ...]) -> Any:
    return made.new_cache(SlidingCache, batch=batch, window=5)


def paged(made: GroupedQueryAttention, batch: tuple[int, ...]) -> Any:
    items = int(np.prod(batch))
    return made.new_cache(PagedCache, batch=batch, pages=4 * items + 1, page_size=2, max_pages=5)


KINDS: dict[str, tuple[bool, Callable[..., Any]]] = {
    "growing": (False, growing),
    "growing-window": (True, growing),
    "static": (False, static),
    "static-window": (True, static),
    "sliding": (True, sliding),
    "wide-sliding": (True, wide_sliding),
    "paged": (False, paged),
    "paged-window": (True, paged),
}


def shared(made: GroupedQueryAttention, own: Any, prompt: np.ndarray) -> SharedPrefixCache:
    """A prompt `(L, d_in)` put into a cache of its own, behind which `own` begins."""
    _, prefix = made(prompt, cache=made.new_cache(GrowingCache))
    return SharedPrefixCache.of(prefix, own)
