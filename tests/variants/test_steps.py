"""Every intermediate by the article's name: the values that the article prints, and the identities between steps."""

import numpy as np
import pytest

from attention_core.variants import CausalSelfAttention, CrossAttention, Layer, MultiHeadAttentionWrapper, SelfAttention
from tests.article import case_inputs, printed, shown
from tests.variants.samples import ALL, D_KQ, D_V, HEADS, L_1, L_2, LIGHT, Library, inputs, make, weights

NAMES = ["queries", "keys", "values", "attn_scores", "scaled_scores", "attn_weights", "context_vec"]
CAUSAL_NAMES = ["full_weights", "mask_simple", "masked_simple", "row_sums", "masked_simple_norm", "masked"]
ARTICLE = {
    "article-self-attention-layer-dv4": (SelfAttention, "sa(embedded_sentence), d_out_v 4"),
    "article-self-attention-layer-dv1": (SelfAttention, "sa(embedded_sentence), d_out_v 1"),
    "article-multi-head-layer": (MultiHeadAttentionWrapper, "context_vecs"),
    "article-cross-attention-layer": (CrossAttention, "context_vectors"),
}

every_layer = pytest.mark.parametrize("layer", ALL, ids=lambda layer: layer.__name__)


def article_steps(layer: type[Layer], case: str) -> dict[str, np.ndarray]:
    given = case_inputs(case)
    called_with = [array for name, array in given.items() if "W_" not in name]
    made = layer.from_state_dict({name: array for name, array in given.items() if "W_" in name})
    steps: dict[str, np.ndarray] = made.steps(*called_with)
    np.testing.assert_array_equal(made(*called_with), steps["context_vec"])
    return steps


@pytest.mark.parametrize("case", ARTICLE)
def test_context_vectors_are_what_the_article_prints(case: str) -> None:
    layer, what = ARTICLE[case]
    assert shown(article_steps(layer, case)["context_vec"]) == shown(printed(what))


@pytest.mark.parametrize("name", ["attn_scores", "mask_simple", "masked_simple", "masked_simple_norm", "masked"])
def test_causal_steps_are_what_the_article_prints(name: str) -> None:
    assert shown(article_steps(CausalSelfAttention, "article-causal-layer")[name]) == shown(printed(name))


def test_causal_weights_are_what_the_article_prints_before_and_after_masking() -> None:
    steps = article_steps(CausalSelfAttention, "article-causal-layer")
    assert shown(steps["full_weights"]) == shown(printed("attn_weights"))
    assert shown(steps["attn_weights"]) == shown(printed("attn_weights after masking"))


@every_layer
@pytest.mark.parametrize("library", LIGHT)
def test_names_and_shapes(layer: type[Layer], library: Library) -> None:
    steps = make(layer, library, "float64").steps(*map(library.put, inputs(layer, (7,))))
    head = (HEADS,) if layer is MultiHeadAttentionWrapper else ()
    keys = L_2 if layer is CrossAttention else L_1
    shapes = {
        "queries": (7, *head, L_1, D_KQ),
        "keys": (*(() if layer is CrossAttention else (7,)), *head, keys, D_KQ),
        "values": (*(() if layer is CrossAttention else (7,)), *head, keys, D_V),
        "attn_scores": (7, *head, L_1, keys),
        "scaled_scores": (7, *head, L_1, keys),
        "attn_weights": (7, *head, L_1, keys),
        "context_vec": (7, L_1, (HEADS if head else 1) * D_V),
    }
    if layer is CausalSelfAttention:
        shapes |= dict.fromkeys(CAUSAL_NAMES, (7, L_1, L_1)) | {"mask_simple": (L_1, L_1), "row_sums": (7, L_1, 1)}
    assert list(steps) == NAMES + (CAUSAL_NAMES if layer is CausalSelfAttention else [])
    assert {name: tuple(array.shape) for name, array in steps.items()} == shapes


@every_layer
def test_each_step_follows_from_those_before_it(layer: type[Layer]) -> None:
    given, state = inputs(layer, (7,)), weights(layer)
    steps = layer.from_state_dict(state).steps(*given)
    prefix = "heads.2." if layer is MultiHeadAttentionWrapper else ""
    one = {name: array[:, 2] if prefix and name != "context_vec" else array for name, array in steps.items()}
    queries, keys, values = one["queries"], one["keys"], one["values"]
    np.testing.assert_allclose(queries, given[0] @ state[f"{prefix}W_query"], atol=1e-14)
    np.testing.assert_allclose(keys, given[-1] @ state[f"{prefix}W_key"], atol=1e-14)
    np.testing.assert_allclose(values, given[-1] @ state[f"{prefix}W_value"], atol=1e-14)
    np.testing.assert_allclose(one["attn_scores"], queries @ keys.swapaxes(-1, -2), atol=1e-13)
    np.testing.assert_allclose(one["scaled_scores"], one["attn_scores"] / np.sqrt(D_KQ), atol=1e-13)
    np.testing.assert_allclose(one["attn_weights"].sum(axis=-1), 1, atol=1e-14)
    context = one["context_vec"][..., 2 * D_V : 3 * D_V] if prefix else one["context_vec"]
    np.testing.assert_allclose(context, one["attn_weights"] @ values, atol=1e-13)


@pytest.mark.parametrize("library", LIGHT)
def test_the_two_causal_ways_agree(library: Library) -> None:
    x = library.put(inputs(CausalSelfAttention, (2,))[0])
    given = make(CausalSelfAttention, library, "float64").steps(x)
    steps = {name: library.get(array) for name, array in given.items()}
    powers = np.exp(steps["masked"] / np.sqrt(D_KQ))
    np.testing.assert_allclose(steps["attn_weights"], powers / powers.sum(axis=-1, keepdims=True), atol=1e-14)
    np.testing.assert_allclose(steps["masked_simple_norm"], steps["attn_weights"], atol=1e-14)
    np.testing.assert_array_equal(np.triu(steps["attn_weights"], 1), 0)
    np.testing.assert_array_equal(steps["mask_simple"], np.tril(np.ones((L_1, L_1))))
    np.testing.assert_array_equal(
        np.isneginf(steps["masked"]), np.broadcast_to(steps["mask_simple"] == 0, (2, L_1, L_1))
    )
    np.testing.assert_allclose(steps["row_sums"][..., 0], np.tril(steps["full_weights"]).sum(axis=-1), atol=1e-14)
