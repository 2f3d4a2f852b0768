"""The two forms of latent attention beside each other, and what they keep of earlier tokens."""

from typing import Any

import numpy as np
import pytest

from attention_core import Rotary
from attention_core.variants import LatentAttention, Latents

from .plain import LATENT, UNCOMPILED, drawn, made, moved, traced
from .samples import Library


@pytest.mark.parametrize("rank", [None, 8], ids=["one-projection", "low-rank"])
@pytest.mark.parametrize(
    "library", [*UNCOMPILED, pytest.param(Library("jax-jit"), marks=pytest.mark.slow, id="jax-jit")]
)
def test_naive_and_absorbed_forms_are_one(library: Library, rank: int | None) -> None:
    def both(layer: Any, x: Any) -> tuple[Any, Any]:
        return layer(x), layer(x, absorbed=True)

    layer, x = made(LatentAttention, **LATENT, q_lora_rank=rank), drawn(2, 9, 12)
    with library.precision("float64"):
        ours, given = moved(layer, library), library.put(x)
        results = [library.get(out) for out in traced(library, both)(ours, given)]
    np.testing.assert_allclose(results[0], layer(x), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("absorbed", [False, True])
def test_latents_kept_of_earlier_tokens_are_one_full_pass(absorbed: bool) -> None:
    layer, x = made(LatentAttention, **LATENT), drawn(2, 9, 12)
    whole = layer(x, return_weights=True)
    kept = layer.latents(x[:, :6])
    for i in range(6, 9):
        new = layer.latents(x[:, i : i + 1], i)
        kept = Latents(*(np.concatenate(parts, axis=-2) for parts in zip(kept, new, strict=True)))
        step = layer(x[:, i : i + 1], kept, absorbed=absorbed, query_positions=i, return_weights=True)
        np.testing.assert_allclose(step.out, whole.out[:, i : i + 1], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(step.weights, whole.weights[..., i : i + 1, : i + 1], rtol=1e-10, atol=1e-12)
    assert sum(part.shape[-1] for part in kept) == 7 + 4


def test_latent_attention_depends_on_distance_alone_and_on_the_pairing() -> None:
    layer, x = made(LatentAttention, **LATENT), drawn(9, 12)
    np.testing.assert_allclose(layer(x, query_positions=1000), layer(x), rtol=1e-9)
    halves = made(LatentAttention, **LATENT, rotary=Rotary())
    assert np.abs(halves(x) - layer(x)).max() > 1e-3
    unturned = made(LatentAttention, **LATENT, rotary=None)
    assert np.abs(unturned(x) - layer(x)).max() > 1e-3


def test_latent_attention_says_what_does_not_fit() -> None:
    weights = dict(made(LatentAttention, **LATENT).state_dict())
    with pytest.raises(ValueError, match="`num_heads` is 5, which does not divide"):
        LatentAttention.from_state_dict(weights, num_heads=5)
    with pytest.raises(ValueError, match="leaves 0 rows beside the rank 7"):
        LatentAttention.from_state_dict({**weights, "kv_a_proj_with_mqa.weight": np.ones((7, 12))}, num_heads=3)
    with pytest.raises(ValueError, match="a layer needs `q_proj`, or all of"):
        LatentAttention(
            **{
                name: getattr(made(LatentAttention, **LATENT), name)
                for name in ("kv_b_proj", "o_proj", "kv_a_layernorm")
            },
            kv_a_proj_with_mqa=made(LatentAttention, **LATENT).kv_a_proj_with_mqa,
            num_heads=3,
        )(drawn(9, 12))
