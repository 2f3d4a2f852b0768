"""Wrong calls but those of masks and biases: shapes, dtypes, numbers, words, sinks, positions, dropout, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attention_core as core
from tests.core.wrong import DV, F32, HKV, HQ, I32, LK, LQ, Arrays, B, D, kind, value


def shapes(query: tuple[int, ...], key: tuple[int, ...], val: tuple[int, ...], **call: Any) -> Callable[[Arrays], Any]:
    return lambda a: core.dot_product_attention(a.zeros(*query), a.zeros(*key), a.zeros(*val), **call)


def dtypes(query: Any, key: Any = F32, val: Any = F32) -> Callable[[Arrays], Any]:
    def call(a: Arrays) -> Any:
        sizes = ((2, D), query), ((3, D), key), ((3, DV), val)
        return core.dot_product_attention(*(a.zeros(*shape, dtype=dtype) for shape, dtype in sizes))

    return call


def bfloat16() -> Any:
    return pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy needs `pip install ml_dtypes`").bfloat16


def beside_bfloat16(a: Arrays) -> Any:
    if a.library.name == "torch":
        half, brain = (a.library.xp.zeros((2, D), dtype=getattr(a.library.xp, n)) for n in ("float16", "bfloat16"))
        return core.dot_product_attention(half, brain, brain)
    return dtypes(np.float16, bfloat16(), bfloat16())(a)


ONLY_FULL = {"array_api_strict": "the standard has no 16-bit floating-point dtypes"}

SHAPES = [
    value("depths", shapes((LQ, 7), (LK, 6), (LK, 8)), "`key` has depth 6, but `query` has depth 7"),
    value("lengths", shapes((LQ, D), (LK, D), (LK + 1, DV)), "`value` has length 7, but `key` has length 6"),
    value("value heads", shapes((4, LQ, D), (2, LK, D), (4, LK, DV)), "`value` has 4 heads, but `key` has 2"),
    value(
        "head groups", shapes((8, LQ, D), (3, LK, D), (3, LK, DV)), "`key` has 3 heads", "divide the 8 heads of `query`"
    ),
    value(
        "fewer query heads", shapes((2, LQ, D), (4, LK, D), (4, LK, DV)), "`key` has 4 heads", "the 2 heads of `query`"
    ),
    value("no key heads", shapes((2, LQ, D), (0, LK, D), (0, LK, DV)), "`key` has 0 heads", "divide the 2 heads"),
    value(
        "batches",
        shapes((3, 1, LQ, D), (2, 1, LK, D), (2, 1, LK, DV)),
        "batch axes",
        "`query` (3,), `key` (2,), `value` (2,)",
    ),
    value("one axis", shapes((D,), (LK, D), (LK, DV)), "`query` must have at least the axes (L, D)", "(7,)"),
    value("no axes", shapes((LQ, D), (LK, D), ()), "`value` must have at least the axes (L, D)", "()"),
    value(
        "plain and heads",
        shapes((LQ, D), (2, LK, D), (2, LK, DV)),
        "all be plain (L, D)",
        "`query` (5, 7), `key` (2, 6, 7)",
    ),
    value(
        "layout swapped", shapes((LQ, 4, D), (LK, 4, D), (LK, 4, DV)), "`key` has 6 heads, which does not divide the 5"
    ),
    value("BLHD as BHLD", shapes((2, LQ, D), (2, LK, D), (2, LK, DV), layout="BLHD"), "`key` has 6 heads", "5 heads"),
]

DTYPES = [
    kind("integer query", dtypes(I32), "`query` has dtype int32", "cast it explicitly"),
    kind("integer value", dtypes(F32, F32, I32), "`value` has dtype int32", "float16, bfloat16, float32 or float64"),
    kind("boolean key", dtypes(F32, np.bool_), "`key` has dtype bool"),
    kind("unsigned query", dtypes(np.uint8), "`query` has dtype uint8"),
    kind("complex key", dtypes(F32, np.complex64), "`key` has dtype complex64"),
    kind(
        "float16 beside bfloat16",
        beside_bfloat16,
        "`query` is float16 but `value` is bfloat16",
        "cast one",
        **ONLY_FULL,
    ),
    kind("list", lambda a: core.dot_product_attention([[1.0]], *a.qkv[1:]), "`query` must be an array; got a list"),
    kind(
        "tuple",
        lambda a: core.dot_product_attention(a.qkv[0], ((1.0,),), a.qkv[2]),
        "`key` must be an array; got a tuple",
    ),
    kind("None", lambda a: core.dot_product_attention(*a.qkv[:2], None), "`value` must be an array; got None"),
    kind("number", lambda a: core.dot_product_attention(1.0, *a.qkv[1:]), "`query` must be an array; got a float"),
    kind("string", lambda a: core.dot_product_attention("q", *a.qkv[1:]), "`query` must be an array; got a str"),
    kind(
        "object", lambda a: core.dot_product_attention(object(), *a.qkv[1:]), "`query` must be an array; got an object"
    ),
]

NUMBERS = [
    kind("boolean scale", lambda a: a.attend(scale=True), "`scale` must be a Python number; got a bool"),
    kind(
        "array scale",
        lambda a: a.attend(scale=a.zeros()),
        "`scale` must",
        "an array of float32",
        "belongs into `query`",
    ),
    kind(
        "scale a head",
        lambda a: a.attend(scale=a.zeros(HQ)),
        "`scale` must be a Python number; got an array of float32",
    ),
    kind("scale a word", lambda a: a.attend(scale="sqrt"), "`scale` must be a Python number; got a str"),
    kind("complex scale", lambda a: a.attend(scale=1j), "`scale` must be a Python number; got a complex"),
    value("NaN scale", lambda a: a.attend(scale=float("nan")), "`scale` must be finite; got nan"),
    value("infinite scale", lambda a: a.attend(scale=float("-inf")), "`scale` must be finite; got -inf"),
    value("softcap 0", lambda a: a.attend(softcap=0.0), "`softcap` must be positive, and None means no cap; got 0.0"),
    value("softcap below 0", lambda a: a.attend(softcap=-5), "`softcap` must be positive", "got -5.0"),
    value("NaN softcap", lambda a: a.attend(softcap=float("nan")), "`softcap` must be finite; got nan"),
    value("infinite softcap", lambda a: a.attend(softcap=float("inf")), "`softcap` must be finite; got inf"),
    kind("boolean softcap", lambda a: a.attend(softcap=False), "`softcap` must be a Python number; got a bool"),
    kind(
        "array softcap",
        lambda a: a.attend(softcap=a.zeros()),
        "`softcap` must be a Python number; got an array of float32",
    ),
]

WORDS = [
    value("unknown layout", lambda a: a.attend(layout="LBHD"), '`layout` must be "BHLD" or "BLHD"; got \'LBHD\''),
    value("no layout", lambda a: a.attend(layout=None), '`layout` must be "BHLD" or "BLHD"; got None'),
    value("lower-case layout", lambda a: a.attend(layout="bhld"), "`layout` must be", "got 'bhld'"),
    value("unknown impl", lambda a: a.attend(impl="fast"), "`impl` must be one of auto, dense", "got 'fast'"),
    value("no impl", lambda a: a.attend(impl=None), "`impl` must be one of auto, dense", "got None"),
    value("impl of vjp", lambda a: core.vjp(*a.qkv, impl="fast"), "`impl` must be one of auto, dense", "got 'fast'"),
    value(
        "unknown stage",
        lambda a: core.attention_scores(*a.qkv[:2], stage="softmax"),
        "`stage` must be one of scaled, capped, biased, masked; got 'softmax'",
    ),
    value("no stage", lambda a: core.attention_scores(*a.qkv[:2], stage=None), "`stage` must be one of", "got None"),
]

SINKS = [
    value(
        "sinks for key heads", lambda a: a.attend(sinks=a.zeros(HKV)), "`sinks` has shape (2,); it must be (Hq,) = (4,)"
    ),
    value("one sink", lambda a: a.attend(sinks=a.zeros()), "`sinks` has shape (); it must be (Hq,) = (4,)"),
    value("sinks an item", lambda a: a.attend(sinks=a.zeros(B, HQ)), "`sinks` has shape (3, 4)"),
    kind(
        "integer sinks",
        lambda a: a.attend(sinks=a.zeros(HQ, dtype=I32)),
        "`sinks` has dtype int32",
        "real floating-point",
    ),
    kind("complex sinks", lambda a: a.attend(sinks=a.zeros(HQ, dtype=np.complex64)), "`sinks` has dtype complex64"),
    kind("list of sinks", lambda a: a.attend(sinks=[0.0] * HQ), "`sinks` must be an array; got a list"),
    kind("a number as sinks", lambda a: a.attend(sinks=0.0), "`sinks` must be an array; got a float"),
]

POSITIONS = [
    value(
        "positions of another length",
        lambda a: a.attend(query_positions=a.zeros(LK, dtype=I32)),
        "`query_positions` has shape (6,)",
        "(..., L) = (3, 5)",
    ),
    value(
        "one position a key", lambda a: a.attend(key_positions=a.zeros(1, dtype=I32)), "`key_positions` has shape (1,)"
    ),
    value(
        "positions of another batch",
        lambda a: a.attend(key_positions=a.zeros(2, LK, dtype=I32)),
        "`key_positions` has shape (2, 6)",
        "(..., L) = (3, 6)",
    ),
    kind(
        "float positions",
        lambda a: a.attend(query_positions=a.zeros(LQ)),
        "`query_positions` must be an integer",
        "an array of float32",
    ),
    kind(
        "list of positions", lambda a: a.attend(query_positions=[0, 1, 2, 3, 4]), "`query_positions` must", "got a list"
    ),
    kind("boolean position", lambda a: a.attend(key_positions=False), "`key_positions` must", "got a bool"),
    kind("no positions", lambda a: a.attend(query_positions=None), "`query_positions` must", "got None"),
    value(
        "positions too far",
        lambda a: a.attend(query_positions=2**31),
        "`query_positions` must lie within 1073741824 of 0",
        "got 2147483648",
    ),
    value(
        "keys too far", lambda a: a.attend(key_positions=-(2**40)), "`key_positions` must lie within 1073741824 of 0"
    ),
    value(
        "the last too far",
        lambda a: a.attend(key_positions=2**30 - LK + 1),
        "`key_positions` must lie within 1073741824",
    ),
]

DROPOUT = [
    kind(
        "rate as dropout",
        lambda a: a.attend(dropout=0.5),
        "`dropout` must be a value made by dropout(...), or None; got a float",
    ),
    value(
        "rate 1",
        lambda a: a.attend(dropout=core.dropout(1.0, keep=a.zeros(LK, dtype=bool))),
        "`rate` must be at least 0 and below 1",
    ),
    value(
        "negative rate",
        lambda a: a.attend(dropout=core.dropout(-0.1, keep=a.zeros(LK, dtype=bool))),
        "`rate`",
        "got -0.1",
    ),
    value(
        "NaN rate",
        lambda a: a.attend(dropout=core.dropout(float("nan"), keep=a.zeros(LK, dtype=bool))),
        "`rate`",
        "got nan",
    ),
    kind(
        "boolean rate",
        lambda a: a.attend(dropout=core.dropout(True, keep=a.zeros(LK, dtype=bool))),
        "`rate`",
        "got a bool",
    ),
    kind(
        "array rate",
        lambda a: a.attend(dropout=core.dropout(a.zeros(), keep=a.zeros(LK, dtype=bool))),
        "`rate`",
        "an array of float32",
    ),
    kind(
        "float keep",
        lambda a: a.attend(dropout=core.dropout(0.5, keep=a.zeros(LK))),
        "`keep` must be a boolean array",
        "float32",
    ),
    value(
        "keep transposed",
        lambda a: a.attend(dropout=core.dropout(0.5, keep=a.zeros(LK, LQ, dtype=bool))),
        "`keep` has shape (6, 5)",
    ),
]

CALLS = [
    kind("vjp returns lse anyway", lambda a: core.vjp(*a.qkv, return_lse=True), "vjp takes no `return_lse`"),
    kind("scores of no sinks", lambda a: core.attention_scores(a.qkv[0], a.qkv[1], sinks=a.zeros(HQ)), "no `sinks`"),
    kind("unknown word", lambda a: core.which_kernel(*a.qkv, causal=True), "which_kernel takes no `causal`", "mask"),
    value(
        "cotangent of a wrong shape",
        lambda a: core.vjp(*a.qkv)[1](a.zeros(B, HQ, LQ, D)),
        "`out_cotangent` must have shape",
        "got shape (3, 4, 5, 7)",
        "(3, 4, 5, 8)",
    ),
    value(
        "lse cotangent of a wrong shape",
        lambda a: core.vjp(*a.qkv)[1](a.zeros(B, HQ, LQ, DV), a.zeros(B, HQ)),
        "`lse_cotangent` must have shape",
        "got shape (3, 4)",
        "(3, 4, 5)",
    ),
    value(
        "tangent of a wrong shape",
        lambda a: core.jvp(*a.qkv, core.Gradients(None, a.zeros(B, HKV, LQ, D), None)),
        "`tangents.key` must have shape",
        "got shape (3, 2, 5, 7)",
    ),
    value(
        "tangent of no bias",
        lambda a: core.jvp(*a.qkv, core.Gradients(None, None, None, bias=a.zeros(LQ, LK))),
        "`tangents.bias` was given, but the call has no `bias`",
    ),
    value("nothing to merge", lambda a: core.merge([], []), "`outs` and `lses`", "got 0 and 0"),
    value("parts that do not pair", lambda a: core.merge([a.zeros(LQ, DV)], []), "`outs` and `lses`", "got 1 and 0"),
    value("lse of another part", lambda a: core.merge([a.zeros(LQ, DV)], [a.zeros(LK)]), "`lses[0]` has shape (6,)"),
    kind(
        "scores of integers",
        lambda a: core.attention_scores(a.zeros(LQ, D, dtype=I32), a.zeros(LK, D)),
        "`query` has dtype int32",
    ),
    kind("kernel of a list", lambda a: core.which_kernel([1.0], *a.qkv[1:]), "`query` must be an array; got a list"),
]

TABLE_OF_CALLS = [*SHAPES, *DTYPES, *NUMBERS, *WORDS, *SINKS, *POSITIONS, *DROPOUT, *CALLS]
