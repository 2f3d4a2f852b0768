"""Every layer in the configurations that decode, and an empty cache of every kind: the table of `docs/caches.md`."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attention_core import Rotary, cache, masks, variants
from attention_core.variants import Layer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "caches.md"
WIDTH, WINDOW, CAPACITY, PROMPT = 12, 3, 13, 3
CAUSAL, BAND = {"mask": masks.causal()}, {"mask": masks.sliding_window(WINDOW - 1, 0)}

HEADS = {"d_in": WIDTH, "num_heads": 4, "d_head": 2}
LATENT = {
    "hidden_size": WIDTH, "num_heads": 3, "qk_nope_head_dim": 5, "qk_rope_head_dim": 4, "v_head_dim": 6,
    "kv_lora_rank": 7,
}  # fmt: skip
ONE_HEAD = {"d_in": WIDTH, "d_out_kq": 2, "d_out_v": 5}
CONFIGURATIONS: dict[str, list[dict[str, Any]]] = {
    "AdditiveAttention": [{"d_query": 3, "d_key": 4, "d_hidden": 5}],
    "BloomAttention": [{"hidden_size": WIDTH, "num_heads": 3}],
    "CausalSelfAttention": [ONE_HEAD],
    "CrossAttention": [ONE_HEAD],
    "DifferentialAttention": [
        {"d_in": WIDTH, "num_heads": 4, "num_kv_heads": 2, "d_head": 3},
        {"d_in": WIDTH, "num_heads": 3, "d_head": 2, "rotary": Rotary(100.0), "pairing": "halves"},
    ],
    "GPT2Attention": [{"n_embd": WIDTH, "num_heads": 4}],
    "GroupedQueryAttention": [
        {**HEADS, "num_kv_heads": 2, "rotary": Rotary(100.0), "sinks": True, "softcap": 3.0},
        {**HEADS, "num_kv_heads": 1, "qk_norm": True, "gate": True, "bias": True},
    ],
    "LatentAttention": [LATENT, {**LATENT, "q_lora_rank": 8, "bias": True, "scale": 0.7}],
    "LinearAttention": [{"d_in": WIDTH, "num_heads": 2, "d_head": 3}],
    "MultiHeadAttention": [
        {"embed_dim": WIDTH, "num_heads": 3},
        {"embed_dim": WIDTH, "num_heads": 4, "bias": False, "add_bias_kv": True, "add_zero_attn": True},
    ],
    "MultiHeadAttentionWrapper": [{**ONE_HEAD, "num_heads": 4}],
    "ProjectedAttention": [{"d_in": WIDTH, "num_heads": 3, "d_head": 5, "d_out": 7}],
    "SelfAttention": [ONE_HEAD],
    "T5Attention": [{"d_model": WIDTH, "num_heads": 3, "d_kv": 5, "num_buckets": 6, "max_distance": 8}],
}

EMPTY: dict[str, Callable[..., Any]] = {
    "GrowingCache": lambda layer, batch: layer.new_cache(cache.GrowingCache, batch=batch),
    "StaticCache": lambda layer, batch: layer.new_cache(cache.StaticCache, batch=batch, capacity=CAPACITY),
    "PagedCache": lambda layer, batch: layer.new_cache(
        cache.PagedCache, batch=batch, pages=5 * int(np.prod(batch)) + 2, page_size=3, max_pages=5
    ),
    "SlidingCache": lambda layer, batch: layer.new_cache(cache.SlidingCache, batch=batch, window=WINDOW),
}


@dataclass(frozen=True)
class Cell:
    """One cell of the table: a layer, a cache, and on what it depends that the two go together."""

    layer: str
    cache: str
    word: str

    def __str__(self) -> str:
        return f"{self.layer}-{self.cache}"

    @property
    def options(self) -> dict[str, Any]:
        return {"causal": True} if "causal=True" in self.word else {}

    @property
    def call(self) -> dict[str, Any]:
        """What is given with each call."""
        return BAND if "window" in self.word else CAUSAL if self.word == "a mask" else {}

    def configurations(self) -> list[Any]:
        return [made(self.layer, **sizes, **self.options) for sizes in CONFIGURATIONS[self.layer]]

    def empty(self, layer: Any, batch: tuple[int, ...], put: Callable[[Any], Any] = np.asarray) -> Any:
        if self.cache != "SharedPrefixCache":
            return EMPTY[self.cache](layer, batch)
        _, prefix = layer(put(prompt()), cache=layer.new_cache(cache.GrowingCache), **self.call)
        return cache.SharedPrefixCache.of(prefix, EMPTY["StaticCache"](layer, batch))

    def whole(self, layer: Any, x: np.ndarray) -> list[np.ndarray]:
        """Return one full pass over a sequence, behind the prompt where there is one; by both forms of latents."""
        before = prompt() if self.cache == "SharedPrefixCache" else prompt()[:0]
        forms: list[dict[str, Any]] = [{}, {"absorbed": True}] if self.layer == "LatentAttention" else [{}]
        return [layer(np.concatenate([before, x]), **self.call, **form)[len(before) :] for form in forms]


def cells() -> list[Cell]:
    """The table of the page, cell by cell."""
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in table_lines()]
    caches = [name.strip("`") for name in rows[0][1:6]]
    return [
        Cell(layer, each, word)
        for names, *words in rows[2:]
        for layer in re.findall(r"`(\w+)`", names)
        for each, word in zip(caches, words[:5], strict=True)
    ]


def table_lines() -> list[str]:
    _, _, after = PAGE.read_text(encoding="utf-8").partition("## Which layer takes which cache\n")
    return [line for line in after.partition("\n## ")[0].splitlines() if line.startswith("|")]


def made(name: str, **sizes: Any) -> Any:
    """The layer in float64, with every weight drawn: biases and norms too."""
    cls: type[Layer] = getattr(variants, name)
    rng = np.random.default_rng(len(name))
    weights = {key: 0.6 * rng.normal(size=p.shape) for key, p in cls.parameters(**sizes).items()}
    return cls.from_state_dict(weights, **{key: sizes[key] for key in cls.option_names() if key in sizes})


def prompt() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(PROMPT, WIDTH))
