"""The PyTorch dialect is PyTorch, except where that differs from its own documentation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from attention_np.dialects.torch import multi_head_attention_forward, scaled_dot_product_attention
from tests.dialects.draws import additive, boolean, close, normal, numbers, sizes

pytestmark = pytest.mark.torch

Call = dict[str, Any]


def functional() -> Any:
    import torch

    return torch.nn.functional


def tensors(call: Call) -> Call:
    import torch

    return {name: torch.tensor(x) if isinstance(x, np.ndarray) else x for name, x in call.items()}


@st.composite
def sdpa_calls(draw: DrawFn) -> Call:
    """Any documented call without dropout, but for a causal scale of 0 or less, of which there is a test below."""
    n, rng = draw(sizes()), numbers(draw)
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    gqa = draw(st.booleans())
    batch = (2, n["B"])[: draw(st.integers(0, 2))]
    heads = {"query": n["Hq"], "key": n["Hkv"] if gqa else n["Hq"], "value": n["Hkv"] if gqa else n["Hq"]}
    axes = {"query": ("Lq", "D"), "key": ("Lk", "D"), "value": ("Lk", "Dv")}
    shapes = {name: (*batch, heads[name], *(n[each] for each in axes[name])) for name in axes}
    call = {name: normal(rng, dtype, *shape) for name, shape in shapes.items()}
    kind = draw(st.sampled_from(["none", "causal", "boolean", "additive"]))
    full = (*batch, n["Hq"], n["Lq"], n["Lk"])
    call["is_causal"] = kind == "causal"
    if kind == "boolean":
        call["attn_mask"] = boolean(draw, rng, full)
    if kind == "additive":
        call["attn_mask"] = additive(draw, rng, dtype, full)
    scale = draw(st.sampled_from([None, 0.7] if kind == "causal" else [None, 0.0, 0.7, -0.7]))
    return {**call, "scale": scale, "enable_gqa": gqa}


@settings(max_examples=30)
@given(sdpa_calls())
def test_every_call_of_sdpa(call: Call) -> None:
    expected = functional().scaled_dot_product_attention(**tensors(call))
    found = scaled_dot_product_attention(**call)
    assert str(expected.dtype) == f"torch.{found.dtype}"
    close(found, expected)


def test_sdpa_of_tensors_and_of_plain_arrays() -> None:
    import torch

    rng = np.random.default_rng(0)
    call = {"query": rng.normal(size=(3, 5)), "key": rng.normal(size=(4, 5)), "value": rng.normal(size=(4, 2))}
    expected = functional().scaled_dot_product_attention(**tensors(call), is_causal=True)
    found = scaled_dot_product_attention(**tensors(call), is_causal=True)
    assert isinstance(found, torch.Tensor)
    close(found, expected)


@pytest.mark.parametrize("scale", [0.0, -0.7])
def test_a_causal_scale_that_is_not_positive(scale: float) -> None:
    """The documentation: "scaling factor applied prior to softmax"; 2.13's flash kernel for CPUs gives NaN."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    x = np.random.default_rng(0).normal(size=(1, 2, 3, 5)).astype(np.float32)
    call: Call = {"query": x, "key": x, "value": x, "is_causal": True, "scale": scale}
    with sdpa_kernel(SDPBackend.MATH):
        close(scaled_dot_product_attention(**call), functional().scaled_dot_product_attention(**tensors(call)))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert functional().scaled_dot_product_attention(**tensors(call)).isnan().any()


@pytest.mark.parametrize("name", ["causal_upper_left", "causal_lower_right"])
def test_a_causal_bias_is_read_by_its_variant(name: str) -> None:
    import torch
    from torch.nn.attention import bias

    rng = np.random.default_rng(0)
    arrays = [torch.tensor(rng.normal(size=(1, 2, length, 5))) for length in (3, 6, 6)]
    mask = getattr(bias, name)(3, 6)
    close(scaled_dot_product_attention(*arrays, mask), functional().scaled_dot_product_attention(*arrays, mask))
    with pytest.raises(ValueError, match=r"lengths \(3, 6\), but those of the call are \(3, 3\)"):
        scaled_dot_product_attention(arrays[0], arrays[0], arrays[0], mask)


def ones(**more: Any) -> Call:
    shapes = {"query": (4, 3, 5), "key": (2, 6, 5), "value": (2, 6, 5)}
    return {**{name: np.ones(shape) for name, shape in shapes.items()}, "enable_gqa": True, **more}


def test_attn_mask_beside_is_causal() -> None:
    """The documentation: "an error is thrown if both attn_mask and is_causal are set"; 2.13's CPU kernel has none."""
    x = np.ones((1, 2, 3, 5), np.float32)
    call: Call = {"query": x, "key": x, "value": x, "attn_mask": np.ones((3, 3), bool), "is_causal": True}
    with pytest.raises(ValueError, match="exclude each other"):
        scaled_dot_product_attention(**call)
    assert functional().scaled_dot_product_attention(**tensors(call)).shape == x.shape


