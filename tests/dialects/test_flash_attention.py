"""The FlashAttention dialect is its docstrings: the published meaning, written a second time in `flash_reference`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from attention_np.dialects.flash_attention import (
    Appended,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from tests.dialects import flash_reference
from tests.dialects.draws import Sizes, close, lengths, numbers, sizes

Call = dict[str, Any]


def rules(draw: DrawFn, rng: Any, n: Sizes) -> Call:
    """What all three calls take alike."""
    slopes = {
        "none": None,
        "heads": np.abs(rng.normal(size=n["Hq"])),
        "items": np.abs(rng.normal(size=(n["B"], n["Hq"]))),
    }
    return {
        "softmax_scale": draw(st.sampled_from([None, 0.0, 0.7])),
        "causal": draw(st.booleans()),
        "window_size": draw(st.tuples(st.integers(-1, 3), st.integers(-1, 3))),
        "softcap": draw(st.sampled_from([0.0, 1.5])),
        "alibi_slopes": slopes[draw(st.sampled_from(sorted(slopes)))],
    }


@st.composite
def batches(draw: DrawFn) -> Call:
    n, rng = draw(sizes()), numbers(draw)
    shapes = {"q": ("Lq", "Hq", "D"), "k": ("Lk", "Hkv", "D"), "v": ("Lk", "Hkv", "Dv")}
    call = {name: rng.normal(size=(n["B"], *(n[x] for x in axes))) for name, axes in shapes.items()}
    return {**call, **rules(draw, rng, n)}


@st.composite
def packs(draw: DrawFn) -> Call:
    """Up to three sequences, empty ones too."""
    n, rng = draw(sizes()), numbers(draw)
    offsets = {
        f"cu_seqlens_{name}": np.concatenate([[0], np.cumsum(lengths(draw, n["B"], most))]).astype(np.int32)
        for name, most in (("q", n["Lq"]), ("k", n["Lk"]))
    }
    totals = {name: int(offsets[f"cu_seqlens_{'q' if name == 'q' else 'k'}"][-1]) for name in "qkv"}
    shapes = {"q": ("Hq", "D"), "k": ("Hkv", "D"), "v": ("Hkv", "Dv")}
    call = {name: rng.normal(size=(totals[name], *(n[x] for x in axes))) for name, axes in shapes.items()}
    return {**call, **offsets, **rules(draw, rng, n)}


@st.composite
def caches(draw: DrawFn) -> Call:
    """Caches by item, by item's number, or by pages; with new keys or without, rotated or not."""
    n, rng = draw(sizes(Lk=5)), numbers(draw)
    kind = draw(st.sampled_from(["items", "chosen", "pages"]))
    blocks, page = draw(st.integers(1, 2)), n["Lk"]
    count = {"items": n["B"], "chosen": n["B"] + 2, "pages": n["B"] * blocks + 1}[kind]
    room = page * (blocks if kind == "pages" else 1)
    new = draw(st.integers(0, min(3, room)))
    depth = 2 * n["D"]
    call: Call = {"q": rng.normal(size=(n["B"], n["Lq"], n["Hq"], depth))}
    call |= {f"{name}_cache": rng.normal(size=(count, page, n["Hkv"], d)) for name, d in (("k", depth), ("v", n["Dv"]))}
    if kind == "chosen":
        call["cache_batch_idx"] = rng.permutation(count)[: n["B"]].astype(np.int32)
    if kind == "pages":
        call["block_table"] = rng.permutation(count)[: n["B"] * blocks].reshape(n["B"], blocks).astype(np.int32)
    if new:
        call |= {name: rng.normal(size=(n["B"], new, n["Hkv"], d)) for name, d in (("k", depth), ("v", n["Dv"]))}
        call["cache_seqlens"] = lengths(draw, n["B"], room - new)
        if draw(st.booleans()):
            angles = rng.normal(size=(room + n["Lq"], draw(st.integers(1, n["D"]))))
            call |= {"rotary_cos": np.cos(angles), "rotary_sin": np.sin(angles)}
            call["rotary_interleaved"] = draw(st.booleans())
    else:
        each = lengths(draw, n["B"], room)
        call["cache_seqlens"] = draw(st.sampled_from([None, int(each[0]), each]))
    if draw(st.booleans()) and call["cache_seqlens"] is not None:
        filled = np.broadcast_to(call["cache_seqlens"], n["B"])
        call["cache_leftpad"] = np.array([draw(st.integers(0, int(most))) for most in filled], np.int32)
    return {**call, **rules(draw, rng, n)}


@settings(max_examples=60)
@given(batches())
def test_flash_attn_func(call: Call) -> None:
    for found, expected in zip(
        flash_attn_func(**call, return_attn_probs=True), flash_reference.attend(**call), strict=True
    ):
        close(found, expected)
    close(flash_attn_func(**call), flash_reference.attend(**call)[0])


