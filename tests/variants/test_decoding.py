"""Recorded decoders in pieces with a cache, and padded, give what the model's module gives for the whole."""

from typing import Any

import numpy as np
import pytest

from attention_core import biases, dropout, masks
from attention_core.cache import GrowingCache, PagedCache, SlidingCache, StaticCache
from attention_core.variants import DifferentialAttention, ProjectedAttention
from attention_np import init

from .models import case

DECODERS = ("bart-decoder", "bloom", "deepseek-v2-lite", "deepseek-v3", "diffllama", "gpt2", "t5-decoder")
every_decoder = pytest.mark.parametrize("name", DECODERS)
CACHES: dict[str, tuple[Any, dict[str, int]]] = {
    "growing": (GrowingCache, {}),
    "static": (StaticCache, {"capacity": 11}),
    "paged": (PagedCache, {"pages": 13, "page_size": 2, "max_pages": 5}),
}


@every_decoder
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("split", [(3, 1, 1), (1, 4)], ids=str)
def test_pieces_with_a_cache_are_the_whole(name: str, kind: str, split: tuple[int, ...]) -> None:
    recorded = case(name)
    layer, x = recorded.layer(), recorded.part("inputs")["x"]
    cls, sizes = CACHES[kind]
    cache = layer.new_cache(cls, batch=(2,), **sizes)
    outs, start = [], 0
    for count in (*split, x.shape[1] - sum(split)):
        out, cache = layer(x[:, start : start + count], cache=cache)
        outs.append(out)
        start += count
    assert recorded.difference(np.concatenate(outs, axis=1)) <= recorded.tolerance("float64")


@every_decoder
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("cached", [False, True], ids=["at-once", "cached"])
def test_padded_batches_are_each_sequence_alone(name: str, padding: str, cached: bool) -> None:
    recorded = case(name)
    layer, x = recorded.layer(), recorded.part("inputs")["x"]
    length, lengths = x.shape[1], np.array([x.shape[1], 3])
    batch = np.full((2, length + 1, x.shape[2]), np.nan)
    places = [slice(-n, None) if padding == "left" else slice(0, n) for n in lengths]
    for item, (place, n) in enumerate(zip(places, lengths, strict=True)):
        batch[item, place] = x[item, :n]
    call: dict[str, Any] = {"lengths": lengths, "padding": padding}
    if cached:
        out, cache = layer(batch, cache=layer.new_cache(GrowingCache, batch=(2,)), **call)
        np.testing.assert_array_equal(cache.positions(1)[:, 0], lengths)
        more, _ = layer(x[1:, 3:4].repeat(2, 0), cache=cache)
        np.testing.assert_allclose(more[1, 0], recorded.out[1, 3], rtol=0, atol=recorded.tolerance("float64"))
    else:
        out = layer(batch, **call)
    for item, (place, n) in enumerate(zip(places, lengths, strict=True)):
        atol = recorded.tolerance("float64")
        np.testing.assert_allclose(out[item, place], recorded.out[item, :n], rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["t5-decoder", pytest.param("deepseek-v3", marks=pytest.mark.slow)])
def test_one_scan_over_tokens_in_jax(name: str) -> None:
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax  # noqa: F401  makes layers and caches pytrees

    recorded = case(name)

    @jax.jit
    def decode(layer: Any, cache: Any, x: Any) -> Any:
        def step(cache: Any, token: Any) -> Any:
            out, cache = layer(token[:, None], cache=cache)
            return cache, out[:, 0]

        return jax.lax.scan(step, cache, x.swapaxes(0, 1))[1].swapaxes(0, 1)

    with jax.enable_x64(True):
        layer = recorded.layer(jax.numpy.asarray)
        out = decode(layer, layer.new_cache(StaticCache, batch=(2,), capacity=9), recorded.part("inputs")["x"])
        assert recorded.difference(np.asarray(out)) <= recorded.tolerance("float64")