def test_heads_of_key_and_value_that_differ() -> None:
    """The documentation: "number_of_heads_key == number_of_heads_value"; 2.13 does not ask for it."""
    call = ones(value=np.ones((1, 6, 5)))
    with pytest.raises(ValueError, match="`value` has 1 heads, but `key` has 2"):
        scaled_dot_product_attention(**call)
    assert functional().scaled_dot_product_attention(**tensors(call)).shape == (4, 3, 5)


def test_dropout_drops_by_its_seed() -> None:
    x = np.random.default_rng(0).normal(size=(2, 64, 8))
    eye = np.broadcast_to(np.eye(64), (2, 64, 64))
    weights = scaled_dot_product_attention(x, x, eye)
    dropped = scaled_dot_product_attention(x, x, eye, dropout_p=0.25, seed=3)
    kept = dropped != 0
    close(dropped[kept], weights[kept] / 0.75)
    assert abs(kept.mean() - 0.75) < 0.02
    close(scaled_dot_product_attention(x, x, eye, dropout_p=0.25, seed=3), dropped)
    assert (scaled_dot_product_attention(x, x, eye, dropout_p=0.25, seed=4) != dropped).any()


WRONG_SDPA = [
    (ones(enable_gqa=False), ValueError, "pass enable_gqa=True"),
    (ones(dropout_p=0.5), ValueError, "`seed` is needed"),
    (ones(dropout_p=1.0, seed=0), ValueError, "`rate` must be"),
    (ones(attn_mask=np.ones((3, 6), int)), TypeError, "real floating-point"),
    (ones(attn_mask=np.ones((4, 6), bool)), ValueError, "does not broadcast"),
    (ones(attn_mask=[[True]]), TypeError, "`attn_mask` must be an array"),
    (ones(query=[[1.0]]), TypeError, "`query` must be an array"),
]


@pytest.mark.parametrize(("call", "error", "words"), WRONG_SDPA, ids=[words for *_, words in WRONG_SDPA])
def test_a_wrong_call_of_sdpa_says_what_is_wrong(call: Call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        scaled_dot_product_attention(**call)


# Multi-head attention


@st.composite
def mha_calls(draw: DrawFn) -> Call:
    """Any documented call without dropout, of one batch item or several, but no row that sees no key."""
    n, rng = draw(sizes(Hkv=1)), numbers(draw)
    batched = draw(st.booleans())
    items, heads, queries, keys, embed = n["B"] if batched else 1, n["G"], n["Lq"], n["Lk"], n["G"] * n["D"]
    separate, biases = draw(st.booleans()), draw(st.booleans())
    depths = (embed, n["Dv"], n["D"]) if separate else (embed, embed, embed)

    def array(*shape: int) -> np.ndarray:
        return normal(rng, np.float64, *shape)

    inputs = [array(length, items, depth) for length, depth in zip((queries, keys, keys), depths, strict=True)]
    call: Call = dict(zip(("query", "key", "value"), inputs if batched else [x[:, 0] for x in inputs], strict=True))
    call |= {"embed_dim_to_check": embed, "num_heads": heads, "dropout_p": 0.5, "training": False}
    weights = [array(embed, depth) for depth in depths]
    call["in_proj_weight"] = None if separate else np.concatenate(weights)
    call["use_separate_proj_weight"] = separate
    call |= dict(zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), weights, strict=True)) if separate else {}
    call |= {"in_proj_bias": array(3 * embed) if biases else None, "out_proj_bias": array(embed) if biases else None}
    call |= {"out_proj_weight": array(embed, embed), "add_zero_attn": draw(st.booleans())}
    static = draw(st.booleans())
    if static:
        call |= {name: array(items * heads, keys, n["D"]) for name in ("static_k", "static_v")}
    more = not static and draw(st.booleans())
    call |= {name: array(1, 1, embed) if more else None for name in ("bias_k", "bias_v")}
    call |= mha_masks(draw, rng, items, heads, queries, keys)
    if not batched and "key_padding_mask" in call:
        call["key_padding_mask"] = call["key_padding_mask"][0]
    return {**call, "need_weights": draw(st.booleans()), "average_attn_weights": draw(st.booleans())}


def mha_masks(draw: DrawFn, rng: Any, items: int, heads: int, queries: int, keys: int) -> Call:
    """Both masks of one kind, since "their types should match"; the first key stays visible."""
    shapes = {"attn_mask": draw(st.sampled_from([(queries, keys), (items * heads, queries, keys)]))}
    shapes["key_padding_mask"] = (items, keys)
    chosen = [name for name in shapes if draw(st.booleans())]
    found: Call = {name: rng.random(shapes[name]) < 0.4 for name in chosen}
    for hidden in found.values():
        hidden[..., 0] = False
    if draw(st.booleans()):
        found = {name: np.where(hidden, -np.inf, rng.normal(size=hidden.shape)) for name, hidden in found.items()}
    return found


