"""The named wrong answers of the article's layers: a departure inside, or the weights, inputs and heads mistaken."""

from typing import Any

from conformance.record.plain import Tensor, Tensors, head
from conformance.record.wrong import Attention, Outputs, Wrong, WrongOutputs, triangle, weights

MATRICES = ("W_query", "W_key", "W_value")


def one_head(departures: Wrong, first: str = "x", second: str = "x", causal_mask: bool = False) -> WrongOutputs:
    """Make departures take a layer's inputs; queries come from the input `first`, keys and values from `second`."""

    def taking_inputs(attend: Attention) -> Outputs:
        return lambda t: {"out": _attend(attend, t[first], t[second], t, causal_mask)}

    return {name: (means, taking_inputs(attend)) for name, (means, attend) in departures.items()}


def layer_weights(first: str = "x", second: str = "x", causal_mask: bool = False) -> WrongOutputs:
    """The layer's matrices mistaken for each other, or read in the other layout."""

    def with_matrices(change: Any) -> Outputs:
        return lambda t: {"out": _attend(_right, t[first], t[second], change(t), causal_mask)}

    return {
        "weights=query_key_swapped": ("The matrices of query and key are exchanged.", with_matrices(_swapped)),
        "weights=output_rows": (
            "The matrices are read as (d_out, d_in), as torch.nn.Linear stores them.",
            with_matrices(lambda t: {name: reread(t[name]) for name in MATRICES}),
        ),
    }


def exchanged_inputs() -> WrongOutputs:
    """The two inputs of cross-attention mistaken for each other."""
    return {
        "inputs=exchanged": (
            "Queries come from the second input, keys and values from the first.",
            lambda t: {"out": _attend(_right, t["x_2"], t["x_1"], t, False)},
        ),
        "inputs=first_only": (
            "The second input is ignored: self-attention.",
            lambda t: {"out": _attend(_right, t["x_1"], t["x_1"], t, False)},
        ),
    }


def wrapper(departures: Wrong, num_heads: int) -> WrongOutputs:
    """Make departures take the inputs of the wrapper, in every head."""

    def taking_inputs(attend: Attention) -> Outputs:
        return lambda t: {"out": _beside(_heads(attend, t, num_heads))}

    return {name: (means, taking_inputs(attend)) for name, (means, attend) in departures.items()}


def head_order(num_heads: int) -> WrongOutputs:
    """The heads put together in another way."""
    import torch

    def joined(join: Any) -> Outputs:
        return lambda t: {"out": join(torch.stack(_heads(_right, t, num_heads)))}

    return {
        "heads=reversed": ("The heads stand in the wrong order.", joined(lambda heads: _beside(heads.flip(0)))),
        "heads=rotated": ("The heads are counted from one.", joined(lambda heads: _beside(heads.roll(1, 0)))),
        "heads=interleaved": (
            "The columns of the heads alternate.",
            joined(lambda heads: heads.permute(1, 2, 0).reshape(heads.shape[1], -1)),
        ),
        "heads=not_transposed": (
            "(heads, length, depth) is reshaped to (length, heads * depth) without moving the head axis.",
            joined(lambda heads: heads.reshape(heads.shape[1], -1)),
        ),
        "heads=all_the_first": (
            "Every head has the weights of the first.",
            joined(lambda heads: _beside(heads[:1].expand_as(heads))),
        ),
    }


def reread(matrix: Tensor) -> Tensor:
    """Return the matrix whose transpose has these numbers in its memory."""
    return matrix.reshape(matrix.shape[1], matrix.shape[0]).mT


def _right(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    return weights(q, k, mask, scale) @ v


def _attend(attend: Attention, first: Tensor, second: Tensor, t: Tensors, causal_mask: bool) -> Tensor:
    query, key, value = first @ t["W_query"], second @ t["W_key"], second @ t["W_value"]
    return attend(query, key, value, triangle(query, key) if causal_mask else None, query.shape[-1] ** -0.5)


def _heads(attend: Attention, t: Tensors, num_heads: int) -> list[Tensor]:
    return [_attend(attend, t["x"], t["x"], head(t, h), False) for h in range(num_heads)]


def _beside(heads: Any) -> Tensor:
    import torch

    return torch.cat(list(heads), dim=-1)


def _swapped(t: Tensors) -> dict[str, Tensor]:
    return {"W_query": t["W_key"], "W_key": t["W_query"], "W_value": t["W_value"]}
