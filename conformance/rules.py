"""The mask and the bias of a case as tables: the rules of `docs/vectors.md`, evaluated in plain NumPy.

A rule is JSON: `{"rule": "sliding_window", "left": 2, "right": 0}`. Where it needs integers, they stand there as a
number or a list, or as the name of the input that holds them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from conformance.cases import Case

Rule = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Pairs:
    """What rules read: positions `(..., Lq, 1)` and `(..., 1, Lk)`, indices, and the inputs that rules name."""

    query_positions: np.ndarray
    key_positions: np.ndarray
    query_indices: np.ndarray
    key_indices: np.ndarray
    inputs: Mapping[str, np.ndarray]

    @property
    def distance(self) -> np.ndarray:
        """Return key position minus query position."""
        return self.key_positions - self.query_positions


def pairs_of(case: Case) -> Pairs:
    """Return the pairs of queries and keys of an `attention` case."""
    query_length, key_length = lengths(case)
    shift = key_length - query_length if sets_positions(case.parameters.get("mask")) else 0
    query = _positions(case, "query_positions", query_length) + shift
    key = _positions(case, "key_positions", key_length)
    rows, columns = np.arange(query_length), np.arange(key_length)
    return Pairs(_down(query), _across(key), rows[:, None], columns, case.inputs)


def lengths(case: Case) -> tuple[int, int]:
    """Return `Lq` and `Lk`."""
    axis = -2 if case.parameters["layout"] == "BHLD" or case.inputs["query"].ndim == 2 else -3
    return case.inputs["query"].shape[axis], case.inputs["key"].shape[axis]


def mask_table(case: Case) -> np.ndarray | None:
    """Return the case's mask as booleans that broadcast to `(..., Hq, Lq, Lk)`, or None."""
    rule = case.parameters.get("mask")
    return None if rule is None else visible(rule, pairs_of(case))


def bias_table(case: Case, inputs: Mapping[str, Any] | None = None, xp: Any = np) -> Any:
    """Return the case's bias as numbers that broadcast to `(..., Hq, Lq, Lk)`, or None; rules in float64.

    From the `inputs` as arrays of another library, `xp`, it is made by that library: gradients reach them.
    """
    rule = case.parameters.get("bias")
    return None if rule is None else _bias(rule, pairs_of(case), case.inputs if inputs is None else inputs, xp)


def array_of(case: Case, parameter: str) -> np.ndarray | None:
    """Return the input that a parameter such as `sinks` names, or None."""
    name = case.parameters.get(parameter)
    return None if name is None else case.inputs[name]


def sets_positions(rule: Rule | None) -> bool:
    """Whether `causal_lower_right` stands anywhere in a rule: it shifts the positions of the whole call."""
    if rule is None:
        return False
    return rule["rule"] == "causal_lower_right" or any(sets_positions(part) for part in rule.get("of", ()))


