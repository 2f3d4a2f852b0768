"""Which pairs see each other, in PyTorch index arithmetic: the rules that the parameters of a case speak of.

A rule is a mapping: `{"rule": "causal"}`, `{"rule": "and", "of": [...]}`. Positions and indices are integer tensors
that broadcast to (..., H, Lq, Lk). `by: index` and `shift` are no part of the language; wrong variants use them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

Tensor = Any
Rule = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Places:
    """Indices and positions of queries and keys, and the case's inputs."""

    query_index: Tensor
    key_index: Tensor
    query_position: Tensor
    key_position: Tensor
    inputs: Mapping[str, Tensor]

    def of(self, rule: Rule) -> tuple[Tensor, Tensor]:
        """Return what the rule compares."""
        if rule.get("by") == "index":
            return self.query_index, self.key_index
        return self.query_position, self.key_position


def places(inputs: Mapping[str, Tensor], parameters: Mapping[str, Any], queries: int, keys: int) -> Places:
    """Return the places of a case's queries and keys."""
    import torch

    first = parameters["query_positions"]
    if has_rule(parameters["mask"], "causal_lower_right"):
        first = keys - queries
    query_index, key_index = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    query = query_index + first if isinstance(first, int) else _down(first)
    start = parameters["key_positions"]
    key = key_index + start if isinstance(start, int) else _across(start)
    return Places(query_index, key_index, query, key, inputs)


def has_rule(rule: Rule | None, name: str) -> bool:
    """Say whether a rule or one of its parts has this name."""
    return rule is not None and (rule["rule"] == name or any(has_rule(part, name) for part in rule.get("of", ())))


def visible(rule: Rule, at: Places) -> Tensor:
    """Return booleans that broadcast to (..., H, Lq, Lk), True = may attend."""
    parts = [visible(part, at) for part in rule.get("of", ())]
    if rule["rule"] == "and":
        return reduce(lambda a, b: a & b, parts)
    if rule["rule"] == "or":
        return reduce(lambda a, b: a | b, parts)
    if rule["rule"] == "not":
        return ~parts[0]
    if rule["rule"] == "dense":
        return at.inputs[rule.get("input", "mask")]
    return LEAVES[rule["rule"]](rule, *at.of(rule), at)


def _causal(rule: Rule, query: Tensor, key: Tensor, at: Places) -> Tensor:
    return key <= query + rule.get("shift", 0)


def _window(rule: Rule, query: Tensor, key: Tensor, at: Places) -> Tensor:
    distance = key - query - rule.get("shift", 0)
    seen = distance == distance
    if rule["left"] is not None:
        seen = seen & (distance >= -rule["left"])
    return seen if rule["right"] is None else seen & (distance <= rule["right"])


def _chunked(rule: Rule, query: Tensor, key: Tensor, at: Places) -> Tensor:
    shift = rule.get("shift", 0)
    return (query + shift) // rule["size"] == (key + shift) // rule["size"]


def _global(rule: Rule, query: Tensor, key: Tensor, at: Places) -> Tensor:
    return (query < rule.get("queries", rule["count"])) | (key < rule.get("keys", rule["count"]))


def _segments(rule: Rule, query: Tensor, key: Tensor, at: Places) -> Tensor:
    queries, keys = _down(rule["query_ids"]), _across(rule["key_ids"])
    return (queries == keys) & (queries >= 0)


def _item(number: Any) -> Tensor:
    import torch

    tensor = torch.tensor(number)
    return tensor[..., None, None, None] if tensor.ndim else tensor


def _down(numbers: Any) -> Tensor:
    import torch

    tensor = torch.tensor(numbers)
    return tensor[:, None] if tensor.ndim == 1 else tensor[..., None, :, None]


def _across(numbers: Any) -> Tensor:
    import torch

    tensor = torch.tensor(numbers)
    return tensor[None, :] if tensor.ndim == 1 else tensor[..., None, None, :]


LEAVES: dict[str, Callable[[Rule, Tensor, Tensor, Places], Tensor]] = {
    "causal": _causal,
    "causal_lower_right": _causal,
    "sliding_window": _window,
    "key_lengths": lambda rule, query, key, at: at.key_index < _item(rule["lengths"]),
    "query_lengths": lambda rule, query, key, at: at.query_index < _item(rule["lengths"]),
    "prefix": lambda rule, query, key, at: key < _item(rule["length"]),
    "chunked": _chunked,
    "dilated": lambda rule, query, key, at: (query - key) % rule["step"] == 0,
    "from_zero": lambda rule, query, key, at: key % rule["step"] == 0,
    "global_tokens": _global,
    "segments": _segments,
}
