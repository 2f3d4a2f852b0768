"""Wrong masks and biases, as rows of the table of wrong calls."""

from __future__ import annotations

import numpy as np

import attention_core as core
from attention_core import biases, masks
from tests.core.wrong import HKV, HQ, I32, LK, LQ, B, D, kind, value

MASKS = [
    kind(
        "float mask",
        lambda a: a.attend(mask=a.zeros(LQ, LK)),
        "`mask` must be a mask or a boolean array, True = may attend",
        "an array of float32: numbers are a `bias`",
    ),
    kind("integer mask", lambda a: a.attend(mask=a.zeros(LQ, LK, dtype=I32)), "`mask` must", "an array of int32"),
    kind("list as mask", lambda a: a.attend(mask=[[True]]), "`mask` must be a mask or a boolean array", "got a list"),
    kind("word as mask", lambda a: a.attend(mask="causal"), "`mask` must be a mask or a boolean array", "got a str"),
    kind("True as mask", lambda a: a.attend(mask=True), "`mask` must be a mask or a boolean array", "got a bool"),
    kind(
        "bias as mask",
        lambda a: a.attend(mask=biases.alibi(HQ)),
        "`mask` must be a mask or a boolean array",
        "got an Alibi",
    ),
    kind(
        "factory as mask",
        lambda a: a.attend(mask=masks.causal),
        "`mask` must be a mask or a boolean array",
        "got a function",
    ),
    value(
        "mask per key heads",
        lambda a: a.attend(mask=a.zeros(HKV, LQ, LK, dtype=bool)),
        "`mask` has shape (2, 5, 6)",
        "does not broadcast to (..., Hq, Lq, Lk) = (3, 4, 5, 6)",
    ),
    value("mask transposed", lambda a: a.attend(mask=a.zeros(LK, LQ, dtype=bool)), "`mask` has shape (6, 5)"),
    value(
        "mask of more axes",
        lambda a: a.attend(mask=a.zeros(2, B, HQ, LQ, LK, dtype=bool)),
        "`mask` has shape (2, 3, 4, 5, 6)",
    ),
    value(
        "mask widens the batch",
        lambda a: core.dot_product_attention(
            a.zeros(LQ, D), a.zeros(LK, D), a.zeros(LK, D), mask=a.zeros(2, LQ, LK, dtype=bool)
        ),
        "`mask` has shape (2, 5, 6)",
        "= (1, 5, 6)",
    ),
    value("negative window", lambda a: a.attend(mask=masks.sliding_window(-1, 0)), "`left` must be at least 0; got -1"),
    value(
        "negative right", lambda a: a.attend(mask=masks.sliding_window(None, -2)), "`right` must be at least 0; got -2"
    ),
    kind(
        "boolean window",
        lambda a: a.attend(mask=masks.sliding_window(True, 0)),
        "`left` must be a Python integer; got a bool",
    ),
    kind(
        "float window",
        lambda a: a.attend(mask=masks.sliding_window(3.0, 0)),
        "`left` must be a Python integer; got a float",
    ),
    kind(
        "array window",
        lambda a: a.attend(mask=masks.sliding_window(a.zeros(dtype=I32), 0)),
        "`left`",
        "an array of int32",
    ),
    value("chunks of 0", lambda a: a.attend(mask=masks.chunked(0)), "`size` must be at least 1; got 0"),
    value("dilation of 0", lambda a: a.attend(mask=masks.dilated(0)), "`step` must be at least 1; got 0"),
    value(
        "fewer than no globals", lambda a: a.attend(mask=masks.global_tokens(-1)), "`count` must be at least 0; got -1"
    ),
    kind("boolean chunk", lambda a: a.attend(mask=masks.chunked(True)), "`size` must be a Python integer; got a bool"),
    kind(
        "float lengths",
        lambda a: a.attend(mask=masks.key_lengths(a.zeros(B))),
        "`lengths` must be an integer or an integer array",
        "an array of float32",
    ),
    kind("list of lengths", lambda a: a.attend(mask=masks.query_lengths([1, 2, 3])), "`lengths` must", "got a list"),
    kind("boolean length", lambda a: a.attend(mask=masks.key_lengths(True)), "`lengths` must", "got a bool"),
    kind(
        "no prefix",
        lambda a: a.attend(mask=masks.prefix(None)),
        "`length` must be an integer or an integer array; got None",
    ),
    value(
        "lengths of another batch",
        lambda a: a.attend(mask=masks.key_lengths(a.zeros(2, dtype=I32))),
        "`lengths` of `key_lengths` has shape (2,)",
        "(...) = (3,)",
    ),
    value(
        "query lengths of another batch",
        lambda a: a.attend(mask=masks.query_lengths(a.zeros(1, B, dtype=I32))),
        "`lengths` of `query_lengths` has shape (1, 3)",
        "(...) = (3,)",
    ),
    value(
        "prefix of another batch",
        lambda a: a.attend(mask=~masks.prefix(a.zeros(4, dtype=I32)) | masks.causal()),
        "`length` of `prefix` has shape (4,)",
        "(...) = (3,)",
    ),
    value(
        "segments without key ids",
        lambda a: a.attend(mask=masks.segments(a.zeros(B, LQ, dtype=I32))),
        "segments needs `key_ids`",
        "queries, 5",
        "keys, 6",
    ),
    value(
        "query ids too short",
        lambda a: a.attend(mask=masks.segments(a.zeros(1, dtype=I32), a.zeros(LK, dtype=I32))),
        "`query_ids` has shape (1,)",
        "(..., Lq) = (3, 5)",
    ),
    value(
        "key ids too long",
        lambda a: a.attend(mask=masks.segments(a.zeros(LQ, dtype=I32), a.zeros(2, LK, dtype=I32))),
        "`key_ids` has shape (2, 6)",
        "(..., Lk) = (3, 6)",
    ),
    kind("float ids", lambda a: a.attend(mask=masks.segments(a.zeros(LQ))), "`query_ids` must", "an array of float32"),
    kind(
        "one id",
        lambda a: a.attend(mask=masks.segments(3)),
        "`query_ids` must be an integer array (..., L)",
        "a single integer",
    ),
    kind(
        "0-d ids",
        lambda a: a.attend(mask=masks.segments(a.zeros(LQ, dtype=I32), a.zeros(dtype=I32))),
        "`key_ids` must be",
        "a single integer",
    ),
    kind("no function", lambda a: a.attend(mask=masks.rule(3)), "`fn` must be a function of index arrays; got an int"),
    kind(
        "rule of numbers",
        lambda a: a.attend(mask=masks.rule(lambda b, h, i, j: i + j)),
        "the function of masks.rule must return booleans",
        "returned an array of int",
    ),
    value(
        "rule of a wrong shape",
        lambda a: a.attend(mask=masks.rule(lambda b, h, i, j: (i >= j)[:, :2])),
        "must return booleans that broadcast to (3, 4, 5, 6)",
        "returned shape (5, 2)",
    ),
    value(
        "lower right beside positions",
        lambda a: a.attend(mask=masks.causal_lower_right(), query_positions=2),
        "`query_positions` was given, but causal_lower_right()",
    ),
]

