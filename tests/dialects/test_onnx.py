"""The ONNX dialect is the `onnx` package's reference evaluator, except where that differs from the operator's text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from attention_np.dialects.onnx import Attention
from tests.dialects.draws import Sizes, additive, boolean, close, lengths, normal, numbers, sizes

onnx = pytest.importorskip("onnx", reason="the peer is not installed; `pip install onnx` brings it")
reference = pytest.importorskip("onnx.reference", reason="the peer is not installed; `pip install onnx` brings it")

ORDER = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")
Call = dict[str, Any]


def evaluated(call: Call) -> list[np.ndarray]:
    """The outputs of a model of one node."""
    make = onnx.helper
    inputs = {name: call[name] for name in ORDER if call.get(name) is not None}
    attributes = {name: x for name, x in call.items() if name not in (*ORDER, "opset") and x is not None}
    node = make.make_node("Attention", [name if name in inputs else "" for name in ORDER], OUTPUTS, **attributes)
    types = {name: make.np_dtype_to_tensor_dtype(x.dtype) for name, x in inputs.items()}
    graph = make.make_graph(
        [node],
        "attention",
        [make.make_tensor_value_info(name, types[name], x.shape) for name, x in inputs.items()],
        [make.make_tensor_value_info(name, types["Q"], None) for name in OUTPUTS],
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", call["opset"])])
    return reference.ReferenceEvaluator(model).run(None, inputs)


@st.composite
def calls(draw: DrawFn) -> Call:
    """Any call that the three opsets allow and the evaluator computes by the operator's text."""
    n, rng = draw(sizes()), numbers(draw)
    dtype, opset = draw(st.sampled_from([np.float32, np.float64])), draw(st.sampled_from([23, 24, 25]))
    cache = draw(st.sampled_from(["none", "past", *(["lengths"] if opset > 23 else [])]))
    past = draw(st.integers(0, 3)) if cache == "past" else 0
    call = {
        **arrays(draw, rng, n, dtype),
        "is_causal": draw(st.integers(0, 1)),
        "qk_matmul_output_mode": draw(st.integers(0, 3)),
        "scale": draw(st.sampled_from([None, 0.0, 2.25])),
        "softcap": draw(st.sampled_from([0.0, 1.5])),
        "softmax_precision": draw(st.sampled_from([None, 11 if dtype is np.float64 else 1])),
        "opset": opset,
    }
    if opset == 25:
        call |= {name: draw(st.integers(-1, 3)) for name in ("left_window_size", "right_window_size")}
    if cache == "past":
        call |= {
            "past_key": normal(rng, dtype, n["B"], n["Hkv"], past, n["D"]),
            "past_value": normal(rng, dtype, n["B"], n["Hkv"], past, n["Dv"]),
        }
    if cache == "lengths":
        call["nonpad_kv_seqlen"] = lengths(draw, n["B"], n["Lk"], np.int64)
    full = (n["B"], n["Hq"], n["Lq"], past + n["Lk"])
    kind = draw(st.sampled_from(["none", "boolean", "additive"]))
    if kind != "none":
        call["attn_mask"] = mask(draw, rng, kind, dtype, full, call)
    return call


def arrays(draw: DrawFn, rng: Any, n: Sizes, dtype: Any) -> Call:
    """Q, K and V, of four axes or of three."""
    shapes = {"Q": ("Hq", "Lq", "D"), "K": ("Hkv", "Lk", "D"), "V": ("Hkv", "Lk", "Dv")}
    found = {name: normal(rng, dtype, n["B"], *(n[each] for each in shape)) for name, shape in shapes.items()}
    if draw(st.booleans()):
        return found
    joined = {name: x.swapaxes(1, 2).reshape(n["B"], x.shape[2], -1) for name, x in found.items()}
    return {**joined, "q_num_heads": n["Hq"], "kv_num_heads": n["Hkv"]}


