"""Any wrong weight of any layer, and any wrong size, is a ValueError or a TypeError that names it."""

from typing import Any

import numpy as np
import pytest

from attention_core.variants import (
    AdditiveAttention,
    BloomAttention,
    Conv1D,
    DifferentialAttention,
    GPT2Attention,
    GroupedQueryAttention,
    LatentAttention,
    Linear,
    LinearAttention,
    MultiHeadAttention,
    ProjectedAttention,
    RMSNorm,
    T5Attention,
)
from attention_np import init

LATENT = {"qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 4, "kv_lora_rank": 5}
LAYERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "grouped": (GroupedQueryAttention, {"d_in": 12, "num_heads": 4, "num_kv_heads": 2, "d_head": 3, "qk_norm": True}),
    "gated": (GroupedQueryAttention, {"d_in": 12, "num_heads": 2, "d_head": 3, "gate": True, "sinks": True}),
    "projected": (ProjectedAttention, {"d_in": 12, "num_heads": 3, "d_head": 4}),
    "t5": (T5Attention, {"d_model": 12, "num_heads": 3, "d_kv": 4}),
    "bloom": (BloomAttention, {"hidden_size": 12, "num_heads": 3}),
    "gpt2": (GPT2Attention, {"n_embd": 12, "num_heads": 3}),
    "gpt2-cross": (GPT2Attention, {"n_embd": 12, "num_heads": 3, "cross": True}),
    "latent": (LatentAttention, {"hidden_size": 12, "num_heads": 3, "q_lora_rank": 6, **LATENT}),
    "differential": (DifferentialAttention, {"d_in": 12, "num_heads": 3, "d_head": 2}),
    "torch": (MultiHeadAttention, {"embed_dim": 12, "num_heads": 3, "kdim": 7, "add_bias_kv": True}),
    "linear-attention": (LinearAttention, {"d_in": 12, "num_heads": 3, "d_head": 4}),
    "additive": (AdditiveAttention, {"d_query": 3, "d_key": 4, "d_hidden": 5, "bias": True}),
    "linear": (Linear, {"d_in": 3, "d_out": 4}),
    "conv": (Conv1D, {"d_in": 3, "d_out": 4}),
    "norm": (RMSNorm, {"d_in": 3}),
}
NO_WEIGHTS = [None, [1.0], "a", 3.0, np.asarray(1.0), np.ones((2, 2, 2, 2)), np.ones(7, int)]
every_layer = pytest.mark.parametrize("name", LAYERS)


def drawn(name: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A class, the weights of such a layer, and its options."""
    cls, sizes = LAYERS[name]
    layer = init(cls, np.random.default_rng(0), **sizes)
    return cls, layer.state_dict(), {option: getattr(layer, option) for option in cls.option_names()}


@every_layer
def test_every_weight_is_looked_at(name: str) -> None:
    cls, weights, options = drawn(name)
    for key, x in weights.items():
        for wrong in (*NO_WEIGHTS, x[None]):
            with pytest.raises((TypeError, ValueError)) as caught:
                cls.from_state_dict({**weights, key: wrong}, **options)
            assert "`" in str(caught.value)


@every_layer
def test_what_is_no_mapping_of_names(name: str) -> None:
    cls, weights, options = drawn(name)
    for wrong in (None, list(weights.items()), 3):
        with pytest.raises(TypeError, match="`weights` must be a mapping of names to arrays"):
            cls.from_state_dict(wrong, **options)
    with pytest.raises(ValueError, match="`weights` must hold"):
        cls.from_state_dict({}, **options)
    with pytest.raises(ValueError, match=r"not expected: \[3\]"):
        cls.from_state_dict({**weights, 3: np.ones(2)}, **options)


OPTIONAL = [
    ("t5", "num_buckets"), ("t5", "d_model_2"), ("projected", "d_in_2"), ("projected", "d_out"), ("torch", "kdim"),
    ("torch", "vdim"), ("latent", "q_lora_rank"), ("differential", "num_kv_heads"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "size"), OPTIONAL)
def test_sizes_that_may_be_left_out(name: str, size: str) -> None:
    cls, sizes = LAYERS[name]
    for wrong, kind in (("2", TypeError), (2.0, TypeError), (True, TypeError), (0, ValueError), (-1, ValueError)):
        with pytest.raises(kind, match=f"`{size}` must be"):
            init(cls, np.random.default_rng(0), **{**sizes, size: wrong})


def test_heads_of_keys_that_do_not_divide_the_heads() -> None:
    with pytest.raises(ValueError, match="`num_kv_heads` is 2, which does not divide the 3 of `num_heads`"):
        init(DifferentialAttention, np.random.default_rng(0), d_in=12, num_heads=3, d_head=2, num_kv_heads=2)
