"""A cache that is full, or is called wrongly, says so; its pages and its ring hold exactly what they should."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_core import biases, cache, masks
from tests.cache.kinds import layer, paged, sliding, static, tokens

X = np.ones((2, 3, 4))  # heads, length, depth
SIZES: dict[str, Any] = {"num_kv_heads": 2, "depth": 4}
LIKE = np.ones(1)


def grown(**sizes: Any) -> cache.GrowingCache:
    return cache.GrowingCache.empty(LIKE, **SIZES, **sizes)


def attend(**call: Any) -> Callable[[], Any]:
    return lambda: grown().attend(X, X, X, **call)


CALLS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: grown().append(X[:1], X), ValueError, r"`key` has shape \(1, 3, 4\); this cache takes \(2, 3, 4\)"),
    (lambda: grown().append(X, X[:, :2]), ValueError, r"`value` has shape \(2, 2, 4\); this cache takes \(2, 3, 4\)"),
    (lambda: grown(batch=(5,)).append(X, X), ValueError, r"batch axes of this cache are \(5,\)"),
    (lambda: grown().append(X[0], X[0]), ValueError, r"`key` has shape \(3, 4\); the batch axes"),
    (lambda: grown().append(X.astype(int), X), TypeError, "`key` has dtype int64"),
    (lambda: grown().append([1.0], X), TypeError, "`key` must be an array; got a list"),
    (lambda: grown().attend(X[:, :2], X, X), ValueError, "`query` has length 2, but `key` has 3"),
    (lambda: grown().attend(X[:1], X, X), ValueError, "`query` has 1 heads of depth 4; .* a multiple of 2"),
    (lambda: grown().attend(X[..., :3], X, X), ValueError, "`query` has 2 heads of depth 3; this cache takes 4 deep"),
    (lambda: grown().positions(-1), ValueError, "`count` must be at least 0"),
    (lambda: grown().positions(2, padding="left"), ValueError, "give their `lengths` too"),
    (lambda: grown(batch=(2,)).positions(2, lengths=np.ones(3, int)), ValueError, r"`lengths` has shape \(3,\)"),
    (attend(mask=np.ones((3, 3), bool)), ValueError, "`mask` is an array, whose axes a cache does not keep"),
    (attend(mask=masks.causal() & ~masks.key_lengths(2)), ValueError, r"`mask` holds key_lengths\(2\), which goes by"),
    (attend(mask=masks.causal_lower_right()), ValueError, "goes by index"),
    (attend(mask=masks.segments(np.zeros(3, int))), ValueError, "goes by index"),
    (attend(bias=np.zeros((3, 3))), ValueError, "`bias` is an array, whose axes a cache does not keep"),
    (attend(bias=biases.alibi(2) + biases.dense(np.zeros((3, 3)))), ValueError, "`bias` is an array"),
    (attend(sinks=np.zeros(3)), ValueError, "`sinks` has shape"),
    (lambda: grown(batch=3), TypeError, "`batch` must be a tuple of sizes"),
    (lambda: cache.GrowingCache.empty([1.0], **SIZES), TypeError, "`like` must be an array"),
    (lambda: cache.GrowingCache.empty(np.ones(1, int), **SIZES), TypeError, "`like` has dtype int64"),
    (
        lambda: cache.GrowingCache.empty(LIKE, **SIZES, capacity=3),
        TypeError,
        "this class has no size `capacity`; what every",
    ),
    (lambda: cache.GrowingCache.empty(LIKE, num_kv_heads=1), TypeError, "an empty cache needs the size `depth`"),
    (lambda: cache.StaticCache.empty(LIKE, **SIZES, capacity=0), ValueError, "`capacity` must be at least 1"),
    (lambda: cache.SlidingCache.empty(LIKE, **SIZES, window=2.0), TypeError, "`window` must be a Python integer"),
    (lambda: cache.SharedPrefixCache.of(grown(batch=(2,)), grown()), ValueError, "`prefix` is one prompt, without"),
    (lambda: cache.SharedPrefixCache.of(grown(), 3), TypeError, "`own` must be a cache"),
    (
        lambda: cache.SharedPrefixCache.of(grown(), cache.GrowingCache.empty(LIKE, num_kv_heads=1, depth=4)),
        ValueError,
        r"same heads and depths; got \(2, 4, 4\) and \(1, 4, 4\)",
    ),
    (lambda: layer(False)(tokens(), cache=3), TypeError, "`cache` must be a value of a class of `cache`; got an int"),
    (lambda: layer(False)(tokens(), cache=sliding(layer(True), ())), ValueError, "keeps 3 tokens .* queries see all"),
    (
        lambda: layer(True)(tokens(), cache=layer(True).new_cache(cache.SlidingCache, window=2)),
        ValueError,
        "keeps 2 tokens of each sequence, but the layer's queries see 3",
    ),
    (
        lambda: layer(False)(tokens(), cache=cache.SharedPrefixCache.of(grown(), sliding(layer(True), ()))),
        ValueError,
        "keeps 3 tokens of each sequence, but the layer's queries see all",
    ),
    (lambda: replace(layer(True), causal=False)(tokens(), cache=grown()), ValueError, "the layer is not causal"),
    (lambda: layer(True)(tokens(), cache=grown(), positions=2), ValueError, "`positions` was given, but a cache"),
    (lambda: layer(True)(tokens(), cache=grown(), dropout=3), ValueError, "`dropout` was given with a cache"),
]


@pytest.mark.parametrize(("call", "kind", "words"), CALLS)
def test_a_wrong_call_says_what_is_wrong(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


def test_a_full_static_cache_is_an_error_and_is_left_as_it_was() -> None:
    full = static(layer(False), (2,))
    _, full = layer(False)(tokens((2,)), cache=full)
    with pytest.raises(ValueError, match="a capacity of 9 tokens a sequence, too few for 10"):
        layer(False)(tokens((2,))[:, :3], cache=full, lengths=np.array([1, 3]))
    _, full = layer(False)(tokens((2,))[:, :3], cache=full, lengths=np.array([1, 2]))
    np.testing.assert_array_equal(full.lengths, [8, 9])


def test_pages_are_taken_as_needed_and_given_back() -> None:
    made, x = layer(False), tokens((2,))
    _, held = made(x[:, :5], cache=paged(made, (2,)), lengths=np.array([5, 2]))
    np.testing.assert_array_equal(held.table, [[0, 1, 2, -1, -1], [3, -1, -1, -1, -1]])
    assert held.free_pages == 5
    _, held = made(x[:, 5:], cache=held)
    np.testing.assert_array_equal(held.table, [[0, 1, 2, 4, -1], [3, 5, -1, -1, -1]])
    held = held.release(np.array([True, False]))
    np.testing.assert_array_equal(held.lengths, [0, 4])
    np.testing.assert_array_equal(held.table, [[-1] * 5, [3, 5, -1, -1, -1]])
    out, held = made(x[:, :4], cache=held)
    assert set(held.table[0, :2]) <= {0, 1, 2, 4}
    np.testing.assert_allclose(out[0], made(x[0, :4]), rtol=0, atol=1e-12)
    whole = made(np.concatenate([x[1:, :2], x[1:, 5:], x[1:, :4]], axis=1))
    np.testing.assert_allclose(out[1], whole[0, 4:], rtol=0, atol=1e-12)


def test_too_few_pages_are_an_error() -> None:
    made, x = layer(False), tokens((2,))
    held = made.new_cache(cache.PagedCache, batch=(2,), pages=5, page_size=2, max_pages=3)
    _, held = made(x[:, :4], cache=held)
    with pytest.raises(ValueError, match="has 1 free pages of 2 tokens, and at most 3 a sequence: too few for"):
        made(x[:, 4:5], cache=held)
    _, held = made(x[:, 4:5], cache=held, lengths=np.array([0, 1]))
    with pytest.raises(ValueError, match="sequences of up to 7 tokens"):
        made(x[:, 5:], cache=held, lengths=np.array([0, 2]))
    with pytest.raises(ValueError, match=r"`finished` must be booleans of shape \(2,\)"):
        held.release(np.array([1, 0]))


def test_the_ring_evicts_a_token_exactly_when_its_window_has_passed() -> None:
    """B098: nothing at length 8 of a window of 8; B132: what stands where is told by the positions."""
    ring = cache.SlidingCache.empty(LIKE, num_kv_heads=1, depth=1, window=4)
    for n in range(4):
        x = np.full((1, 1, 1), float(n))
        ring = ring.append(x, x)
    np.testing.assert_array_equal(ring.stored().positions, [0, 1, 2, 3])
    x = np.array([[[4.0], [5.0]]])
    ring = ring.append(x, x)
    np.testing.assert_array_equal(ring.stored().positions, [4, 5, 2, 3])
    np.testing.assert_array_equal(ring.keys[0, :, 0], [4, 5, 2, 3])


def test_prompt_and_decoding_see_as_many_keys() -> None:
    """B097: a window of 2 over 4 tokens, at once and step by step."""
    x = np.array([1.0, 2.0, 0.0, 1.0])[None, :, None]
    made = cache.SlidingCache.empty(LIKE, num_kv_heads=1, depth=1, window=2)
    at_once, _ = made.attend(x, x, x)
    steps = []
    for n in range(4):
        out, made = made.attend(x[:, n : n + 1], x[:, n : n + 1], x[:, n : n + 1])
        steps.append(out[0, 0, 0])
    np.testing.assert_allclose(at_once[0, :, 0], steps, rtol=1e-14)
    np.testing.assert_allclose(steps[3], (0 * np.exp(0.0) + np.exp(1.0)) / (1 + np.exp(1.0)), rtol=1e-14)


def test_the_lse_is_that_of_all_kept_keys() -> None:
    zero = np.zeros((1, 1, 3, 4))
    result, _ = grown(batch=(1,)).attend(
        zero[:, [0, 0]].repeat(2, 1), zero[:, [0, 0]], zero[:, [0, 0]], return_lse=True
    )
    np.testing.assert_allclose(result.lse[0, 0], np.log([1.0, 2.0, 3.0]), rtol=1e-14)


def test_equal_positions_after_a_prefix() -> None:
    shared = cache.SharedPrefixCache.of(grown().append(X, X), replace(grown(batch=(2,))))
    np.testing.assert_array_equal(shared.positions(2), [[3, 4], [3, 4]])
    np.testing.assert_array_equal(shared.append(X[None].repeat(2, 0), X[None].repeat(2, 0)).positions(1), [[6], [6]])
