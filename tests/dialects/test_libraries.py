"""Every dialect computes the arrays of every library, traced ones too, and gives what it gives for NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attention_core.dialects import flash_attention, jax_nn, mlx, onnx, torch
from tests.core.libraries import EACH_ONCE, NUMPY, Library
from tests.dialects.draws import close

RNG = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def booleans(*shape: int) -> np.ndarray:
    return np.array(RNG.random(shape) < 0.6)


def integers(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.int32)


HEADS_FIRST = (real(2, 4, 3, 6), real(2, 2, 5, 6), real(2, 2, 5, 6))
LENGTH_FIRST = tuple(x.swapaxes(1, 2).copy() for x in HEADS_FIRST)
ANGLES = real(9, 3)


def of_jax_nn(q: Any, k: Any, v: Any, bias: Any, mask: Any, rows: Any, keys: Any) -> Any:
    more = {"query_seq_lengths": rows, "key_value_seq_lengths": keys, "local_window_size": (2, 1)}
    return jax_nn.dot_product_attention(q, k, v, bias, mask, **more, return_residual=True)


def of_mha(x: Any, weight: Any, bias: Any, hidden: Any, padding: Any, more: Any, out: Any) -> Any:
    return torch.multi_head_attention_forward(
        x, x, x, 6, 2, weight, bias, more, more, True, 0.0, out, None, attn_mask=hidden, key_padding_mask=padding
    )


def of_flash(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    more = {"window_size": (3, 1), "softcap": 1.5, "alibi_slopes": slopes}
    return flash_attention.flash_attn_func(q, k, v, **more, return_attn_probs=True)


def of_varlen(q: Any, k: Any, v: Any, of_q: Any, of_k: Any, slopes: Any) -> Any:
    return flash_attention.flash_attn_varlen_func(q, k, v, of_q, of_k, 3, 3, causal=True, alibi_slopes=slopes)


def of_cache(q: Any, k_cache: Any, v_cache: Any, k: Any, v: Any, lengths: Any, pad: Any, cos: Any, sin: Any) -> Any:
    more = {"cache_leftpad": pad, "rotary_cos": cos, "rotary_sin": sin, "return_softmax_lse": True}
    return flash_attention.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True, **more
    )


def of_pages(q: Any, k_cache: Any, v_cache: Any, k: Any, v: Any, lengths: Any, table: Any) -> Any:
    more = {"cache_seqlens": lengths, "block_table": table}
    return flash_attention.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, **more)[::2]


def of_onnx(q: Any, k: Any, v: Any, mask: Any, lengths: Any) -> Any:
    more = {"nonpad_kv_seqlen": lengths, "is_causal": 1, "left_window_size": 3, "qk_matmul_output_mode": 2}
    return onnx.Attention(q, k, v, mask, softcap=2.0, **more)


def of_past(q: Any, k: Any, v: Any, bias: Any, past_key: Any, past_value: Any) -> Any:
    heads = {"q_num_heads": 4, "kv_num_heads": 2, "qk_matmul_output_mode": 3}
    return onnx.Attention(q, k, v, bias, past_key, past_value, is_causal=1, **heads)


def of_sdpa(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return torch.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


def of_mlx(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return mlx.scaled_dot_product_attention(q, k, v, scale=0.5, mask=mask)


def of_sinks(q: Any, k: Any, v: Any, sinks: Any) -> Any:
    return mlx.scaled_dot_product_attention(q, k, v, scale=0.5, mask="causal", sinks=sinks)


PACKED = (real(6, 4, 6), real(7, 2, 6), real(7, 2, 5), integers(0, 2, 2, 5), integers(0, 3, 4, 6), real(3, 4))
MHA = (real(3, 2, 6), real(18, 6), real(18), ~np.tri(3, dtype=bool), booleans(2, 3), real(1, 1, 6), real(6, 6))
NEW = (real(2, 1, 2, 6), real(2, 1, 2, 6), integers(1, 3))
PAGES = (real(5, 2, 2, 6), real(5, 2, 2, 6))
JOINED = (real(2, 3, 24), real(2, 2, 12), real(2, 2, 10))

QUICK: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "jax_nn": (of_jax_nn, (*LENGTH_FIRST, real(2, 4, 3, 5), booleans(4, 3, 5), integers(2, 3), integers(0, 4))),
    "onnx": (of_onnx, (*HEADS_FIRST, booleans(2, 1, 3, 4), integers(4, 2))),
}
SLOW: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "torch.sdpa": (of_sdpa, (*HEADS_FIRST, booleans(3, 5))),
    "torch.mha": (of_mha, MHA),
    "flash": (of_flash, (*LENGTH_FIRST, real(2, 4))),
    "flash.cache": (of_cache, (*LENGTH_FIRST, *NEW, integers(0, 2), np.cos(ANGLES), np.sin(ANGLES))),
    "flash.varlen": (of_varlen, PACKED),
    "flash.pages": (of_pages, (LENGTH_FIRST[0], *PAGES, *NEW, integers((4, 0), (1, 3)))),
    "onnx.past": (of_past, (*JOINED, real(3, 4), real(2, 2, 2, 6), real(2, 2, 2, 5))),
    "mlx": (of_mlx, (*HEADS_FIRST, booleans(4, 3, 5))),
    "mlx.sinks": (of_sinks, (*HEADS_FIRST, real(4))),
}
CALLS = QUICK | SLOW


@EACH_ONCE
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_every_dialect(library: Library, name: str) -> None:
    call, arguments = CALLS[name]
    found, expected = library.call(call, *arguments), NUMPY.call(call, *arguments)
    if not isinstance(expected, tuple):
        found, expected = (found,), (expected,)
    for ours, theirs in zip(found, expected, strict=True):
        close(library.numpy(ours), theirs)


def test_dialects_are_importable_by_their_names() -> None:
    import attention_np.dialects.mlx
    from attention_np import dialects

    assert sorted(dialects.__all__) == ["flash_attention", "jax_nn", "mlx", "onnx", "torch"]
    assert dialects.mlx.scaled_dot_product_attention is mlx.scaled_dot_product_attention
    assert attention_np.dialects.mlx.scaled_dot_product_attention is mlx.scaled_dot_product_attention