@settings(max_examples=30)
@given(mha_calls())
def test_every_call_of_multi_head_attention(call: Call) -> None:
    found, weights = multi_head_attention_forward(**call)
    expected, expected_weights = functional().multi_head_attention_forward(**tensors(call))
    close(found, expected)
    assert (weights is None) == (expected_weights is None)
    if weights is not None:
        close(weights, expected_weights)


def small_mha(**more: Any) -> Call:
    rng = np.random.default_rng(0)
    x, weight, eye = rng.normal(size=(3, 2, 4)), rng.normal(size=(12, 4)), np.eye(4)
    fixed = {"embed_dim_to_check": 4, "num_heads": 2, "in_proj_weight": weight, "out_proj_weight": eye}
    absent = dict.fromkeys(("in_proj_bias", "bias_k", "bias_v", "out_proj_bias"))
    return {"query": x, "key": x, "value": x, **fixed, **absent, "add_zero_attn": False, "dropout_p": 0.0, **more}


def test_a_row_that_sees_no_key_is_zero_with_weights_and_without() -> None:
    """PyTorch gives NaN where it returns weights and 0 where it does not."""
    padding = np.array([[True, True, True], [False, True, False]])
    theirs = functional().multi_head_attention_forward
    for need_weights in (True, False):
        call = small_mha(key_padding_mask=padding, need_weights=need_weights)
        found, expected = multi_head_attention_forward(**call), theirs(**tensors(call))
        close(found[0][:, 1], expected[0][:, 1])
        assert not found[0][:, 0].any()
        assert bool(expected[0][:, 0].isnan().all()) == need_weights
    assert not multi_head_attention_forward(**small_mha(key_padding_mask=padding))[1][0].any()


def test_is_causal_is_a_hint_on_which_nothing_depends() -> None:
    """A wrong hint: PyTorch follows `attn_mask` where it returns weights and the hint where it does not."""
    open_mask, triangle = np.zeros((3, 3), bool), ~np.tri(3, dtype=bool)
    theirs = functional().multi_head_attention_forward
    for need_weights in (True, False):
        right = small_mha(attn_mask=triangle, is_causal=True, need_weights=need_weights)
        close(multi_head_attention_forward(**right)[0], theirs(**tensors(right))[0])
        wrong = small_mha(attn_mask=open_mask, is_causal=True, need_weights=need_weights)
        close(multi_head_attention_forward(**wrong)[0], multi_head_attention_forward(**small_mha())[0])
        followed = small_mha() if need_weights else right
        close(theirs(**tensors(wrong))[0], theirs(**tensors(followed))[0])


def test_masks_of_two_kinds_compose() -> None:
    """PyTorch says it is deprecated."""
    rng = np.random.default_rng(0)
    call = small_mha(attn_mask=rng.normal(size=(3, 3)), key_padding_mask=np.array([[False, True, False]] * 2))
    with pytest.warns(UserWarning, match="mismatched key_padding_mask and attn_mask"):
        expected = functional().multi_head_attention_forward(**tensors(call))
    for ours, theirs in zip(multi_head_attention_forward(**call), expected, strict=True):
        close(ours, theirs)


def test_dropout_of_multi_head_attention_is_for_training() -> None:
    with pytest.raises(ValueError, match="`seed` is needed"):
        multi_head_attention_forward(**small_mha(dropout_p=0.5))
    out, weights = multi_head_attention_forward(**small_mha(dropout_p=0.5, seed=1))
    plain, plain_weights = multi_head_attention_forward(**small_mha())
    close(weights, plain_weights)
    assert not np.allclose(out, plain)
    close(multi_head_attention_forward(**small_mha(dropout_p=0.5, training=False))[0], plain)


WRONG_MHA = [
    ({"embed_dim_to_check": 5}, "`query` has depth 4; it must be `embed_dim_to_check`, 5"),
    ({"num_heads": 3}, "`num_heads`, 3, must divide"),
    ({"is_causal": True}, "`is_causal` is a hint about `attn_mask`"),
    ({"bias_k": np.ones((1, 1, 4))}, "`bias_k` and `bias_v` must be given together"),
    ({"in_proj_weight": None}, "`in_proj_weight` must be given"),
    ({"use_separate_proj_weight": True}, "needs `q_proj_weight`"),
    ({"attn_mask": np.ones((2, 3), bool)}, "does not broadcast"),
    ({"query": np.ones(4)}, r"`query` must be \(Lq, E\) or \(Lq, N, E\)"),
]


@pytest.mark.parametrize(("change", "words"), WRONG_MHA, ids=[", ".join(change) for change, _ in WRONG_MHA])
def test_a_wrong_call_of_multi_head_attention_says_what_is_wrong(change: Call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        multi_head_attention_forward(**small_mha(**change))