def integers(value: Any, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a number or list of a rule, or the input that it names."""
    return np.asarray(inputs[value] if isinstance(value, str) else value)


def alibi_slopes(heads: int) -> np.ndarray:
    """Return the ALiBi paper's slopes for any number of heads."""
    power = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    return np.array(slopes + [2.0 ** (-4.0 * h / power) for h in range(1, 2 * (heads - power), 2)])


def relative_bucket(distance: int, buckets: int, bidirectional: bool, max_distance: int) -> int:
    """Return T5's bucket of `key position - query position`."""
    side, first = (buckets // 2, buckets // 2 * (distance > 0)) if bidirectional else (buckets, 0)
    steps = abs(distance) if bidirectional else max(-distance, 0)
    exact = side // 2
    if steps < exact:
        return first + steps
    # A hair above, so that an exact power does not fall into the bucket below by the logarithm's rounding.
    far = exact + int(math.log(steps / exact) / math.log(max_distance / exact) * (side - exact) + 1e-9)
    return first + min(far, side - 1)


def visible(rule: Rule, pairs: Pairs) -> np.ndarray:
    """Evaluate one mask rule; rules of rules first."""
    name = rule["rule"]
    if name in ("and", "or"):
        tables = [visible(part, pairs) for part in rule["of"]]
        return _all(tables) if name == "and" else ~_all([~table for table in tables])
    if name == "not":
        return ~visible(rule["of"][0], pairs)
    if name not in MASKS:
        raise NotImplementedError(f"no mask rule `{name}`; known are and, or, not, {', '.join(MASKS)}")
    return np.asarray(MASKS[name](rule, pairs))


def _all(tables: list[np.ndarray]) -> np.ndarray:
    found = tables[0]
    for table in tables[1:]:
        found = found & table
    return found


def _window(rule: Rule, pairs: Pairs) -> np.ndarray:
    left, right = rule["left"], rule["right"]
    after = True if left is None else pairs.distance >= -left
    before = True if right is None else pairs.distance <= right
    return np.broadcast_to(np.logical_and(after, before), pairs.distance.shape)


def _segments(rule: Rule, pairs: Pairs) -> np.ndarray:
    query = integers(rule["query_ids"], pairs.inputs)
    key = query if rule.get("key_ids") is None else integers(rule["key_ids"], pairs.inputs)
    same: np.ndarray = (_down(query) == _across(key)) & (_down(query) >= 0)
    return same


def _number(rule: Rule, name: str, pairs: Pairs) -> np.ndarray:
    """A number, or a number a batch item."""
    array = integers(rule[name], pairs.inputs)
    return array[..., None, None, None] if array.ndim else array


MASKS: Mapping[str, Callable[[Rule, Pairs], np.ndarray]] = {
    "causal": lambda rule, pairs: pairs.distance <= 0,
    "causal_lower_right": lambda rule, pairs: pairs.distance <= 0,
    "sliding_window": _window,
    "key_lengths": lambda rule, pairs: pairs.key_indices < _number(rule, "lengths", pairs),
    "query_lengths": lambda rule, pairs: pairs.query_indices < _number(rule, "lengths", pairs),
    "segments": _segments,
    "prefix": lambda rule, pairs: pairs.key_positions < _number(rule, "length", pairs),
    "chunked": lambda rule, pairs: pairs.key_positions // rule["size"] == pairs.query_positions // rule["size"],
    "dilated": lambda rule, pairs: pairs.distance % rule["step"] == 0,
    "global_tokens": lambda rule, pairs: (
        (pairs.query_positions < rule["count"]) | (pairs.key_positions < rule["count"])
    ),
    "dense": lambda rule, pairs: pairs.inputs[rule.get("input", "mask")],
}


def _bias(rule: Rule, pairs: Pairs, inputs: Mapping[str, Any], xp: Any) -> Any:
    name = rule["rule"]
    if name == "sum":
        return reduce(add, (_wide(xp) * _bias(part, pairs, inputs, xp) for part in rule["of"]))
    if name == "dense":
        return inputs[rule.get("input", "bias")]
    if name == "alibi":
        slopes = rule["slopes"]
        if isinstance(slopes, str):
            values = inputs[slopes]
        else:
            values = xp.asarray(alibi_slopes(slopes) if isinstance(slopes, int) else np.asarray(slopes, np.float64))
        return -values[:, None, None] * xp.asarray(np.abs(_with_head_axis(pairs.distance)).astype(np.float64))
    if name == "relative":
        return _relative(rule, pairs, inputs[rule["table"]], xp)
    raise NotImplementedError(f"no bias rule `{name}`; known are sum, dense, alibi, relative")


def _wide(xp: Any) -> Any:
    """A factor of 1 that takes 16 bits to the library's widest dtype: what is added up is rounded once."""
    return xp.asarray(np.ones(1))


def _relative(rule: Rule, pairs: Pairs, table: Any, xp: Any) -> Any:
    bidirectional, far = rule.get("bidirectional", True), rule.get("max_distance", 128)
    distance = pairs.distance
    buckets = np.array([relative_bucket(int(d), len(table), bidirectional, far) for d in distance.ravel()], dtype=int)
    by_pair = _wide(xp) * table[buckets.reshape(distance.shape)]  # (..., Lq, Lk, Hq)
    return xp.moveaxis(by_pair if distance.ndim == 2 else by_pair[..., 0, :, :, :], -1, -3)


def _positions(case: Case, name: str, length: int) -> np.ndarray:
    value = case.parameters.get(name, 0)
    if isinstance(value, int):
        return np.arange(length) + value
    return integers(value, case.inputs)


def _down(array: np.ndarray) -> np.ndarray:
    return array[:, None] if array.ndim == 1 else array[..., None, :, None]


def _across(array: np.ndarray) -> np.ndarray:
    return array[None, :] if array.ndim == 1 else array[..., None, None, :]


def _with_head_axis(distance: np.ndarray) -> np.ndarray:
    return distance if distance.ndim > 2 else distance[None]