BIASES = [
    kind(
        "boolean bias",
        lambda a: a.attend(bias=a.zeros(LQ, LK, dtype=bool)),
        "`bias` is a boolean array: booleans are a `mask`",
    ),
    kind(
        "integer bias",
        lambda a: a.attend(bias=a.zeros(LQ, LK, dtype=I32)),
        "`bias` has dtype int32",
        "real floating-point",
    ),
    kind("complex bias", lambda a: a.attend(bias=a.zeros(LQ, LK, dtype=np.complex64)), "`bias` has dtype complex64"),
    kind("list as bias", lambda a: a.attend(bias=[[0.0]]), "`bias` must be a bias or a real array; got a list"),
    kind("number as bias", lambda a: a.attend(bias=0.5), "`bias` must be a bias or a real array; got a float"),
    kind(
        "mask as bias",
        lambda a: a.attend(bias=masks.causal()),
        "`bias` must be a bias or a real array; got a SlidingWindow",
    ),
    value("bias transposed", lambda a: a.attend(bias=a.zeros(LK, LQ)), "`bias` has shape (6, 5)", "= (3, 4, 5, 6)"),
    value("bias per key heads", lambda a: a.attend(bias=a.zeros(HKV, 1, LK)), "`bias` has shape (2, 1, 6)"),
    value(
        "alibi of other heads",
        lambda a: a.attend(bias=biases.alibi(HKV)),
        "`bias` is alibi with slopes for 2 heads",
        "`query` has 4 heads",
    ),
    value(
        "slopes of other heads",
        lambda a: a.attend(bias=biases.alibi(a.zeros(3))),
        "`bias` is alibi with slopes for 3 heads",
        "`query` has 4 heads",
    ),
    value(
        "slopes of two axes",
        lambda a: a.attend(bias=biases.alibi(a.zeros(HQ, 1))),
        "`slopes` must have shape (Hq,); got (4, 1)",
    ),
    kind(
        "integer slopes",
        lambda a: a.attend(bias=biases.alibi(a.zeros(HQ, dtype=I32))),
        "`slopes` must be a real array",
        "int32",
    ),
    kind(
        "slopes in a list",
        lambda a: a.attend(bias=biases.alibi([1.0] * HQ)),
        "`slopes` must be a real array (Hq,); got a list",
    ),
    kind(
        "boolean heads", lambda a: a.attend(bias=biases.alibi(True)), "`slopes` must be a real array (Hq,); got a bool"
    ),
    value("negative heads", lambda a: a.attend(bias=biases.alibi(-1)), "`num_heads` must be at least 0; got -1"),
    value(
        "table of other heads",
        lambda a: a.attend(bias=biases.relative(a.zeros(32, 2))),
        "a table for 2 heads",
        "4 heads",
    ),
    value(
        "table transposed", lambda a: a.attend(bias=biases.relative(a.zeros(HQ, 32))), "a table for 32 heads", "4 heads"
    ),
    value(
        "table of three axes",
        lambda a: a.attend(bias=biases.relative(a.zeros(1, 32, HQ))),
        "`table` must have shape (buckets, Hq)",
    ),
    value(
        "odd buckets",
        lambda a: a.attend(bias=biases.relative(a.zeros(31, HQ))),
        "`table` has 31 buckets",
        "even number",
    ),
    value(
        "few buckets",
        lambda a: a.attend(bias=biases.relative(a.zeros(1, HQ), bidirectional=False)),
        "`table` has 1 buckets",
    ),
    value(
        "near distance",
        lambda a: a.attend(bias=biases.relative(a.zeros(32, HQ), max_distance=8)),
        "`max_distance` must be at least 9; got 8",
    ),
    kind(
        "float distance",
        lambda a: a.attend(bias=biases.relative(a.zeros(32, HQ), max_distance=128.0)),
        "`max_distance` must be a Python integer; got a float",
    ),
    kind(
        "direction as number",
        lambda a: a.attend(bias=biases.relative(a.zeros(32, HQ), bidirectional=1)),
        "`bidirectional` must be True or False; got an int",
    ),
    kind(
        "integer table",
        lambda a: a.attend(bias=biases.relative(a.zeros(32, HQ, dtype=I32))),
        "`table` must be a real array",
        "int32",
    ),
    kind(
        "no bias function",
        lambda a: a.attend(bias=biases.rule(None)),
        "`fn` must be a function of index arrays; got None",
    ),
    kind(
        "no vjp function",
        lambda a: a.attend(bias=biases.rule(len, vjp=3)),
        "`vjp` must be a function of index arrays; got an int",
    ),
    kind(
        "bias rule of booleans",
        lambda a: a.attend(bias=biases.rule(lambda b, h, i, j: i > j)),
        "must return real numbers",
        "returned an array of bool",
    ),
    value("part of a sum", lambda a: a.attend(bias=biases.alibi(HQ) + a.zeros(LK, LQ)), "`bias` has shape (6, 5)"),
]
