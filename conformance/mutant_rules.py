"""The masks and biases of the mutants: every rule in a line, wrong by a switch."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from conformance.rules import Pairs, alibi_slopes, relative_bucket

Rule = Mapping[str, Any]
DROPS = {"window=ignored": "sliding_window"}


def sees(rule: Rule, at: Pairs, w: str) -> np.ndarray:
    """Return which pairs a rule lets see each other, wrong by `w`."""
    name, parts = rule["rule"], list(rule.get("of", ()))
    ignored, _, how = w.partition("=")
    if how == "ignored" and {"window": "sliding_window", "global": "global_tokens"}.get(ignored, ignored) == name:
        return np.ones((1, 1), bool)
    if name in ("and", "or"):
        parts = parts[:1] if w == "masks=first_only" else parts[-1:] if w == "masks=last_only" else parts
        either = {"masks=or_for_and": True, "masks=and_for_or": False}.get(w, name == "or")
        tables = [sees(part, at, w) for part in parts]
        return (
            np.logical_or.reduce(np.broadcast_arrays(*tables))
            if either
            else np.logical_and.reduce(np.broadcast_arrays(*tables))
        )
    if name == "not":
        return sees(parts[0], at, w) if w == "masks=not_ignored" else ~sees(parts[0], at, w)
    return np.asarray(LEAVES[name](rule, at, w))


def _dense(rule: Rule, at: Pairs, w: str) -> np.ndarray:
    table = at.inputs[rule.get("input", "mask")]
    if w == "mask=transposed" and table.ndim > 1 and table.shape[-1] == table.shape[-2]:
        return np.swapaxes(table, -1, -2)
    axis = {"mask=first_query": 2, "mask=first_head": 3, "mask=first_item": 4}.get(w, 0)
    return np.take(table, [0], axis=-axis) if axis and table.ndim >= axis else table


def _causal(rule: Rule, at: Pairs, w: str) -> np.ndarray:
    distance, keys, queries = at.distance, at.key_indices, at.query_indices
    if w == "causal=lower_right" and rule["rule"] == "causal":
        return keys <= queries + keys.size - queries.size
    if w == "causal=upper_left" and rule["rule"] == "causal_lower_right":
        return keys <= queries
    if w == "causal=reversed" and rule["rule"] == "causal":
        return distance >= 0
    prefix = "causal" if rule["rule"] == "causal" else "lower_right"
    return distance <= {f"{prefix}=without_self": -1, f"{prefix}=one_too_many": 1}.get(w, 0)


def _window(rule: Rule, at: Pairs, w: str) -> np.ndarray:
    a, b = rule["left"], rule["right"]
    less = {"window=counts_self": -1, "window=one_more_left": 1}.get(w, 0)
    left = a + less if a is not None and (a or less > 0) else a
    more = {"window=counts_self_right": -1, "window=one_more_right": 1}.get(w, 0)
    right = b + more if b is not None and (b or more > 0) else b
    other = {"window=left_only": (a, None), "window=right_only": (None, b), "window=causal": (a, 0)}
    other |= {"window=symmetric": (a, a), "window=mirrored": (b, a)}
    other |= {"window=zero_is_unbounded": (a or None, b or None), "window=none_is_zero": (a or 0, b or 0)}
    left, right = other.get(w, (left, right))
    distance = at.distance
    if w == "window=lower_right":
        distance = at.key_indices - at.query_indices - at.key_indices.size + at.query_indices.size
    return (distance >= (-np.inf if left is None else -left)) & (distance <= (np.inf if right is None else right))


def _number(value: Any, w: str, name: str, count: int) -> np.ndarray:
    number = np.asarray(value)
    number = np.full_like(number, number.flat[0]) if w == f"{name}=first_item" else number
    number = number + 1 if w == f"{name}=one_more" else number
    number = np.where(number <= 0, count, number) if w == f"{name}=zero_is_all" else number
    return number[..., None, None, None] if number.ndim else number


def _key_lengths(rule: Rule, at: Pairs, w: str) -> np.ndarray:
    length = _number(rule["lengths"], w, "key_lengths", at.key_indices.size)
    if w == "key_lengths=for_queries":
        return at.query_indices < length
    return (at.key_positions if w == "key_lengths=by_position" else at.key_indices) < length


def _segments(rule: Rule, at: Pairs, w: str) -> np.ndarray:
    queries, keys = np.asarray(rule["query_ids"]), np.asarray(rule["key_ids"])
    if w == "segments=query_ids_for_keys" and queries.shape == keys.shape:
        keys = queries
    if w == "segments=first_item" and queries.ndim > 1:
        queries, keys = queries[:1], keys[:1]
    if w == "segments=padding_is_visible":
        queries, keys = np.maximum(queries, 0), np.maximum(keys, 0)
    least = {"segments=padding_attends": -(2**30), "segments=zero_is_padding": 1}.get(w, 0)
    one, other = queries[..., :, None], keys[..., None, :]
    seen: np.ndarray = (one == other) & (one >= least)
    return seen if seen.ndim == 2 else seen[..., None, :, :]


def _prefix(rule: Rule, at: Pairs, w: str) -> np.ndarray:
    length = _number(rule["length"], w, "prefix", 0)
    if w == "prefix=for_queries":
        return at.query_indices < length
    return (at.key_indices if w == "prefix=by_index" else at.key_positions) < length


def _chunked(rule: Rule, at: Pairs, w: str) -> np.ndarray:
    size = rule["size"] + (w == "chunked=one_larger")
    query, key = (
        (at.query_indices, at.key_indices) if w == "chunked=by_index" else (at.query_positions, at.key_positions)
    )
    shift = 1 if w == "chunked=from_one" else 0
    if w == "chunked=sliding":
        return np.abs(at.distance) < size
    return (query + shift) // size == (key + shift) // size


def _dilated(rule: Rule, at: Pairs, w: str) -> np.ndarray:
    if w == "dilated=from_zero":
        return np.broadcast_to(at.key_positions % rule["step"] == 0, at.distance.shape)
    return at.distance % (rule["step"] + (w == "dilated=one_more")) == 0


def _global(rule: Rule, at: Pairs, w: str) -> np.ndarray:
    count = rule["count"] + (w == "global=one_more")
    query, key = at.query_positions < count, at.key_positions < count
    return (query & (w != "global=keys_only")) | (key & (w != "global=queries_only"))


LEAVES: Mapping[str, Callable[[Rule, Pairs, str], np.ndarray]] = {
    "dense": _dense,
    "causal": _causal,
    "causal_lower_right": _causal,
    "sliding_window": _window,
    "key_lengths": _key_lengths,
    "query_lengths": lambda rule, at, w: at.query_indices < _number(rule["lengths"], w, "query_lengths", 0),
    "segments": _segments,
    "prefix": _prefix,
    "chunked": _chunked,
    "dilated": _dilated,
    "global_tokens": _global,
}


def bias_of(rule: Any, at: Pairs, inputs: Mapping[str, np.ndarray], w: str, scale: float) -> np.ndarray:
    """Return the bias of a case, wrong by `w`."""
    if rule is None or w in ("bias=none", "out=mean_of_v"):
        return np.zeros((1, 1))
    if rule["rule"] == "sum":
        return np.asarray(sum(bias_of(part, at, inputs, w, scale) for part in rule["of"]))
    if rule["rule"] == "dense":
        return _given(inputs[rule.get("input", "bias")].astype(np.float64), w, scale)
    distance = at.key_indices - at.query_indices if w == f"{rule['rule']}=by_index" else at.distance
    distance = distance if distance.ndim > 2 else distance[None]
    if rule["rule"] == "alibi":
        return -_slopes(rule["slopes"], inputs, w, scale)[:, None, None] * (
            -distance if w == "alibi=signed" else np.abs(distance)
        )
    return _relative(rule, distance, inputs[rule["table"]].astype(np.float64), w)


def _given(bias: np.ndarray, w: str, scale: float) -> np.ndarray:
    axis = {"bias=first_head": 3, "bias=first_item": 4}.get(w, 0)
    if axis and bias.ndim >= axis:
        return np.take(bias, [0], axis=-axis)
    if w == "bias=transposed" and bias.ndim > 1 and bias.shape[-1] == bias.shape[-2]:
        return np.swapaxes(bias, -1, -2)
    bias = np.where(bias == 0, -np.inf, bias) if w == "bias=zero_is_masked" else bias
    return bias * {"bias=scaled": scale, "bias=subtracted": -1.0}.get(w, 1.0) if np.isfinite(bias).all() else bias


def _slopes(slopes: Any, inputs: Mapping[str, np.ndarray], w: str, scale: float) -> np.ndarray:
    if isinstance(slopes, str):
        return inputs[slopes].astype(np.float64)
    if isinstance(slopes, int):
        one_ratio = 2.0 ** (-8.0 * np.arange(1, slopes + 1) / slopes)
        slopes = one_ratio if w == "alibi=one_ratio" else alibi_slopes(slopes)
    slopes = np.asarray(slopes, np.float64)[:: -1 if w == "alibi=reversed_heads" else 1]
    return slopes * {"alibi=rewarded": -1.0, "alibi=scaled": scale}.get(w, 1.0)


def _relative(rule: Rule, distance: np.ndarray, table: np.ndarray, w: str) -> np.ndarray:
    sign = -1 if w == "relative=query_minus_key" else 1
    both = rule["bidirectional"] != (w == "relative=other_direction")
    farthest = rule["max_distance"] * (2 if w == "relative=larger_distance" else 1)
    buckets = np.array(
        [relative_bucket(sign * int(d), len(table), both, farthest) for d in distance.ravel()], dtype=int
    )
    table = table[:, ::-1] if w == "relative=heads_reversed" else table
    return np.moveaxis(table[buckets.reshape(distance.shape)][..., 0, :, :, :], -1, -3)
