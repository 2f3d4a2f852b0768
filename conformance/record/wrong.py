"""The named wrong answers: one-line departures from the formula, each the answer of a convention somebody takes.

Every function takes `(query, key, value, mask, scale)` and gives `out`; `mask` is boolean or None. Where a departure
leaves a row without a key, the row is 0, NaN or the mean of the values, by what the implementation does with such rows.
"""

import math
from collections.abc import Callable
from typing import Any

from conformance.record.plain import Tensor, Tensors

Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
Outputs = Callable[[Tensors], dict[str, Tensor]]
Wrong = dict[str, tuple[str, Attention]]
WrongOutputs = dict[str, tuple[str, Outputs]]

LOG_2 = math.log(2.0)
EMPTY_ROWS = {
    "": "",
    ",empty_row=nan": " (and a row without a key is NaN)",
    ",empty_row=mean_of_v": " (and a row without a key is the mean of the values)",
}


def weights(query: Tensor, key: Tensor, mask: Tensor | None, scale: float, empty: str = "") -> Tensor:
    """Return the right weights, rows without a key by the convention of `empty`."""
    import torch

    scores = scale * (query @ key.mT)
    if mask is None:
        return torch.softmax(scores, dim=-1)
    p = torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1)
    if empty == ",empty_row=nan":
        return p
    return p.nan_to_num(1.0 / key.shape[-2] if empty == ",empty_row=mean_of_v" else 0.0)


def any_attention() -> Wrong:
    """Departures that every call can show."""
    import torch

    return {
        "scale=1": ("The scores are not divided by sqrt(D).", lambda q, k, v, m, s: weights(q, k, m, 1.0) @ v),
        "scale=1/D": (
            "The scores are divided by D, or twice by sqrt(D).",
            lambda q, k, v, m, s: weights(q, k, m, s * s) @ v,
        ),
        "softmax=base_2": (
            "2 to the score is taken in place of e to the score.",
            lambda q, k, v, m, s: weights(q, k, m, s * LOG_2) @ v,
        ),
        "softmax=sigmoid": ("A sigmoid of each score, no sum to one.", _sigmoid),
        "softmax=none": ("The scores themselves weigh the values.", _no_softmax),
        "softmax=over_queries": ("The softmax runs over the queries, the wrong axis.", _over_queries),
        "out=mean_of_v": (
            "Every row is the mean of all values: the scores are ignored.",
            lambda q, k, v, m, s: torch.ones_like(q @ k.mT) @ v / k.shape[-2],
        ),
    }


def unmasked() -> Wrong:
    """Departures of a call without a mask."""
    return {
        "mask=causal": (
            "A causal mask is applied that nobody asked for.",
            lambda q, k, v, m, s: weights(q, k, triangle(q, k), s) @ v,
        )
    }


def square() -> Wrong:
    """Departures that only as many queries as keys allow."""
    return {
        "roles=query_key_swapped": (
            "Query and key have exchanged roles: the scores are transposed.",
            lambda q, k, v, m, s: weights(k, q, m, s) @ v,
        )
    }


def masked() -> Wrong:
    """Departures of a call with a mask."""
    plain: Wrong = {
        "mask=none": ("The mask is ignored.", lambda q, k, v, m, s: weights(q, k, None, s) @ v),
        "mask=zero_fill": ("Masked scores are set to 0, not to -inf, before the softmax.", _zero_fill),
        "mask=without_renormalising": (
            "The weights are masked after the softmax, and the rows no longer sum to one.",
            lambda q, k, v, m, s: (weights(q, k, None, s) * m) @ v,
        ),
    }
    return plain | _with_empty_rows("mask=inverted", "True is taken as `may not attend`", lambda q, k, m: ~m)


def causal() -> Wrong:
    """Departures of a causal call."""
    plain: Wrong = {
        "causal=above_the_diagonal": (
            "Each word sees itself and what comes after: the mask above taken for the mask below.",
            lambda q, k, v, m, s: weights(q, k, triangle(q, k).mT, s) @ v,
        )
    }
    strict = _with_empty_rows(
        "causal=without_self", "A word does not see itself", lambda q, k, m: triangle(q, k).tril(-1)
    )
    return plain | strict


