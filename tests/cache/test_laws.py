"""Prefill, then decode, in any pieces, is one pass over the whole: for every cache, padded or not, on every library."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_core import biases, masks, rotate
from attention_core.cache import GrowingCache, StaticCache
from tests.cache.kinds import KINDS, LENGTH, alone, each_alone, growing, layer, paged, shared, sliding, static, tokens
from tests.variants.samples import LIGHT, Library

SPLITS = [(7,), (1,) * 7, (3, 1, 1, 2), (2, 5), (4, 0, 3), (6, 1)]
every_kind = pytest.mark.parametrize("kind", KINDS)
NUMPY = Library("numpy")


def run(made: Any, cache: Any, x: Any, split: tuple[int, ...]) -> tuple[list[Any], Any]:
    outs, start = [], 0
    for count in split:
        out, cache = made(x[..., start : start + count, :], cache=cache)
        outs.append(out)
        start += count
    return outs, cache


@every_kind
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_any_pieces_are_one_pass(kind: str, split: tuple[int, ...]) -> None:
    window, empty = KINDS[kind]
    made = layer(window)
    for batch in ((), (2, 1)):
        x = tokens(batch)
        outs, cache = run(made, empty(made, batch), x, split)
        np.testing.assert_allclose(np.concatenate(outs, axis=-2), each_alone(x, window), rtol=0, atol=1e-12)
        np.testing.assert_array_equal(cache.positions(1), np.full((*batch, 1), LENGTH))


@every_kind
@pytest.mark.parametrize("library", [each for each in LIGHT if each.id != "numpy"])
def test_other_libraries(kind: str, library: Library) -> None:
    window, empty = KINDS[kind]
    made, x = layer(window, library.put), tokens((2,))
    outs, _ = run(made, empty(made, (2,)), library.put(x), (4, 1, 2))
    got = np.concatenate([library.get(out) for out in outs], axis=-2)
    np.testing.assert_allclose(got, each_alone(x, window), rtol=0, atol=1e-12)


CHUNKS = [np.array([3, 0, 1]), np.array([1, 1, 1]), np.array([0, 4, 2]), np.array([1, 1, 0])]


@every_kind
@pytest.mark.parametrize("padding", ["right", "left"])
def test_padded_chunks_of_unequal_lengths_are_each_sequence_alone(kind: str, padding: str) -> None:
    """Four calls of 4, 1, 5 and 1 tokens an item, of which some are NaN for padding."""
    window, empty = KINDS[kind]
    made = layer(window)
    cache, whole = empty(made, (3,)), tokens((3,))
    outs: list[list[np.ndarray]] = [[], [], []]
    taken = np.zeros(3, int)
    for lengths, count in zip(CHUNKS, (4, 1, 5, 1), strict=True):
        x = np.full((3, count, whole.shape[-1]), np.nan)
        for n, length in enumerate(lengths):
            at = slice(0, length) if padding == "right" else slice(count - length, count)
            x[n, at] = whole[n, taken[n] : taken[n] + length]
        out, cache = made(x, cache=cache, lengths=lengths, padding=padding)
        for n, length in enumerate(lengths):
            at = slice(0, length) if padding == "right" else slice(count - length, count)
            outs[n].append(out[n, at])
        taken += lengths
    np.testing.assert_array_equal(cache.positions(1)[:, 0], taken)
    for n, length in enumerate(taken):
        np.testing.assert_allclose(np.concatenate(outs[n]), alone(whole[n, :length], window), rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch", [(), (3,), (2, 1)])
@pytest.mark.parametrize(
    ("window", "empty"), [(False, growing), (False, static), (True, sliding), (True, growing), (True, paged)]
)
def test_a_shared_prompt_is_as_if_every_sequence_had_its_own(batch: Any, window: bool, empty: Any) -> None:
    made, prompt, x = layer(window), tokens((), 5), tokens(batch)
    outs, cache = run(made, shared(made, empty(made, batch), prompt), x, (3, 1, 3))
    repeated = np.broadcast_to(prompt, (*batch, *prompt.shape))
    expected = each_alone(np.concatenate([repeated, x], axis=-2), window)[..., 5:, :]
    np.testing.assert_allclose(np.concatenate(outs, axis=-2), expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(cache.positions(1), np.full((*batch, 1), 5 + LENGTH))


def test_a_shared_prompt_with_padded_chunks() -> None:
    made, prompt, x, lengths = layer(True), tokens((), 5), tokens((3,)), np.array([2, 0, 4])
    cache = shared(made, growing(made, (3,)), prompt)
    cache = cache.append(*made_keys(made, cache, x, lengths), lengths=lengths)
    out, _ = made(x[:, 4:5], cache=cache)
    for n, length in enumerate(lengths):
        whole = np.concatenate([prompt, x[n, :length], x[n, 4:5]])
        np.testing.assert_allclose(out[n], alone(whole, True)[-1:], rtol=0, atol=1e-12)


def made_keys(made: Any, cache: Any, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values as a caller makes them who appends without asking."""
    key, value = (
        np.moveaxis((x @ w.weight.T).reshape(*x.shape[:-1], 2, -1), -2, -3) for w in (made.k_proj, made.v_proj)
    )
    return rotate(key, cache.positions(x.shape[-2], lengths=lengths), made.rotary), value


