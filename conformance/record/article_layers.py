"""The article's layers, each as a layer and as the attention inside it: self, multi-head, cross, causal."""

from collections.abc import Iterator, Mapping
from typing import Any

from conformance.cases import Coincidence
from conformance.record import wrong, wrong_layers
from conformance.record.article import NUM_HEADS
from conformance.record.article_calls import (
    CAUSAL_CALL,
    DENSE_CALL,
    PLAIN_CALL,
    functional,
    projected,
    stacked,
    state,
    unmasked_square,
)
from conformance.record.draft import Draft
from conformance.record.plain import head

SAME_SWAP = Coincidence(
    ("roles=query_key_swapped", "weights=query_key_swapped"),
    "one input serves as query and key: exchanging the matrices or the roles transposes the scores either way",
)
TWO_HEADS = Coincidence(("heads=reversed", "heads=rotated"), "two heads have one other order")
ONE_COLUMN = Coincidence(
    ("expected", "heads=interleaved"), "each head has one column: beside each other and interleaved are the same"
)


def self_attention(t: Mapping[str, Any]) -> Iterator[Draft]:
    """`SelfAttention` with four columns and with one."""
    section, x = "Self-attention", t["embedded_sentence"]
    for prefix, size in (("self_attention.", "4"), ("one_dimensional.", "1")):
        matrices = state(t, prefix)
        given = dict.fromkeys(("out", "step.context_vec"), ("sa(embedded_sentence)", t[f"{prefix}context_vecs"]))
        yield Draft(
            id=f"article-self-attention-layer-dv{size}",
            name=f"SelfAttention, d_out_v {size}",
            section=section,
            why="The article's class: three projections, scores, scaling, softmax, weighted values.",
            failure="A layer with the same weights gives other outputs: a ported model is a little, or wholly, wrong.",
            op="SelfAttention",
            inputs={"x": x, **matrices},
            parameters={"d_in": 3, "d_out_kq": 2, "d_out_v": int(size)},
            wrt=("x", *matrices),
            wrong=wrong_layers.one_head(unmasked_square()) | wrong_layers.layer_weights(),
            coincidences=(SAME_SWAP,),
            article=given,
            features=("layer", "gradient"),
            flags=("article",),
        )
    for prefix, size in (("self_attention.", "4"), ("one_dimensional.", "1")):
        yield functional(
            f"article-self-attention-dv{size}",
            f"the attention inside SelfAttention, d_out_v {size}",
            section,
            "Query, key and value as the layer projects them, for whoever brings an attention function and no layer.",
            projected(x, x, state(t, prefix)),
            PLAIN_CALL,
            unmasked_square(),
            {"out": ("sa(embedded_sentence)", t[f"{prefix}context_vecs"])},
        )


def multi_head(t: Mapping[str, Any]) -> Iterator[Draft]:
    """`MultiHeadAttentionWrapper`, each head, and the heads in one call."""
    section, x, matrices = "Multi-head attention", t["embedded_sentence"], state(t, "multi_head.")
    given = ("mha(embedded_sentence)", t["multi_head.context_vecs"])
    yield _wrapper(
        "article-multi-head-layer",
        "MultiHeadAttentionWrapper, four heads of one column",
        "The article's wrapper: heads one by one, beside each other on the last axis, in their order.",
        x,
        matrices,
        {"out": given, "step.context_vec": given},
        (ONE_COLUMN,),
    )
    yield _wrapper(
        "article-multi-head-layer-wide",
        "MultiHeadAttentionWrapper, two heads of four columns",
        "Beyond the article: with more than one column a head, `beside each other` and `interleaved` differ.",
        x,
        _wide(t),
        {},
        (TWO_HEADS,),
    )
    for h in range(NUM_HEADS):
        yield functional(
            f"article-multi-head-head-{h}",
            f"the attention of head {h}",
            section,
            "One head by itself.",
            projected(x, x, head(matrices, h)),
            PLAIN_CALL,
            unmasked_square(),
            {"out": (f"mha(embedded_sentence)[:, {h}:{h + 1}]", given[1][:, h : h + 1])},
        )
    yield functional(
        "article-multi-head-all-heads",
        "the attention of the four heads in one call",
        section,
        "The heads as a leading axis, (heads, length, depth): one batched call equals the heads one by one.",
        stacked([projected(x, x, head(matrices, h)) for h in range(NUM_HEADS)]),
        PLAIN_CALL,
        unmasked_square() | wrong.head_axis(),
        {"out": ("mha(embedded_sentence), the heads first", given[1].T)},
    )