def head_axis() -> Wrong:
    """Departures of a call with several heads."""
    import torch

    return {
        "heads=reversed": (
            "The heads stand in the wrong order.",
            lambda q, k, v, m, s: (weights(q, k, m, s) @ v).flip(-3),
        ),
        "softmax=over_heads": (
            "The softmax runs over the heads, the wrong axis.",
            lambda q, k, v, m, s: torch.softmax(s * (q @ k.mT), dim=-3) @ v,
        ),
    }


def as_outputs(wrong: Wrong, scale: float) -> WrongOutputs:
    """Make the departures take the inputs of an `attention` case."""

    def taking_inputs(attend: Attention) -> Outputs:
        return lambda t: {"out": attend(t["query"], t["key"], t["value"], t.get("mask"), scale)}

    return {name: (means, taking_inputs(attend)) for name, (means, attend) in wrong.items()}


def other_outputs(scale: float, cotangent: Tensor) -> WrongOutputs:
    """Departures that leave `out` right: another logarithm, a forgotten term of the gradient."""
    import torch

    def lse(t: Tensors) -> Tensor:
        return torch.logsumexp(_scores(t, scale), dim=-1)

    return {
        "lse=base_2": (
            "The sums are base-2 logarithms.",
            lambda t: {"lse": lse(t) / LOG_2},
        ),
        "lse=maximum_forgotten": (
            "The row's maximum was subtracted and not added again.",
            lambda t: {"lse": lse(t) - _scores(t, scale).amax(dim=-1)},
        ),
        "gradient=scale_forgotten": (
            "The gradients of query and key lack the factor 1/sqrt(D).",
            lambda t: _gradients(t, scale, cotangent.double(), 1.0, 1.0),
        ),
        "gradient=row_term_forgotten": (
            "The softmax's gradient lacks the term that its row sums to one.",
            lambda t: _gradients(t, scale, cotangent.double(), scale, 0.0),
        ),
    }


def _scores(t: Tensors, scale: float) -> Tensor:
    scores = scale * (t["query"] @ t["key"].mT)
    return scores if t.get("mask") is None else scores.masked_fill(~t["mask"], float("-inf"))


def _gradients(t: Tensors, scale: float, d_out: Tensor, factor: float, row_term: float) -> dict[str, Tensor]:
    p, d_p = weights(t["query"], t["key"], t.get("mask"), scale), d_out @ t["value"].mT
    d_s = p * (d_p - row_term * (p * d_p).sum(dim=-1, keepdim=True))
    return {"gradient.query": factor * d_s @ t["key"], "gradient.key": factor * d_s.mT @ t["query"]}


def _with_empty_rows(name: str, means: str, other_mask: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Wrong:
    def attend(empty: str) -> Attention:
        return lambda q, k, v, m, s: weights(q, k, other_mask(q, k, m), s, empty) @ v

    return {name + empty: (f"{means}{more}.", attend(empty)) for empty, more in EMPTY_ROWS.items()}


def triangle(query: Tensor, key: Tensor) -> Tensor:
    """Return the causal mask: every query sees the keys up to its own position."""
    import torch

    return torch.ones(query.shape[-2], key.shape[-2]).tril().bool()


def _over_queries(q: Tensor, k: Tensor, v: Tensor, m: Tensor | None, s: float) -> Tensor:
    import torch

    scores = s * (q @ k.mT)
    return torch.softmax(scores if m is None else scores.masked_fill(~m, -torch.inf), dim=-2) @ v


def _no_softmax(q: Tensor, k: Tensor, v: Tensor, m: Tensor | None, s: float) -> Tensor:
    scores = s * (q @ k.mT)
    return (scores if m is None else scores * m) @ v


def _sigmoid(q: Tensor, k: Tensor, v: Tensor, m: Tensor | None, s: float) -> Tensor:
    scores: Any = (s * (q @ k.mT)).sigmoid()
    return (scores if m is None else scores * m) @ v


def _zero_fill(q: Tensor, k: Tensor, v: Tensor, m: Tensor | None, s: float) -> Tensor:
    import torch

    return torch.softmax((s * (q @ k.mT)).masked_fill(~m, 0.0), dim=-1) @ v  # type: ignore[operator]  # m is given here
