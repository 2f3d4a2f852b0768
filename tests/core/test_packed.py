"""Packed sequences are separate calls, one after the other; empty ones and padding too."""

from collections.abc import Iterator
from typing import Any

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attention_np as attention
from attention_np import Result, biases, dropout, masks, packed_attention, segment_ids, segment_positions

jax = pytest.importorskip("jax", reason="the `jax` extra is not installed")
import jax.numpy as jnp  # noqa: E402  after the skip

import attention_jax  # noqa: E402  after the skip

LENGTHS = st.lists(st.integers(0, 5), min_size=0, max_size=4)
MASKS = [
    None,
    masks.causal(),
    masks.causal_lower_right(),
    masks.sliding_window(1, 1),
    masks.causal_lower_right() & masks.sliding_window(2, 0) | ~masks.chunked(2),
    masks.prefix(2) | masks.causal(),
    masks.dilated(2),
    masks.rule(lambda batch, head, query, key: (query + 2 * key + head) % 3 != 0),
]


def offsets(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def arrays(queries: int, keys: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(queries, 4, 3)), rng.normal(size=(keys, 2, 3)), rng.normal(size=(keys, 2, 5))


def separately(q: Any, k: Any, v: Any, q_offsets: Any, k_offsets: Any, **call: Any) -> Iterator[tuple[slice, Any]]:
    """The rows and the Result of each sequence, by a call of its own."""
    starts = [list(map(int, x)) for x in (q_offsets, k_offsets)]
    for a, b, c, d in zip(starts[0], starts[0][1:], starts[1], starts[1][1:], strict=False):
        yield (
            slice(a, b),
            attention.dot_product_attention(q[a:b], k[c:d], v[c:d], layout="BLHD", return_lse=True, **call),
        )


def assert_separate(found: Any, rows: int, parts: Iterator[tuple[slice, Any]], padding_lse: Any = -np.inf) -> None:
    seen = 0
    for where, part in parts:
        np.testing.assert_allclose(found.out[where], part.out, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(found.lse[:, where], part.lse, rtol=1e-12, atol=1e-14)
        seen = where.stop
    assert not np.any(found.out[seen:])
    assert np.all(found.lse[:, seen:] == padding_lse)
    assert found.out.shape == (rows, 4, 5)
    assert found.lse.shape == (4, rows)


@given(LENGTHS, st.data(), st.sampled_from(MASKS), st.integers(0, 3), st.integers(0, 3))
def test_packed_is_separate_calls(queries: list[int], data: Any, mask: Any, q_padding: int, k_padding: int) -> None:
    keys = data.draw(st.lists(st.integers(0, 5), min_size=len(queries), max_size=len(queries)))
    q, k, v = arrays(sum(queries) + q_padding, sum(keys) + k_padding)
    q_offsets, k_offsets = offsets(queries), offsets(keys)
    call = {"mask": mask, "bias": biases.alibi(4), "softcap": 3.0, "scale": -0.7}
    found = packed_attention(q, k, v, q_offsets, k_offsets, return_lse=True, **call)
    assert_separate(found, len(q), separately(q, k, v, q_offsets, k_offsets, **call))


@given(LENGTHS, st.sampled_from(MASKS))
def test_one_set_of_offsets_serves_both(lengths: list[int], mask: Any) -> None:
    q, k, v = arrays(sum(lengths), sum(lengths))
    where, sinks = offsets(lengths), np.array([0.5, -1.0, 2.0, 0.0])
    found = packed_attention(q, k, v, where, mask=mask, sinks=sinks, return_lse=True)
    assert_separate(found, len(q), separately(q, k, v, where, where, mask=mask, sinks=sinks))


def test_padding_sees_nothing_and_is_seen_by_nobody() -> None:
    q, k, v = arrays(7, 9)
    clean = packed_attention(q, k, v, np.array([0, 2, 5]), np.array([0, 4, 6]), return_lse=True, return_weights=True)
    assert not clean.out[5:].any()
    assert np.isneginf(clean.lse[:, 5:]).all()
    q[5:], k[6:], v[6:] = np.nan, np.inf, np.nan
    spoilt = packed_attention(q, k, v, np.array([0, 2, 5]), np.array([0, 4, 6]), return_lse=True, return_weights=True)
    for a, b in zip(clean, spoilt, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_sink_is_all_that_padding_has() -> None:
    q, k, v = arrays(5, 5)
    sinks = np.array([1.0, 2.0, 3.0, 4.0])
    found = packed_attention(q, k, v, np.array([0, 3]), sinks=sinks, return_lse=True)
    np.testing.assert_array_equal(found.lse[:, 3:], np.repeat(sinks[:, None], 2, axis=1))


def test_arrays_have_the_packed_axes() -> None:
    q, k, v = arrays(5, 6)
    q_offsets, k_offsets = np.array([0, 2, 5]), np.array([0, 3, 6])
    rng = np.random.default_rng(1)
    mask, bias, keep = rng.random((4, 5, 6)) < 0.7, rng.normal(size=(4, 5, 6)), rng.random((5, 6)) < 0.5
    call = {"mask": mask, "bias": bias, "dropout": dropout(0.5, keep=keep)}
    found = packed_attention(q, k, v, q_offsets, k_offsets, **call)
    for rows, columns in ((slice(0, 2), slice(0, 3)), (slice(2, 5), slice(3, 6))):
        own = {"mask": mask[:, rows, columns], "bias": bias[:, rows, columns]}
        own["dropout"] = dropout(0.5, keep=keep[rows, columns])
        part = attention.dot_product_attention(q[rows], k[columns], v[columns], layout="BLHD", **own)
        np.testing.assert_allclose(found[rows], part, rtol=1e-12)


def test_dropout_counts_the_packed_rows() -> None:
    q, k, v = arrays(5, 6)
    found = packed_attention(q, k, v, np.array([0, 2, 5]), np.array([0, 3, 6]), dropout=dropout(0.3, seed=4))
    own = dropout(0.3, seed=4, origin=(0, 0, 2, 3))
    part = attention.dot_product_attention(q[2:], k[3:], v[3:], layout="BLHD", dropout=own)
    np.testing.assert_allclose(found[2:], part, rtol=1e-12)


@pytest.mark.parametrize("first", [3, np.array([3, 5])])
def test_positions_of_the_first_row_of_each_sequence(first: Any) -> None:
    q, k, v = arrays(5, 9)
    q_offsets, k_offsets = np.array([0, 2, 5]), np.array([0, 4, 9])
    found = packed_attention(
        q, k, v, q_offsets, k_offsets, mask=masks.causal(), query_positions=first, key_positions=1, return_lse=True
    )
    starts = np.broadcast_to(first, 2)
    for n, (rows, columns) in enumerate(((slice(0, 2), slice(0, 4)), (slice(2, 5), slice(4, 9)))):
        part = attention.dot_product_attention(
            q[rows],
            k[columns],
            v[columns],
            layout="BLHD",
            mask=masks.causal(),
            query_positions=int(starts[n]),
            key_positions=1,
        )
        np.testing.assert_allclose(found.out[rows], part, rtol=1e-12)


def test_segments_of_ones_own_divide_further() -> None:
    q, k, v = arrays(6, 6)
    found = packed_attention(q, k, v, np.array([0, 4, 6]), mask=masks.segments(np.array([0, 0, 1, 1, 1, 1])))
    np.testing.assert_allclose(found, packed_attention(q, k, v, np.array([0, 2, 4, 6])), rtol=1e-12)


@pytest.mark.parametrize("mask", MASKS[:-1], ids=repr)
def test_jax_with_traced_offsets(mask: Any) -> None:
    q, k, v = arrays(8, 9)
    queries, keys = ([0, 2, 2, 7], [0, 4, 6, 8]), ([0, 1, 5, 8], [0, 0, 2, 9])

    @jax.jit
    def call(*given: Any) -> Any:
        return attention_jax.packed_attention(*given, mask=mask, return_lse=True)

    for q_offsets, k_offsets in zip(queries, keys, strict=True):
        with jax.enable_x64(True):
            found = call(*map(jnp.asarray, (q, k, v, np.array(q_offsets), np.array(k_offsets))))
        found = Result(*(None if x is None else np.asarray(x) for x in found))
        assert_separate(found, len(q), separately(q, k, v, q_offsets, k_offsets, mask=mask))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint8"])
def test_ids_and_positions(dtype: str) -> None:
    where = np.array([0, 2, 2, 5], dtype=dtype)
    assert segment_ids(where, 7).tolist() == [0, 0, 2, 2, 2, -1, -1]
    assert segment_positions(where, 7).tolist() == [0, 1, 0, 1, 2, 0, 0]
    strict = array_api_strict.asarray(where)
    assert np.asarray(segment_ids(strict, 7)).tolist() == [0, 0, 2, 2, 2, -1, -1]
    assert np.asarray(segment_positions(strict, 7)).tolist() == [0, 1, 0, 1, 2, 0, 0]


@pytest.mark.torch
def test_torch() -> None:
    import torch

    q, k, v = arrays(6, 6)
    where = np.array([0, 4, 6])
    found = attention.packed_attention(*map(torch.from_numpy, (q, k, v, where)), mask=masks.causal_lower_right())
    np.testing.assert_allclose(found.numpy(), packed_attention(q, k, v, where, mask=masks.causal()), rtol=1e-12)


def test_traced_offsets_are_defined_whatever_they_are() -> None:
    ids, positions = (jax.jit(fn, static_argnums=1) for fn in (segment_ids, segment_positions))
    assert ids(jnp.asarray([1, 3]), 5).tolist() == [-1, 0, 0, -1, -1]
    assert positions(jnp.asarray([1, 3]), 5).tolist() == [0, 0, 1, 0, 0]
    assert ids(jnp.asarray([4, 0, 2]), 6).tolist() == [0, 0, 1, 1, -1, -1]
    assert ids(jnp.asarray([-3, 2, 90]), 4).tolist() == [0, 0, 1, 1]
    assert ids(jnp.asarray([0]), 3).tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("q_offsets", "k_offsets", "call", "error", "words"),
    [
        ([1, 5], None, {}, ValueError, "`query_offsets` must start at 0; got 1"),
        ([0, 3, 2], None, {}, ValueError, "`query_offsets` must not decrease"),
        ([0, 6], None, {}, ValueError, "`query_offsets` ends at 6, beyond the 5 rows"),
        ([0, 5], [0, 7], {}, ValueError, "`key_offsets` ends at 7, beyond the 6 rows"),
        ([0, 5], [0, 2, 6], {}, ValueError, "`key_offsets` has 2 sequences, but `query_offsets` has 1"),
        ([], None, {}, ValueError, "at least one"),
        ([[0, 5]], None, {}, ValueError, r"`query_offsets` must be integers \(n \+ 1,\)"),
        ([0.0, 5.0], None, {}, TypeError, "`query_offsets` must be integers"),
        ([0, 5], None, {"mask": masks.key_lengths(3)}, ValueError, "counts rows of one sequence"),
        ([0, 5], None, {"mask": masks.causal() & ~masks.query_lengths(3)}, ValueError, "counts rows of one sequence"),
        ([0, 5], None, {"query_positions": np.arange(2)}, ValueError, r"it must be an integer or \(n,\) = \(1,\)"),
        (
            [0, 5],
            None,
            {"mask": masks.causal_lower_right(), "key_positions": 2},
            ValueError,
            r"`key_positions` was given, but causal_lower_right\(\) sets",
        ),
    ],
)
def test_wrong_calls(q_offsets: Any, k_offsets: Any, call: Any, error: type[Exception], words: str) -> None:
    q, k, v = arrays(5, 6)
    given_offsets = [np.array(x, dtype=None if x else int) for x in (q_offsets, k_offsets) if x is not None]
    with pytest.raises(error, match=words):
        packed_attention(q, k, v, *given_offsets, **call)


def test_arrays_must_be_packed() -> None:
    q, k, v = arrays(5, 6)
    with pytest.raises(ValueError, match=r"`query` must be packed, \(total, H, D\); got shape \(1, 5, 4, 3\)"):
        packed_attention(q[None], k, v, np.array([0, 5]))
    with pytest.raises(TypeError, match="`query_offsets` must be an array; got a list"):
        packed_attention(q, k, v, [0, 5])
