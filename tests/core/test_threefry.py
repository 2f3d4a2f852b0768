"""Threefry-2x32-20 gives the published bits on every library, from keys and seeds of every kind."""

from types import ModuleType
from typing import Any

import array_api_strict
import numpy as np
import pytest

from attention_core.threefry import lanes, signed_word, threefry2x32, words_of_seed

jax = pytest.importorskip("jax", reason="the `jax` extra is not installed")
import jax.numpy as jnp  # noqa: E402  after the skip

# Counter, key, output: lines "threefry2x32 20" of tests/kat_vectors in the Random123 distribution (Salmon et al. 2011).
KNOWN_ANSWERS = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


def torch_namespace() -> ModuleType:
    pytest.importorskip("torch", reason="PyTorch is not installed; `pip install torch==2.13.0` brings it")
    import array_api_compat.torch

    return array_api_compat.torch


LIBRARIES = ["numpy", "jax", "strict", pytest.param("torch", marks=pytest.mark.torch)]


def namespace(library: str) -> Any:
    return torch_namespace() if library == "torch" else {"numpy": np, "jax": jnp, "strict": array_api_strict}[library]


def unsigned(words: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(int(np.asarray(word).reshape(-1)[0]) & 0xFFFFFFFF for word in words)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
@pytest.mark.parametrize("key_kind", ["integers", "arrays"])
def test_known_answers(library: str, counter: Any, key: Any, expected: Any, key_kind: str) -> None:
    xp = namespace(library)

    def words(values: tuple[int, int]) -> tuple[Any, ...]:
        return tuple(xp.asarray([signed_word(value)], dtype=xp.int32) for value in values)

    given = words(key) if key_kind == "arrays" else tuple(map(signed_word, key))
    assert unsigned(threefry2x32(given, words(counter))) == expected


def test_a_known_answer_inside_jit_with_and_without_x64() -> None:
    counter, key, expected = KNOWN_ANSWERS[2]
    words = [np.array([signed_word(value)], dtype=np.int32) for value in (*key, *counter)]
    for enabled in (False, True):
        with jax.enable_x64(enabled):
            found = jax.jit(lambda k0, k1, x0, x1: threefry2x32((k0, k1), (x0, x1)))(*words)
        assert unsigned(found) == expected


def test_agrees_with_jax_on_random_blocks() -> None:
    from jax.extend.random import threefry_2x32

    rng = np.random.default_rng(0)
    key, words = rng.integers(0, 2**32, 2, dtype=np.uint32), rng.integers(0, 2**32, (2, 50), dtype=np.uint32)
    theirs = np.asarray(threefry_2x32(jnp.asarray(key), jnp.asarray(words.reshape(-1)))).view(np.int32)
    ours = threefry2x32(tuple(map(signed_word, map(int, key))), tuple(words.view(np.int32)))
    np.testing.assert_array_equal(np.concatenate(ours), theirs)


def test_lanes_are_the_low_and_the_high_halves_in_order() -> None:
    words = tuple(np.array([signed_word(word)], dtype=np.int32) for word in (0xAAAA1111, 0xFFFF0002))
    assert [int(lane[0]) for lane in lanes(words)] == [0x1111, 0xAAAA, 0x0002, 0xFFFF]


@pytest.mark.parametrize("bits", [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**40 + 5, 2**64 - 1])
def test_signed_word_keeps_the_low_32_bits(bits: int) -> None:
    word = signed_word(bits)
    assert -(2**31) <= word < 2**31
    assert word & 0xFFFFFFFF == bits & 0xFFFFFFFF


SEEDS = [
    (5, ["int8", "uint8", "int32", "uint32", "int64", "uint64"]),
    (2**31 + 9, ["uint32", "int64", "uint64"]),
    (2**40 + 5, ["int64", "uint64"]),
    (2**64 - 3, ["uint64"]),
]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("seed", "dtype"), [(seed, dtype) for seed, dtypes in SEEDS for dtype in dtypes])
def test_a_seed_has_the_same_words_in_every_dtype(library: str, seed: int, dtype: str) -> None:
    xp = namespace(library)
    with jax.enable_x64(True):
        array = xp.asarray(np.array([seed], dtype=dtype)) if library != "torch" else torch_array(seed, dtype)
        words = words_of_seed(xp, array)
        assert all(word.dtype == xp.int32 for word in words)
        assert unsigned(words) == (seed & 0xFFFFFFFF, seed >> 32)
    assert unsigned(words_of_seed(xp, seed)) == (seed & 0xFFFFFFFF, seed >> 32)


def torch_array(seed: int, dtype: str) -> Any:
    import torch

    return torch.from_numpy(np.array([seed], dtype=dtype))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_a_negative_seed_counts_modulo_two_to_the_64(dtype: str) -> None:
    assert unsigned(words_of_seed(np, np.array([-2], dtype=dtype))) == (0xFFFFFFFE, 0xFFFFFFFF)
