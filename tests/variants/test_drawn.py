"""Layers as they are drawn: their parameters and options, batches, 16 bits, and JAX."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attention_np
from attention_core.variants import (
    BloomAttention,
    DifferentialAttention,
    GPT2Attention,
    LatentAttention,
    Layer,
    LinearAttention,
    MultiHeadAttention,
    ProjectedAttention,
    T5Attention,
)

from .plain import DIFFERENTIAL, LATENT, LINEAR, drawn

EACH: list[tuple[type[Layer], dict[str, Any]]] = [
    (LinearAttention, LINEAR),
    (DifferentialAttention, DIFFERENTIAL),
    (LatentAttention, LATENT),
]


@pytest.mark.parametrize(("layer", "sizes"), EACH, ids=lambda x: getattr(x, "__name__", ""))
def test_batches_bfloat16_and_drawing(layer: type[Layer], sizes: dict[str, Any]) -> None:
    x = drawn(2, 3, 5, sizes.get("d_in", 12))
    wide: Any = attention_np.init(layer, np.random.default_rng(0), dtype=np.float64, **sizes)
    narrow: Any = attention_np.init(layer, np.random.default_rng(0), dtype=ml_dtypes.bfloat16, **sizes)
    out = wide(x)
    np.testing.assert_allclose(out[1, 2], wide(x[1, 2]), rtol=1e-12, atol=1e-15)
    small = narrow(x.astype(ml_dtypes.bfloat16))
    assert small.dtype == ml_dtypes.bfloat16
    assert np.abs(small.astype(np.float64) - out).max() < 0.06 * np.abs(out).max()
    with pytest.raises(ValueError, match="`x` has depth 5, but the layer has d_in"):
        wide(drawn(4, 5))
    with pytest.raises(TypeError, match="`x` must be an array; got a list"):
        wide([[1.0]])


DRAWN: list[tuple[type[Layer], dict[str, Any]]] = [
    *EACH,
    (DifferentialAttention, {**DIFFERENTIAL, "norm_weight": False, "out_name": "o_proj", "bias": True}),
    (LatentAttention, {**LATENT, "q_lora_rank": 8, "bias": True, "scale": 0.5, "causal": False}),
    (MultiHeadAttention, {"embed_dim": 12, "num_heads": 4, "add_bias_kv": True, "add_zero_attn": True}),
    (ProjectedAttention, {"d_in": 12, "num_heads": 3, "d_head": 5, "d_out": 7, "bias": False, "names": tuple("abcd")}),
    (T5Attention, {"d_model": 12, "num_heads": 3, "d_kv": 5, "num_buckets": None, "causal": True, "max_distance": 9}),
    (BloomAttention, {"hidden_size": 12, "num_heads": 6, "causal": False, "scale": 0.3}),
    (GPT2Attention, {"n_embd": 12, "num_heads": 4, "scale": 0.3}),
]


@pytest.mark.parametrize(("layer", "sizes"), DRAWN)
def test_drawn_layers_have_the_parameters_and_options_asked_for(layer: type[Layer], sizes: dict[str, Any]) -> None:
    drawn_layer: Any = attention_np.init(layer, np.random.default_rng(0), dtype=np.float64, **sizes)
    expected = layer.parameters(**sizes)
    assert {name: x.shape for name, x in drawn_layer.state_dict().items()} == {n: p.shape for n, p in expected.items()}
    for name in set(layer.option_names()) & set(sizes):
        assert getattr(drawn_layer, name) == sizes[name]
    x = drawn(2, 5, sizes.get("d_in", 12))
    assert drawn_layer(x).shape == (2, 5, sizes.get("d_out", x.shape[-1]))
    with pytest.raises(TypeError, match="needs the size `num_heads`"):
        layer.parameters(**{name: size for name, size in sizes.items() if name != "num_heads"})


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "sizes"), EACH, ids=lambda x: getattr(x, "__name__", ""))
def test_jit_vmap_and_drawing_in_jax(layer: type[Layer], sizes: dict[str, Any]) -> None:
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax

    drawn_there: Any = attention_jax.init(layer, jax.random.key(0), **sizes)
    x = drawn(4, 5, sizes.get("d_in", 12)).astype(np.float32)
    in_numpy = jax.tree.map(np.asarray, drawn_there)
    mapped = jax.jit(jax.vmap(drawn_there))(x)
    np.testing.assert_allclose(mapped, in_numpy(x), rtol=2e-4, atol=1e-5)
