"""What the article's cases share: the call with every parameter spelled out, the attention inside a layer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conformance.record import wrong
from conformance.record.article import D_OUT_KQ
from conformance.record.draft import Draft, cotangents

SCALE = D_OUT_KQ**-0.5
PLAIN_CALL: Mapping[str, Any] = {
    "mask": None,
    "bias": None,
    "scale": SCALE,
    "softcap": None,
    "sinks": None,
    "dropout": None,
    "query_positions": 0,
    "key_positions": 0,
    "layout": "BHLD",
}
CAUSAL_CALL = {**PLAIN_CALL, "mask": {"rule": "causal"}}
DENSE_CALL = {**PLAIN_CALL, "mask": {"rule": "dense"}}


def functional(
    name_id: str, name: str, section: str, why: str, inputs: Any, call: Mapping[str, Any], departures: Any, given: Any
) -> Draft:
    """Return the draft of an `attention` case with its departures; `given` is what the article's lines gave."""
    draft = Draft(
        id=name_id,
        name=name,
        section=section,
        why=why,
        failure="A model that calls this attention computes other context vectors, in every layer.",
        op="attention",
        inputs=inputs,
        parameters=call,
        wrt=("query", "key", "value"),
        article=given,
        features=(
            "attention",
            "gradient",
            *(["mask"] if call["mask"] else []),
            *(["heads"] if inputs["query"].ndim > 2 else []),
        ),
        flags=("article",),
    )
    more = wrong.other_outputs(call["scale"], cotangents(draft)["out"])
    return replace(draft, wrong=wrong.as_outputs(departures, call["scale"]) | more)


def projected(x_1: Any, x_2: Any, matrices: Any) -> dict[str, Any]:
    """Project two inputs to query, key and value."""
    return {"query": x_1 @ matrices["W_query"], "key": x_2 @ matrices["W_key"], "value": x_2 @ matrices["W_value"]}


def stacked(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Stack the heads on a first axis."""
    import torch

    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


def state(t: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The weights of one section's layer, by the names of its `state_dict`."""
    names = [name for name in t if name.startswith(prefix) and name.rpartition(".")[2].startswith("W_")]
    return {name.removeprefix(prefix): t[name] for name in names}


def unmasked_square() -> wrong.Wrong:
    """Departures of a call without a mask and with as many queries as keys."""
    return wrong.any_attention() | wrong.unmasked() | wrong.square()
