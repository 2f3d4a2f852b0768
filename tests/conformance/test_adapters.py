"""Adapters translate a case into the peer's own call: what they pass, where the peer differs, what it lacks."""

import importlib.util

import numpy as np
import pytest

from conformance import adapters
from conformance.adapters.question import Question, and_parts
from conformance.format import read_groups
from conformance.runner import ask
from tests.conformance.made import arrays, made

TORCH = ("torch.sdpa-math", "torch.sdpa-flash", "torch.flex", "torch.mha", "array-api-torch")
NEEDS = {"onnx": "onnx", "jax.nn": "jax", "array-api-strict": "array_api_strict"} | dict.fromkeys(TORCH, "torch")
SLOW = ("torch.flex",)  # they trace or compile each call anew
NAMES = (
    "numpy",
    "array-api-strict",
    "onnx",
    pytest.param("jax.nn", marks=pytest.mark.slow),
    *(pytest.param(n, marks=[pytest.mark.torch, *[pytest.mark.slow] * (n in SLOW)]) for n in TORCH),
)
SECOND_ROW_EMPTY = np.array([[True] * 7, [False] * 7, [True, False] * 3 + [False]])
BIAS = (np.arange(4 * 3 * 7).reshape(4, 3, 7) % 5 / 4 - 0.5).astype(np.float32)
FOUR_HEADS = arrays(key_heads=4)
SINKS = np.array([0.5, -1.0, 2.0, 0.0], np.float32)


def heads_last(inputs):
    return {name: np.swapaxes(array, -2, -3).copy() for name, array in inputs.items()}


CASES = {
    "plain": {"inputs": FOUR_HEADS},
    "one head": {"inputs": arrays((3, 5))},
    "grouped": {},
    "two batch axes": {"inputs": arrays((2, 3, 4, 2, 5), key_heads=4, keys=3)},
    "BLHD": {"inputs": heads_last(FOUR_HEADS), "layout": "BLHD"},
    "value depth": {"inputs": arrays(key_heads=4, value_depth=6)},
    "causal": {"inputs": FOUR_HEADS, "mask": {"rule": "causal"}},
    "offset": {"inputs": FOUR_HEADS, "mask": {"rule": "causal"}, "query_positions": 4},
    "lower right": {"inputs": FOUR_HEADS, "mask": {"rule": "causal_lower_right"}},
    "window": {"inputs": FOUR_HEADS, "mask": {"rule": "sliding_window", "left": 1, "right": None}},
    "lengths": {"inputs": FOUR_HEADS, "mask": {"rule": "key_lengths", "lengths": [3, 6]}},
    "query lengths": {"inputs": FOUR_HEADS, "mask": {"rule": "query_lengths", "lengths": [2, 3]}},
    "segments": {
        "inputs": FOUR_HEADS,
        "mask": {"rule": "segments", "query_ids": [0, 1, 1], "key_ids": [0] * 4 + [1] * 3},
    },
    "both masks": {
        "inputs": FOUR_HEADS,
        "mask": {"rule": "and", "of": [{"rule": "causal"}, {"rule": "not", "of": [{"rule": "prefix", "length": 0}]}]},
    },
    "empty row": {"inputs": {**FOUR_HEADS, "mask": SECOND_ROW_EMPTY}, "mask": {"rule": "dense"}},
    "bias": {"inputs": {**FOUR_HEADS, "bias": BIAS}, "bias": {"rule": "dense"}},
    "mask and bias": {
        "inputs": {**FOUR_HEADS, "bias": BIAS, "mask": SECOND_ROW_EMPTY[:, ::-1].copy()},
        "bias": {"rule": "dense"},
        "mask": {"rule": "dense"},
    },
    "two biases": {
        "inputs": {**FOUR_HEADS, "bias": BIAS},
        "bias": {"rule": "sum", "of": [{"rule": "dense"}, {"rule": "alibi", "slopes": 4}]},
    },
    "cap": {"inputs": {**FOUR_HEADS, "bias": BIAS}, "bias": {"rule": "dense"}, "softcap": 2.0},
    "sinks": {"inputs": {**FOUR_HEADS, "sinks": SINKS}, "sinks": "sinks"},
    "scale": {"inputs": FOUR_HEADS, "scale": 0.25},
}
# What passes for everybody is not listed; the rest: `fail` with the output that differs, or part of the refusal.
NO_CAP, NO_SINKS = "no `softcap` in its documented call", "no `sinks` in its documented call"
DIFFERENT = {
    "jax.nn": {
        "query lengths": ("lse", -np.inf),
        "empty row": ("lse", -np.inf),
        "mask and bias": ("lse", -np.inf),
        "cap": NO_CAP,
        "sinks": NO_SINKS,
    },
    # qk_matmul_output_mode 0 shows capped scores where there is a cap.
    # A mask of one row beside is_causal is taken for a call of one query: every row gets the first row's triangle.
    "onnx": {"both masks": ("stage.masked", None), "cap": ("stage.scaled", None), "sinks": NO_SINKS},
    "torch.sdpa-math": {"cap": NO_CAP, "sinks": NO_SINKS},
    "torch.sdpa-flash": {
        "cap": NO_CAP,
        "sinks": NO_SINKS,
    },
    "torch.flex": {"sinks": NO_SINKS},
    "torch.mha": {
        "grouped": "embed_dim will be split across num_heads",
        "value depth": "embed_dim will be split across num_heads",
        "query lengths": ("out", 0.0),
        "empty row": ("out", 0.0),
        "mask and bias": ("out", 0.0),
        "cap": NO_CAP,
        "sinks": NO_SINKS,
        "scale": "no `scale` in its documented call",
    },
}