def mask(draw: DrawFn, rng: Any, kind: str, dtype: Any, full: tuple[int, ...], call: Call) -> np.ndarray:
    """A mask, from opset 24 one that may be too short, though not beside lengths shorter than they."""
    found = boolean(draw, rng, full) if kind == "boolean" else additive(draw, rng, dtype, full)
    if needs_every_row(call):
        found = np.broadcast_to(found, np.broadcast_shapes(found.shape, (full[2], full[3]))).copy()
    if call["opset"] > 23:
        found = found[..., : draw(st.integers(1, full[3]))]
    return found


def needs_every_row(call: Call) -> bool:
    """The evaluator takes its number of queries from a mask beside `is_causal`, unless there is a window."""
    windows = (call.get(name, -1) for name in ("left_window_size", "right_window_size"))
    return bool(call["is_causal"]) and all(size == -1 for size in windows)


@given(calls())
def test_every_call_is_the_evaluators(call: Call) -> None:
    expected = evaluated(call)
    if call["qk_matmul_output_mode"] == 0:  # the evaluator caps these too
        expected[3] = evaluated({**call, "softcap": 0.0})[3]
    for ours, theirs in zip(Attention(**call), expected, strict=True):
        assert ours.dtype == theirs.dtype
        close(ours, theirs)


def plain(**more: Any) -> Call:
    rng = np.random.default_rng(0)
    shapes = {"Q": (1, 1, 3, 4), "K": (1, 1, 3, 4), "V": (1, 1, 3, 2)}
    return {**{name: rng.normal(size=shape) for name, shape in shapes.items()}, "opset": 25, **more}


def test_scores_of_mode_0_beside_a_soft_cap() -> None:
    """The text: "raw QK matmul result"; the evaluator gives those of mode 1, after the cap."""
    raw = evaluated(plain())[3]
    close(Attention(**plain(softcap=1.5)).qk_matmul_output, raw)
    close(evaluated(plain(softcap=1.5))[3], evaluated(plain(softcap=1.5, qk_matmul_output_mode=1))[3])
    assert not np.allclose(evaluated(plain(softcap=1.5))[3], raw)


def test_a_mask_for_all_queries_beside_is_causal() -> None:
    """The text: "broadcastable to (..., q_sequence_length, total)"; the evaluator gives every query the first one's."""
    seen = np.array([True, False, True])
    whole = plain(is_causal=1, attn_mask=np.broadcast_to(seen, (3, 3)))
    short = plain(is_causal=1, attn_mask=seen[None, :])
    expected = evaluated(whole)[0]
    close(Attention(**short).Y, expected)
    assert not np.allclose(evaluated(short)[0][0, 0, 2], expected[0, 0, 2])
    close(evaluated(short)[0][0, 0], np.broadcast_to(expected[0, 0, 0], (3, 2)))


def test_a_mask_of_one_axis_beside_is_causal() -> None:
    seen = np.array([True, False, True])
    expected = evaluated(plain(is_causal=1, attn_mask=np.broadcast_to(seen, (3, 3))))[0]
    close(Attention(**plain(is_causal=1, attn_mask=seen)).Y, expected)
    with pytest.raises(ValueError, match="not enough values to unpack"):
        evaluated(plain(is_causal=1, attn_mask=seen))


def test_a_negative_scale() -> None:
    """The text: "Scaling factor applied to Q*K^T"; the evaluator takes its square root, also of -0.25."""
    call = plain(scale=-0.25)
    with pytest.warns(RuntimeWarning, match="sqrt"):
        assert np.isnan(evaluated(call)[0]).all()
    close(Attention(**call).Y, evaluated({**call, "Q": -call["Q"], "scale": 0.25})[0])


