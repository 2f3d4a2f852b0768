"""The article's first sections: the embedded sentence, projections, the second word's scores and weights."""

from collections.abc import Iterator, Mapping
from typing import Any

from conformance.record import wrong, wrong_layers
from conformance.record.article import SENTENCE, vocabulary
from conformance.record.article_calls import PLAIN_CALL, SCALE, functional
from conformance.record.draft import Draft


def embedding(t: Mapping[str, Any]) -> Iterator[Draft]:
    """The sentence as rows of the table."""
    lower = sorted(SENTENCE.lower().replace(",", "").split())
    folded = [lower.index(word) for word in SENTENCE.lower().replace(",", "").split()]
    yield Draft(
        id="article-embedding-sentence",
        name="the embedded sentence",
        section="Embedding the input sentence",
        why="Everything starts from these six rows; `weight` is the first six rows of the article's table of 50000.",
        failure="The model reads other words than the ones it was given.",
        op="embedding",
        inputs={"weight": t["embed.weight[:6]"], "indices": t["sentence_int"]},
        parameters={"sentence": SENTENCE, "vocabulary": vocabulary()},
        wrong={
            "vocabulary=lower_case": (
                "The words are sorted in lower case, which puts `life` behind `is`.",
                lambda x: {"out": x["weight"][folded]},
            ),
            "order=of_the_vocabulary": ("The rows stand in the vocabulary's order.", lambda x: {"out": x["weight"]}),
        },
        article={"out": ("embedded_sentence", t["embedded_sentence"])},
        features=("embedding",),
        flags=("article",),
    )


def projections(t: Mapping[str, Any]) -> Iterator[Draft]:
    """Queries, keys and values, and the scores before scaling."""
    section = "Unnormalised attention weights"
    matrices = {name: t[name] for name in ("W_query", "W_key", "W_value")}
    swapped = {
        "weights=query_key_swapped": (
            "The matrices of query and key are exchanged.",
            lambda x: {"query": x["x"] @ x["W_key"], "key": x["x"] @ x["W_query"]},
        ),
        "weights=output_rows": (
            "The matrices are read as (d_out, d_in), as torch.nn.Linear stores them.",
            lambda x: {name: x["x"] @ wrong_layers.reread(x[f"W_{name}"]) for name in ("query", "key", "value")},
        ),
    }
    shared: dict[str, Any] = {
        "section": section,
        "failure": "Queries, keys or values are read from the wrong matrix, or from its transpose.",
        "op": "projections",
        "parameters": {},
        "wrong": swapped,
        "features": ("projections",),
        "flags": ("article",),
    }
    yield Draft(
        id="article-projections-second-word",
        name="query, key and value of the second word",
        why="The article follows the second word; here it is one row, (1, d_in).",
        inputs={"x": t["x_2"][None], **matrices},
        article={name: (f"{name}_2", t[f"{name}_2"]) for name in ("query", "key", "value")},
        **shared,
    )
    yield Draft(
        id="article-projections-sentence",
        name="queries, keys and values of all words",
        why="Every later section starts from these.",
        inputs={"x": t["embedded_sentence"], **matrices},
        article={
            "query": ("queries", t["causal.queries"]),
            "key": ("keys", t["keys"]),
            "value": ("values", t["values"]),
        },
        **shared,
    )
    yield _omega("24", "the second word's score for the fifth", t["query_2"][None], t["keys"][4:5], t["omega_24"])
    yield _omega("2", "the second word's scores for all words", t["query_2"][None], t["keys"], t["omega_2"])


def _omega(number: str, name: str, query: Any, key: Any, given: Any) -> Draft:
    return Draft(
        id=f"article-scores-omega-{number}",
        name=name,
        section="Unnormalised attention weights",
        why="The scores before scaling; one row, where the article has a vector.",
        failure="Scores are scaled where they should not be yet, or normalised.",
        op="attention_scores",
        inputs={"query": query, "key": key},
        parameters={"scale": 1.0, "stage": "scaled", "mask": None, "bias": None, "softcap": None}
        | {"query_positions": 0, "key_positions": 0, "layout": "BHLD"},
        wrong={
            "scale=1/sqrt(D)": ("The scores are scaled.", lambda x: {"scores": SCALE * (x["query"] @ x["key"].mT)}),
            "scores=cosine": (
                "Query and key are normalised before the product.",
                lambda x: {"scores": _unit(x["query"]) @ _unit(x["key"]).mT},
            ),
        },
        article={"scores": (f"omega_{number}", given)},
        features=("scores",),
        flags=("article",),
    )


def attention_weights(t: Mapping[str, Any]) -> Iterator[Draft]:
    """Weights and context of the second word."""
    yield functional(
        "article-attention-second-word",
        "weights and context of the second word",
        "Attention weights",
        "One query and six keys: the softmax runs over the keys.",
        {"query": t["query_2"][None], "key": t["keys"], "value": t["values"]},
        PLAIN_CALL,
        wrong.any_attention() | wrong.unmasked(),
        {
            "weights": ("attention_weights_2", t["attention_weights_2"]),
            "out": ("context_vector_2", t["context_vector_2"]),
        },
    )


def _unit(tensor: Any) -> Any:
    return tensor / tensor.norm(dim=-1, keepdim=True)