def adapter_of(name):
    need = NEEDS.get(name)
    if need and importlib.util.find_spec(need) is None:
        pytest.skip(f"{name} needs {need}")
    return adapters.load(name)


@pytest.mark.parametrize("name", NAMES)
def test_each_case_reaches_the_peers_own_call(name):
    adapter = adapter_of(name)
    for label, arguments in CASES.items():
        group, case = made(**arguments)
        row = ask(group, case, adapter, "float32")
        expected = DIFFERENT.get(name, {}).get(label)
        if expected is None:
            assert row.status == "pass", (label, row.note, row.verdict)
        elif isinstance(expected, str):
            assert (row.status, expected in row.note) == ("unsupported", True), (label, row.note)
        else:
            assert (row.status, row.verdict.worst.name) == ("fail", expected[0]), (label, row)


@pytest.mark.parametrize("name", NAMES)
def test_sixteen_bits_reach_the_peer_or_it_says_why_not(name):
    adapter = adapter_of(name)
    group, case = made(inputs=FOUR_HEADS, dtypes=("float16", "bfloat16"), outputs=("out",))
    rows = [ask(group, case, adapter, dtype) for dtype in case.dtypes]
    if name == "array-api-strict":
        assert {row.note for row in rows} == {"the Array API standard's real dtypes are float32 and float64"}
    else:
        assert [row.status for row in rows] == ["pass", "pass"], rows
        assert [row.answer["out"].dtype.name for row in rows] == ["float16", "bfloat16"]


@pytest.mark.slow
def test_jax_nn_computes_float64_in_float32():
    group, case = made(inputs=FOUR_HEADS)
    row = ask(group, case, adapter_of("jax.nn"), "float64")
    assert row.status == "fail"
    assert 1e-9 < row.verdict.worst.error < 1e-6


@pytest.mark.torch
def test_flex_says_in_its_own_words_that_it_has_no_gradient_here():
    group, case = made(inputs=FOUR_HEADS)
    case = type(case)(**{**vars(case), "expected": {**case.expected, "gradient.query": case.expected["out"]}})
    row = ask(group, case, adapter_of("torch.flex"), "float32")
    assert row.status == "pass"
    assert "does not support backward on CPU" in row.lacking["gradient.query"]