@every_kind
def test_a_call_changes_no_cache(kind: str) -> None:
    window, empty = KINDS[kind]
    made, x = layer(window), tokens((2,))
    _, before = made(x[:, :3], cache=empty(made, (2,)))
    first, _ = made(x[:, 3:5], cache=before)
    made(-x[:, 3:], cache=before)
    again, _ = made(x[:, 3:5], cache=before)
    np.testing.assert_array_equal(first, again)


@every_kind
def test_what_an_unused_place_holds_is_never_read(kind: str) -> None:
    """Also as a cache of 16-bit numbers, and of values of another depth than keys."""
    window, empty = KINDS[kind]
    made, x = layer(window), tokens((2,))
    fresh = empty(made, (2,))
    spoilt = replace(fresh, keys=np.full_like(fresh.keys, np.nan), values=np.full_like(fresh.values, np.inf))
    outs, _ = run(made, spoilt, x, (1, 4, 2))
    np.testing.assert_allclose(np.concatenate(outs, axis=-2), each_alone(x, window), rtol=0, atol=1e-12)


def test_a_cache_of_16_bits_and_values_of_another_depth() -> None:
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=shape) for shape in ((6, 3, 4), (2, 3, 4), (2, 3, 5)))
    for kind in (GrowingCache, StaticCache):
        sizes = {"capacity": 4} if kind is StaticCache else {}
        empty = kind.empty(np.ones(1, np.float16), num_kv_heads=2, depth=4, value_depth=5, **sizes)
        out, cache = empty.attend(query, key, value)
        assert (cache.keys.dtype, cache.values.shape[-1], out.shape) == (np.float16, 5, (6, 3, 5))
        exact, _ = kind.empty(np.ones(1), num_kv_heads=2, depth=4, value_depth=5, **sizes).attend(query, key, value)
        np.testing.assert_allclose(out, exact, rtol=0, atol=1e-2)


def test_biases_and_masks_go_by_positions() -> None:
    made, x = layer(False), tokens((2,))
    call = {"mask": masks.chunked(3) | masks.global_tokens(1), "bias": biases.alibi(6)}
    whole = made(x, **call)
    for kind, (window, empty) in KINDS.items():
        if window:
            continue
        cache, outs = empty(made, (2,)), []
        for start, stop in ((0, 4), (4, 5), (5, 7)):
            out, cache = made(x[:, start:stop], cache=cache, **call)
            outs.append(out)
        np.testing.assert_allclose(np.concatenate(outs, axis=-2), whole, rtol=0, atol=1e-12, err_msg=kind)


def test_a_prefix_that_sees_itself_in_both_directions() -> None:
    """A prefix-LM: the layer is not causal, and its mask says what is seen; the prefix comes in one piece."""
    made, x = replace(layer(False), causal=False), tokens((2,))
    mask = masks.prefix(4) | masks.causal()
    for kind in (growing, static, paged):
        cache, outs = kind(made, (2,)), []
        for start, stop in ((0, 5), (5, 6), (6, 7)):
            out, cache = made(x[:, start:stop], cache=cache, mask=mask)
            outs.append(out)
        np.testing.assert_allclose(np.concatenate(outs, axis=-2), made(x, mask=mask), rtol=0, atol=1e-12)


@st.composite
def chunks(draw: st.DrawFn) -> tuple[str, list[tuple[int, list[int], str]]]:
    """A cache, and calls: how many tokens, how many are real in each of two sequences, and where padding stands."""
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(lambda each: sum(each) <= LENGTH))
    real = [[draw(st.integers(0, count)) for _ in range(2)] for count in counts]
    sides = [draw(st.sampled_from(["right", "left"])) for _ in counts]
    return draw(st.sampled_from(sorted(KINDS))), list(zip(counts, real, sides, strict=True))


@settings(max_examples=30)
@given(chunks())
def test_any_calls_on_any_cache_are_one_call_without(case: Any) -> None:
    kind, calls = case
    window, empty = KINDS[kind]
    made, x, taken = layer(window), tokens((2,)), [0, 0]
    cache, outs = empty(made, (2,)), ([], [])
    for count, real, side in calls:
        now, at = np.full((2, count, x.shape[-1]), np.inf), [slice(0, n) for n in real]
        if side == "left":
            at = [slice(count - n, count) for n in real]
        for n in range(2):
            now[n, at[n]] = x[n, taken[n] : taken[n] + real[n]]
            taken[n] += real[n]
        with np.errstate(invalid="ignore"):
            out, cache = made(now, cache=cache, lengths=np.array(real), padding=side)
        for n in range(2):
            outs[n].append(out[n, at[n]])
    for n in range(2):
        np.testing.assert_allclose(np.concatenate(outs[n]), made(x[n, : taken[n]]), rtol=0, atol=1e-12)