@settings(max_examples=60)
@given(packs())
def test_flash_attn_varlen_func(call: Call) -> None:
    found = flash_attn_varlen_func(**call, max_seqlen_q=9, max_seqlen_k=9, return_attn_probs=True)
    for ours, expected in zip(found, flash_reference.packed(**call), strict=True):
        close(ours, expected)


@settings(max_examples=100)
@given(caches())
def test_flash_attn_with_kvcache(call: Call) -> None:
    before = {name: x.copy() for name, x in call.items() if isinstance(x, np.ndarray)}
    expected = flash_reference.with_cache(**call)
    found = flash_attn_with_kvcache(**call, return_softmax_lse=True)
    assert isinstance(found, Appended) == ("k" in call)
    for ours, theirs in zip(found, expected[: len(found)], strict=True):
        close(ours, theirs)
    for name, x in before.items():
        np.testing.assert_array_equal(call[name], x)


def test_the_cache_has_no_room_for_all() -> None:
    """FlashAttention: "you must make sure that the cache is large enough"; here the rest is left out."""
    cache, new = np.zeros((2, 3, 1, 1)), np.arange(1.0, 5.0).reshape(2, 2, 1, 1)
    found = flash_attn_with_kvcache(new, cache, cache, new, new, cache_seqlens=np.array([2, 0]))
    assert found.k_cache[..., 0, 0].tolist() == [[0, 0, 1], [3, 4, 0]]
    assert found.softmax_lse is None


def test_what_is_returned() -> None:
    x = np.ones((1, 2, 1, 4))
    assert isinstance(flash_attn_func(x, x, x, deterministic=True), np.ndarray)
    assert isinstance(flash_attn_with_kvcache(x, x, x, num_splits=4), np.ndarray)
    assert len(flash_attn_with_kvcache(x, x, x, return_softmax_lse=True)) == 2


def test_dropout_drops_by_its_seed() -> None:
    x = np.random.default_rng(0).normal(size=(1, 64, 2, 8))
    eye = np.broadcast_to(np.eye(64)[None, :, None], (1, 64, 2, 64))
    weights, dropped = flash_attn_func(x, x, eye), flash_attn_func(x, x, eye, dropout_p=0.25, seed=3)
    kept = dropped != 0
    close(dropped[kept], weights[kept] / 0.75)
    assert abs(kept.mean() - 0.75) < 0.02
    offsets = np.array([0, 64])
    packed = flash_attn_varlen_func(x[0], x[0], eye[0], offsets, offsets, 64, 64, dropout_p=0.25, seed=3)
    close(packed, dropped[0])


X = np.ones((1, 2, 1, 4))
SLOPES = np.ones(3)
OFFSETS = np.array([0, 2])
PLAIN = (X[0], X[0], X[0], OFFSETS, OFFSETS, 2, 2)
DROPPED_PROBS = {"dropout_p": 0.5, "seed": 1, "return_attn_probs": True}
WRONG = [
    (flash_attn_func, (X, X, X), {"dropout_p": 0.5}, ValueError, "`seed` is needed"),
    (flash_attn_func, (X, X, X), DROPPED_PROBS, NotImplementedError, "marks dropped pairs by a minus sign"),
    (flash_attn_func, (X, X, X), {"window_size": (-2, 0)}, ValueError, "must be at least 0"),
    (flash_attn_func, (X, X, X), {"alibi_slopes": SLOPES}, ValueError, r"must be \(Hq,\) = \(1,\) or \(1, 1\)"),
    (flash_attn_func, (X, X, X), {"alibi_slopes": np.ones((2, 3))}, ValueError, r"`alibi_slopes` has shape \(2, 3\)"),
    (flash_attn_func, (X[0], X[0], X[0]), {}, ValueError, r"must be \(B, L, H, D\)"),
    (flash_attn_varlen_func, PLAIN, {"block_table": X}, NotImplementedError, "flash_attn_with_kvcache reads"),
    (flash_attn_varlen_func, PLAIN, {"alibi_slopes": np.ones((2, 1))}, ValueError, "`alibi_slopes` has shape"),
    (flash_attn_varlen_func, (X, X, X, *PLAIN[3:]), {}, ValueError, r"must be \(total, H, D\)"),
    (flash_attn_with_kvcache, (X, X, X, X), {}, ValueError, "`k` and `v` must be given together"),
    (flash_attn_with_kvcache, (X, X, X, X, X), {}, ValueError, "`cache_seqlens` must say"),
    (flash_attn_with_kvcache, (X, X, X), {"rotary_cos": X, "rotary_sin": X}, ValueError, "only applicable if"),
    (flash_attn_with_kvcache, (X, X, X), {"rotary_cos": X}, ValueError, "must be given together"),
    (flash_attn_with_kvcache, (X, X, X), {"cache_batch_idx": OFFSETS, "block_table": OFFSETS}, ValueError, "exclude"),
    (flash_attn_with_kvcache, (X, X, X), {"cache_seqlens": 1.5}, TypeError, "`cache_seqlens` must be an integer"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "arguments", "more", "error", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_a_wrong_call_says_what_is_wrong(
    call: Any, arguments: Any, more: Call, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        call(*arguments, **more)
