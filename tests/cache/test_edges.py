"""Callers' rules beside a shared prompt, lengths of any integer kind, and features of depth 0."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attention_core import biases, dot_product_attention, masks
from attention_core.cache import GrowingCache, PagedCache, SharedPrefixCache, SlidingCache, StaticCache
from tests.variants.samples import LIGHT, Library

SIZES: dict[str, Any] = {"num_kv_heads": 2, "depth": 4}
RULES: dict[str, dict[str, Any]] = {
    "mask": {"mask": masks.causal() & masks.rule(lambda b, h, q, k: q - k <= 2 * b + h)},
    "bias": {"bias": biases.rule(lambda b, h, q, k: (q - k) * (b + 1.0) / (h + 4))},
    "sum": {"bias": biases.alibi(4) + biases.rule(lambda b, h, q, k: (q - k) * (b + 1.0) / (h + 4))},
}


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
def test_a_rule_that_reads_the_batch_item_reads_it_in_a_shared_prompt(name: str, batch: tuple[int, ...]) -> None:
    call = {"mask": masks.causal(), **RULES[name]}
    prompt_key, prompt_value = drawn(2, 5, 4), drawn(2, 5, 4) + 1
    prefix = GrowingCache.empty(np.ones(1), **SIZES).append(prompt_key, prompt_value)
    query, key, value = drawn(*batch, 4, 2, 4), drawn(*batch, 2, 2, 4), drawn(*batch, 2, 2, 4) * 2
    cache = SharedPrefixCache.of(prefix, GrowingCache.empty(np.ones(1), batch=batch, **SIZES))
    out, _ = cache.attend(query, key, value, **call)
    keys, values = (
        np.concatenate([np.broadcast_to(old, (*batch, *old.shape)), new], axis=-2)
        for old, new in ((prompt_key, key), (prompt_value, value))
    )
    expected = dot_product_attention(query, keys, values, query_positions=5, impl="dense", **call)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("library", LIGHT)
@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (10**30, [300, 300]),
        (-(10**30), [0, 0]),
        (np.int64(2), [2, 2]),
        (np.array([3, 100], np.int8), [3, 100]),
        (np.array([3, 255], np.uint8), [3, 255]),
        (np.array([-(2**40), 2**40]), [0, 300]),
    ],
    ids=str,
)
def test_lengths_are_clamped_whatever_integers_they_are(library: Library, lengths: Any, expected: list[int]) -> None:
    held = StaticCache.empty(library.put(np.ones(1)), batch=(2,), num_kv_heads=1, depth=1, capacity=300)
    given = library.put(lengths) if isinstance(lengths, np.ndarray) else lengths
    new = library.put(np.ones((2, 1, 300, 1)))
    assert [int(held.append(new, new, lengths=given).lengths[n]) for n in range(2)] == expected


@pytest.mark.parametrize(("depth", "value_depth"), [(0, 3), (4, 0)])
def test_keys_or_values_without_features(depth: int, value_depth: int) -> None:
    sizes: dict[str, Any] = {"num_kv_heads": 2, "depth": depth, "value_depth": value_depth}
    query, key, value = drawn(3, 4, 5, depth), drawn(3, 2, 5, depth), drawn(3, 2, 5, value_depth)
    expected = dot_product_attention(query, key, value, mask=masks.causal(), impl="dense")
    for own in (
        GrowingCache.empty(np.ones(1), batch=(3,), **sizes),
        PagedCache.empty(np.ones(1), batch=(3,), pages=9, page_size=2, **sizes),
    ):
        out, _ = own.attend(query, key, value)
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-12)
        shared = SharedPrefixCache.of(GrowingCache.empty(np.ones(1), **sizes), own)
        out, _ = shared.attend(query, key, value)
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-12)


def test_what_a_sequence_adds_begins_empty() -> None:
    x = np.ones((3, 2, 1, 4))
    own = GrowingCache.empty(np.ones(1), batch=(3,), **SIZES).append(x, x, lengths=np.array([0, 1, 0]))
    with pytest.raises(ValueError, match="`own` must be empty"):
        SharedPrefixCache.of(GrowingCache.empty(np.ones(1), **SIZES), own)


@pytest.mark.parametrize(
    "call",
    [{"return_weights": True}, {"dropout": 0.5}, {"layout": "BLHD"}, {"key_positions": 1}, {"query_positions": 1}],
    ids=str,
)
def test_arguments_that_a_cache_has_none_of(call: dict[str, Any]) -> None:
    x, own = np.ones((2, 1, 4)), GrowingCache.empty(np.ones(1), **SIZES)
    for cache in (own, SharedPrefixCache.of(own, own)):
        with pytest.raises(TypeError, match=f"`{next(iter(call))}` was given, but a cache's attend takes bias, scale"):
            cache.attend(x, x, x, **call)


@pytest.mark.torch
def test_a_prompt_and_sequences_of_two_libraries() -> None:
    import torch

    with pytest.raises(TypeError, match="`own` is an array of numpy but `prefix` is one of torch"):
        SharedPrefixCache.of(GrowingCache.empty(torch.ones(1), **SIZES), GrowingCache.empty(np.ones(1), **SIZES))


def test_a_window_of_more_keys_than_a_ring_keeps_is_refused() -> None:
    """A model's window of 3 counts the query's own key, ``sliding_window(3, 0)`` does not."""
    ring = SlidingCache.empty(np.ones(1), window=3, **SIZES)
    query, key, value = drawn(4, 1, 4), drawn(2, 1, 4), drawn(2, 1, 4)
    with pytest.raises(ValueError, match=r"by `mask` sliding_window\(3, 0\) a query sees 4 keys.* keeps 3"):
        ring.attend(query, key, value, mask=masks.sliding_window(3, 0))
    narrow, wide = masks.sliding_window(2, 0), masks.sliding_window(9, 0)
    with pytest.raises(ValueError, match="a query sees 10 keys"):
        ring.attend(query, key, value, mask=narrow | wide)
    for mask in (narrow, masks.causal(), narrow & wide, wide & (masks.causal() & narrow)):
        assert ring.attend(query, key, value, mask=mask)[0].shape == (4, 1, 4)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_shared_prompt_rounds_once(dtype: Any) -> None:
    prompt_key, prompt_value = drawn(1, 40, 8).astype(dtype), (drawn(1, 40, 8) + 1).astype(dtype)
    query, key, value = (drawn(32, 1, 1, 8).astype(dtype) * dtype(n) for n in (1, 2, 3))
    sizes: dict[str, Any] = {"num_kv_heads": 1, "depth": 8}
    prefix = GrowingCache.empty(key, **sizes).append(prompt_key, prompt_value)
    out, _ = SharedPrefixCache.of(prefix, GrowingCache.empty(key, batch=(32,), **sizes)).attend(query, key, value)
    keys, values = (
        np.concatenate([np.broadcast_to(old, (32, *old.shape)), new], axis=-2).astype(np.float64)
        for old, new in ((prompt_key, key), (prompt_value, value))
    )
    exact = dot_product_attention(query.astype(np.float64), keys, values)
    assert out.dtype == dtype
    half_unit = np.abs(np.spacing(exact.astype(dtype))).astype(np.float64) / 2
    assert (np.abs(out.astype(np.float64) - exact) <= half_unit + 1e-6).all()  # and float32's own rounding


@pytest.mark.parametrize("library", LIGHT)
def test_lengths_beyond_any_integer_of_the_library_take_nothing_back(library: Library) -> None:
    x = library.put(drawn(2, 3, 4))
    prefix = GrowingCache.empty(x, **SIZES).append(x, x)
    cache = SharedPrefixCache.of(prefix, GrowingCache.empty(x, batch=(3,), **SIZES))
    np.testing.assert_array_equal(library.get(cache.truncate(10**30).lengths), [3, 3, 3])
    with pytest.raises(ValueError, match="the prompt, which all share, is left whole"):
        cache.truncate(-(10**30))


HALVES = (np.float16, ml_dtypes.bfloat16)


@pytest.mark.parametrize("kind", [GrowingCache, StaticCache, SlidingCache, PagedCache, SharedPrefixCache])
@pytest.mark.parametrize("held", [*HALVES, np.float32, np.float64])
@pytest.mark.parametrize("called", [*HALVES, np.float32])
def test_the_output_has_the_dtype_of_the_call(kind: Any, held: Any, called: Any) -> None:
    """Whatever the cache holds; a half is rounded once."""
    like, x = np.ones(1, held), drawn(3, 2, 3, 4).astype(called)
    sizes = {StaticCache: {"capacity": 5}, SlidingCache: {"window": 3}, PagedCache: {"pages": 9, "page_size": 2}}
    own = GrowingCache if kind is SharedPrefixCache else kind
    cache: Any = own.empty(like, batch=(3,), **SIZES, **sizes.get(kind, {}))
    if kind is SharedPrefixCache:
        cache = SharedPrefixCache.of(GrowingCache.empty(like, **SIZES), cache)
    out, _ = cache.attend(x, x, x, mask=masks.sliding_window(2, 0))
    assert out.dtype == called
    wide = x.astype(np.float64)
    expected = dot_product_attention(wide, wide, wide, mask=masks.sliding_window(2, 0), impl="dense")
    error = 2.0**-6 if ml_dtypes.bfloat16 in (held, called) else 2.0**-9
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=0, atol=error)