def test_opset_23_broadcasts_a_mask_and_does_not_pad_it() -> None:
    """Its text has no padding; the evaluator pads in every opset."""
    seen = np.array([[True], [False], [True]])
    whole = np.broadcast_to(seen, (3, 3))
    close(Attention(**plain(opset=23, attn_mask=seen)).Y, evaluated(plain(opset=23, attn_mask=whole))[0])
    close(Attention(**plain(opset=24, attn_mask=seen)).Y, evaluated(plain(opset=24, attn_mask=seen))[0])
    with pytest.raises(ValueError, match="does not broadcast"):
        Attention(**plain(opset=23, attn_mask=whole[:, :2]))
    assert not np.allclose(
        evaluated(plain(opset=23, attn_mask=seen))[0], evaluated(plain(opset=23, attn_mask=whole))[0]
    )


def test_outputs_that_the_node_does_not_name_are_not_computed() -> None:
    call = plain(qk_matmul_output_mode=3)
    whole = Attention(**call)
    for count in range(1, 5):
        some = Attention(**call, outputs=count)
        assert [x is not None for x in some] == [index < count for index in range(4)]
        close(some.Y, whole.Y)


def test_Y_and_scores_have_the_dtype_of_Q() -> None:
    call = plain()
    mixed = {**call, "Q": call["Q"].astype(np.float32), "K": call["K"].astype(np.float32)}
    found = Attention(**mixed)
    assert (found.Y.dtype, found.qk_matmul_output.dtype) == (np.float32, np.float32)
    assert found.present_value.dtype == np.float64


WRONG = [
    ({"opset": 22}, ValueError, "`opset` must be 23, 24 or 25"),
    ({"opset": 23, "nonpad_kv_seqlen": np.array([2])}, ValueError, "came with opset 24"),
    ({"opset": 24, "left_window_size": 1}, ValueError, "came with opset 25"),
    ({"left_window_size": -2}, ValueError, "must be at least 0"),
    ({"q_num_heads": 1, "kv_num_heads": 1}, ValueError, "inputs of three axes; these have four"),
    ({"past_key": np.ones((1, 1, 2, 4))}, ValueError, "must be given together"),
    ({"past_value": np.ones((1, 1, 2, 2))}, ValueError, "must be given together"),
    ({"qk_matmul_output_mode": 4}, ValueError, "must be 0, 1, 2 or 3"),
    ({"softmax_precision": 7}, ValueError, "must be 1, 10, 11 or 16"),
    ({"softcap": -1.0}, ValueError, "`softcap` must be positive"),
    ({"attn_mask": np.ones((3, 3), np.int64)}, TypeError, "`bias` has dtype int64"),
    ({"attn_mask": "causal"}, TypeError, "`attn_mask` must be an array"),
    ({"Q": np.ones((1, 3, 4))}, ValueError, "must be"),
    ({"K": np.ones((1, 2, 3, 4)), "V": np.ones((1, 2, 3, 2))}, ValueError, "does not divide"),
]


@pytest.mark.parametrize(("change", "error", "words"), WRONG, ids=[", ".join(change) for change, _, _ in WRONG])
def test_a_wrong_call_says_what_is_wrong(change: Call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Attention(**plain(**change))


def test_wrong_calls_of_three_axes_and_of_caches() -> None:
    joined = {name: np.ones((1, 3, 4)) for name in ("Q", "K", "V")}
    with pytest.raises(ValueError, match="need `q_num_heads` and `kv_num_heads`"):
        Attention(**joined)
    with pytest.raises(ValueError, match="`Q` has a last axis of 4, which its 3 heads must divide"):
        Attention(**joined, q_num_heads=3, kv_num_heads=1)
    past = {"past_key": np.ones((1, 1, 2, 4)), "past_value": np.ones((1, 1, 2, 2))}
    with pytest.raises(ValueError, match="not with `past_key`"):
        Attention(**plain(**past, nonpad_kv_seqlen=np.array([2])))
    narrow = {name: np.ones((1, 1, 3, 4), np.float32) for name in ("Q", "K", "V")}
    with pytest.raises(NotImplementedError, match="needs inputs of float64"):
        Attention(**narrow, softmax_precision=11)