@every_decoder
def test_positions_are_those_of_queries_and_keys(name: str) -> None:
    recorded = case(name)
    x = recorded.part("inputs")["x"]
    out = recorded.layer()(x, query_positions=np.arange(x.shape[1]) + 1000)
    assert recorded.difference(out) <= 1e-9, recorded.diagnosis(out)


def test_what_does_not_go_with_a_cache() -> None:
    recorded = case("bart-decoder")
    layer, x = recorded.layer(), recorded.part("inputs")["x"]
    cache = layer.new_cache(GrowingCache, batch=(2,))
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"cache": cache, "x_2": x}, ValueError, "go with neither `x_2` nor weights"),
        ({"cache": cache, "query_positions": 3}, ValueError, "`query_positions` was given, but a cache"),
        ({"cache": cache, "dropout": 0.1}, ValueError, "`dropout` was given with a cache"),
        ({"cache": {}}, TypeError, "`cache` must be a value of a class of `cache`; got a dict"),
        ({"padding": "left", "cache": cache}, ValueError, "give their `lengths` too"),
        ({"lengths": np.array([1, 2, 3])}, ValueError, r"`lengths` has shape \(3,\)"),
        ({"cache": layer.new_cache(SlidingCache, batch=(2,), window=4)}, ValueError, "keeps 4 tokens"),
    ]
    for call, kind, words in wrong:
        with pytest.raises(kind, match=words):
            layer(x, **call)
    encoder = ProjectedAttention.from_state_dict(layer.state_dict(), num_heads=4)
    with pytest.raises(ValueError, match="the layer is not causal"):
        encoder(x, cache=cache)


PER_HEAD: dict[str, dict[str, Any]] = {
    "bias": {"bias": biases.alibi(4)},
    "mask": {"mask": masks.rule(lambda b, h, q, k: q - k <= h + b)},
}


@pytest.mark.parametrize("name", PER_HEAD)
@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("kind", CACHES)
def test_masks_and_biases_of_a_head_are_those_of_both_maps(name: str, groups: int, kind: str) -> None:
    """Differential attention has two maps a head, and one cache for both."""
    sizes: dict[str, Any] = {"d_in": 12, "num_heads": 4, "num_kv_heads": groups, "d_head": 3}
    layer = init(DifferentialAttention, np.random.default_rng(0), dtype=np.float64, **sizes)
    x = np.random.default_rng(1).normal(size=(2, 6, 12))
    whole = layer(x, **PER_HEAD[name])
    cls, own = CACHES[kind]
    first, cache = layer(x[:, :4], cache=layer.new_cache(cls, batch=(2,), **own), **PER_HEAD[name])
    rest, _ = layer(x[:, 4:], cache=cache, **PER_HEAD[name])
    np.testing.assert_allclose(np.concatenate([first, rest], axis=1), whole, rtol=0, atol=1e-12)
    padded = layer(x, lengths=np.array([6, 4]), **PER_HEAD[name])
    np.testing.assert_allclose(padded[0], whole[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(padded[1, :4], whole[1, :4], rtol=0, atol=1e-12)


def test_dropout_of_a_padded_batch_drops_the_same_pairs() -> None:
    sizes = {"d_in": 12, "num_heads": 2, "d_head": 3}
    layer = init(DifferentialAttention, np.random.default_rng(0), dtype=np.float64, **sizes)
    x, drop = np.random.default_rng(1).normal(size=(2, 6, 12)), dropout(0.5, seed=3)
    np.testing.assert_allclose(layer(x, lengths=6, dropout=drop), layer(x, dropout=drop), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["deepseek-v3", "diffllama"])
def test_key_positions_of_self_attention_are_an_error(name: str) -> None:
    recorded = case(name)
    with pytest.raises(ValueError, match="`key_positions`"):
        recorded.layer()(recorded.part("inputs")["x"], key_positions=3)