@pytest.mark.slow
@pytest.mark.torch
def test_flex_without_queries_returns_no_lse_and_without_keys_raises():
    cases = {case.id: (group, case) for group in read_groups(names=["sizes"]) for case in group.cases}
    row = ask(*cases["sizes-no-queries"], adapter_of("torch.flex"), "float32")
    assert (row.status, row.lacking["lse"]) == ("pass", "flex_attention returned no lse")
    row = ask(*cases["sizes-no-keys"], adapter_of("torch.flex"), "float32")
    assert (row.status, row.note[:11]) == ("error", "IndexError:")


@pytest.mark.parametrize("name", NAMES)
def test_layers_and_wrong_calls_are_not_put_to_peers(name):
    adapter = adapter_of(name)
    _, case = made(inputs=FOUR_HEADS)
    ours = name in ("numpy", "array-api-strict", "array-api-torch")
    assert (adapter.supports(type(case)(**{**vars(case), "valid": False})) == "") is ours
    assert (adapter.supports(type(case)(**{**vars(case), "op": "SelfAttention"})) == "") is ours


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("jax.nn", "value shape should be", marks=pytest.mark.slow),
        pytest.param("torch.sdpa-flash", "requires q,k,v to have the same last dimension", marks=pytest.mark.torch),
        pytest.param("torch.mha", "embed_dim will be split across num_heads", marks=pytest.mark.torch),
    ],
)
def test_depths_are_padded_except_where_they_are_the_question(name, words):
    adapter = adapter_of(name)
    group, case = made(inputs=arrays(key_heads=4, value_depth=3), outputs=("out",))
    assert ask(group, case, adapter, "float32").status == "pass"
    asked = ask(group, type(case)(**{**vars(case), "group": "depth"}), adapter, "float32")
    assert (asked.status, words in asked.note) == ("unsupported", True), asked.note


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("torch.sdpa-math", marks=pytest.mark.torch),
        pytest.param("torch.mha", marks=pytest.mark.torch),
        pytest.param("jax.nn", marks=pytest.mark.slow),
    ],
)
def test_gradients_reach_what_a_bias_is_made_of(name):
    adapter = adapter_of(name)
    cases = {
        case.id: (group, case) for group in read_groups(names=["bias", "alibi", "relative"]) for case in group.cases
    }
    for case_id, part in {"bias-sum": "bias", "alibi-gradient": "slopes", "relative-encoder": "bias_table"}.items():
        row = ask(*cases[case_id], adapter, "float32")
        assert row.status == "pass", (row.note, row.verdict)
        assert f"gradient.{part}" in row.answer


@pytest.mark.slow
def test_jax_nn_says_what_it_refuses_to_compile():
    cases = {case.id: (group, case) for group in read_groups(names=["sizes"]) for case in group.cases}
    row = ask(*cases["sizes-one-of-all"], adapter_of("jax.nn"), "bfloat16")
    assert (row.status, row.note[:16]) == ("unsupported", "JaxRuntimeError:")


def test_masks_split_into_arguments_and_a_table():
    both = {
        "rule": "and",
        "of": [{"rule": "causal"}, {"rule": "key_lengths", "lengths": 2}, {"rule": "prefix", "length": 1}],
    }
    _, case = made(mask=both)
    assert [part["rule"] for part in and_parts(both)] == ["causal", "key_lengths", "prefix"]
    native, table = Question(case, case.inputs, np).mask(("causal", "key_lengths"))
    assert set(native) == {"causal", "key_lengths"}
    assert table.shape == (1, 1, 1, 7)
    assert table[0, 0, 0].tolist() == [True] + [False] * 6


def test_positions_leave_nothing_to_a_peer_that_has_none():
    _, case = made(mask={"rule": "causal"}, query_positions=4)
    native, table = Question(case, case.inputs, np).mask(("causal",))
    assert native == {}
    assert table[0, 0].sum(axis=-1).tolist() == [5, 6, 7]
