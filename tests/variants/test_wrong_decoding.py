"""Whatever is wrong about a cache, lengths or a layer's input is said by name, by every layer that decodes."""

from typing import Any

import numpy as np
import pytest

from attention_core import (
    BloomAttention,
    DifferentialAttention,
    GPT2Attention,
    GroupedQueryAttention,
    LatentAttention,
    ProjectedAttention,
    T5Attention,
)
from attention_core.cache import Cache, GrowingCache, SharedPrefixCache
from attention_core.variants import Latents
from attention_np import init

LATENT = {"qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 4, "kv_lora_rank": 5}
DECODERS: dict[Any, dict[str, Any]] = {
    GroupedQueryAttention: {"d_in": 12, "num_heads": 3, "d_head": 4},
    ProjectedAttention: {"d_in": 12, "num_heads": 3, "d_head": 4, "causal": True},
    T5Attention: {"d_model": 12, "num_heads": 3, "d_kv": 4, "causal": True},
    BloomAttention: {"hidden_size": 12, "num_heads": 3},
    GPT2Attention: {"n_embd": 12, "num_heads": 3},
    LatentAttention: {"hidden_size": 12, "num_heads": 3, **LATENT},
    DifferentialAttention: {"d_in": 12, "num_heads": 3, "d_head": 2},
}
X = np.ones((2, 5, 12))
every_decoder = pytest.mark.parametrize("cls", DECODERS, ids=lambda cls: cls.__name__)


def drawn(cls: Any) -> Any:
    return init(cls, np.random.default_rng(0), dtype=np.float64, **DECODERS[cls])


@every_decoder
def test_an_input_that_is_no_array_of_tokens(cls: Any) -> None:
    layer = drawn(cls)
    cache = layer.new_cache(GrowingCache, batch=(2,))
    for call in ({"lengths": 3}, {"cache": cache}, {"cache": cache, "lengths": 3}):
        for x in (None, "a", [[1.0]]):
            with pytest.raises(TypeError, match="`x` must be an array"):
                layer(x, **call)
        for x in (X[0, 0], np.asarray(1.0)):
            with pytest.raises(ValueError, match=r"`x` must have at least the axes \(L, d_in\)"):
                layer(x, **call)
        with pytest.raises(TypeError, match="`x` has dtype int64"):
            layer(X.astype(int), **call)


@every_decoder
def test_padding_without_lengths_and_classes_that_are_no_cache(cls: Any) -> None:
    layer = drawn(cls)
    for call in ({}, {"cache": layer.new_cache(GrowingCache, batch=(2,))}):
        with pytest.raises(ValueError, match="give their `lengths` too"):
            layer(X, padding="left", **call)
        with pytest.raises(ValueError, match='`padding` must be "right" or "left"'):
            layer(X, padding="both", **call)
    for kind in (None, "growing", Cache, SharedPrefixCache, layer.new_cache(GrowingCache)):
        with pytest.raises(TypeError, match="`kind` must be a class of `cache`"):
            layer.new_cache(kind)


@pytest.mark.torch
@every_decoder
def test_arrays_of_another_library(cls: Any) -> None:
    import torch

    layer = drawn(cls)
    held = layer.new_cache(GrowingCache, batch=(2,))
    with pytest.raises(TypeError, match="`x` is an array of numpy but `lengths` is one of torch"):
        layer(X, lengths=torch.tensor([1, 2]))
    with pytest.raises(TypeError, match="`x` is an array of numpy but `lengths` is one of torch"):
        layer(X, lengths=torch.tensor([1, 2]), cache=held)
    sizes = {"num_kv_heads": 3, "depth": 4}
    with pytest.raises(TypeError, match="`cache` is an array of torch but `x` is one of numpy"):
        layer(X, cache=GrowingCache.empty(torch.ones(1), batch=(2,), **sizes))


@pytest.mark.parametrize("wrong", [0, "default", 10000.0, True])
def test_a_rotary_that_is_none(wrong: Any) -> None:
    with pytest.raises(TypeError, match="`rotary` must be a Rotary; got"):
        init(GroupedQueryAttention, np.random.default_rng(0), d_in=12, num_heads=3, d_head=4, rotary=wrong)


def test_latents_that_are_none() -> None:
    layer = drawn(LatentAttention)
    compressed, rotated = layer.latents(X)
    for absorbed in (False, True):
        for wrong in (3, (compressed, rotated), X):
            with pytest.raises(TypeError, match="`latents` must be Latents"):
                layer(X, wrong, absorbed=absorbed)
        for latents, name in (
            (Latents(compressed[..., :3], rotated), "compressed"),
            (Latents(compressed, rotated[..., :1]), "rotated"),
            (Latents(compressed[:, :3], rotated), "rotated"),
            (Latents(compressed[0, 0], rotated), "compressed"),
        ):
            with pytest.raises(ValueError, match=rf"`latents.{name}` must be \(..., L, "):
                layer(X, latents, absorbed=absorbed)