def _wrapper(
    name_id: str, name: str, why: str, x: Any, matrices: Any, given: Any, coincidences: tuple[Coincidence, ...]
) -> Draft:
    num_heads, width = len(matrices) // 3, matrices["heads.0.W_value"].shape[-1]
    return Draft(
        id=name_id,
        name=name,
        section="Multi-head attention",
        why=why,
        failure="Heads arrive in another order or interleaved: the projection after them mixes the wrong columns.",
        op="MultiHeadAttentionWrapper",
        inputs={"x": x, **matrices},
        parameters={"d_in": 3, "d_out_kq": 2, "d_out_v": width, "num_heads": num_heads},
        wrt=("x", *matrices),
        wrong=wrong_layers.wrapper(unmasked_square(), num_heads) | wrong_layers.head_order(num_heads),
        article=given,
        coincidences=coincidences,
        features=("layer", "heads", "gradient"),
        flags=("article",) if given else (),
    )


def cross_attention(t: Mapping[str, Any]) -> Iterator[Draft]:
    """`CrossAttention` from six words to eight."""
    section, x_1, x_2, matrices = "Cross-attention", t["embedded_sentence"], t["cross.second_input"], state(t, "cross.")
    given = ("crossattn(first_input, second_input)", t["cross.context_vectors"])
    departures = wrong.any_attention() | wrong.unmasked()
    yield Draft(
        id="article-cross-attention-layer",
        name="CrossAttention, six words to eight",
        section=section,
        why="Queries from the first input, keys and values from the second, of another length.",
        failure="A decoder attends to itself, or to its encoder with the roles exchanged.",
        op="CrossAttention",
        inputs={"x_1": x_1, "x_2": x_2, **matrices},
        parameters={"d_in": 3, "d_out_kq": 2, "d_out_v": 4},
        wrt=("x_1", "x_2", *matrices),
        wrong=wrong_layers.one_head(departures, "x_1", "x_2")
        | wrong_layers.layer_weights("x_1", "x_2")
        | wrong_layers.exchanged_inputs(),
        article={"out": given, "step.context_vec": given},
        features=("layer", "cross", "gradient"),
        flags=("article",),
    )
    yield functional(
        "article-cross-attention",
        "the attention inside CrossAttention",
        section,
        "Six queries and eight keys: no swapped axis can pass.",
        projected(x_1, x_2, matrices),
        PLAIN_CALL,
        departures,
        {"out": given},
    )


def causal(t: Mapping[str, Any]) -> Iterator[Draft]:
    """The last section, both of its ways."""
    import torch

    section, x, matrices = "Causal self-attention", t["embedded_sentence"], state(t, "causal.")
    steps = ("queries", "keys", "values", "attn_scores", "mask_simple", "masked_simple", "row_sums")
    given = {f"step.{name}": (name, t[f"causal.{name}"]) for name in (*steps, "masked_simple_norm", "masked")}
    departures = wrong.any_attention() | wrong.square() | wrong.masked() | wrong.causal()
    yield Draft(
        id="article-causal-layer",
        name="the last section as a layer",
        section=section,
        why="Both ways of the article: weights times a triangle, renormalised; -inf above the diagonal, then softmax.",
        failure="Words see words that come after them: training looks splendid and generation fails.",
        op="CausalSelfAttention",
        inputs={"x": x, **matrices},
        parameters={"d_in": 3, "d_out_kq": 2, "d_out_v": 4},
        wrt=("x", *matrices),
        wrong=wrong_layers.one_head(departures, causal_mask=True) | wrong_layers.layer_weights(causal_mask=True),
        article={**given, "step.attn_weights": ("attn_weights", t["causal.masked_attn_weights"])},
        coincidences=(SAME_SWAP,),
        features=("layer", "mask", "causal", "gradient"),
        flags=("article",),
    )
    inputs = projected(x, x, matrices)
    yield functional(
        "article-causal-unmasked-weights",
        "scores and weights before the mask",
        section,
        "The section prints them first: the mask changes these.",
        inputs,
        PLAIN_CALL,
        unmasked_square(),
        {"weights": ("attn_weights", t["causal.attn_weights"])},
    )
    triangle = {**inputs, "mask": torch.ones(len(x), len(x)).tril().bool()}
    shared = {"weights": ("attn_weights", t["causal.masked_attn_weights"])}
    yield functional(
        "article-causal-rule",
        "causal attention by rule",
        section,
        "A key is visible when it stands no later than the query; `mask` is the same rule as a table.",
        triangle,
        CAUSAL_CALL,
        departures,
        shared,
    )
    yield functional(
        "article-causal-dense-mask",
        "causal attention by a boolean table",
        section,
        "True means `may attend`: a table of the other polarity shows here.",
        triangle,
        DENSE_CALL,
        departures,
        shared,
    )


def _wide(t: Mapping[str, Any]) -> dict[str, Any]:
    """Two heads of the article's weights: those of `self_attention` and their mirror image."""
    matrices = state(t, "self_attention.")
    heads = (matrices, {name: matrix.flip(0) for name, matrix in matrices.items()})
    return {f"heads.{h}.{name}": matrix for h, each in enumerate(heads) for name, matrix in each.items()}
