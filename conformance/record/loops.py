"""The second source for the groups: attention, its gradients and tangents in loops over Python's own numbers.

It shares no code with PyTorch, with the recording's PyTorch functions or with the attention under test: one row at a
time, sums without rounding (`math.fsum`), gradients in closed form. NumPy arrays are boxes only.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Parameters = Mapping[str, Any]
Index = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """The softmax of one query: its visible keys, their scores and weights, the sink's weight, lse."""

    keys: tuple[int, ...]
    scaled: tuple[float, ...]
    tanh: tuple[float, ...]
    weights: tuple[float, ...]
    sink: float
    lse: float


class Loops:
    """One case, asked row by row."""

    def __init__(self, inputs: Arrays, parameters: Parameters) -> None:
        self.parameters = parameters
        self.inputs = inputs
        arrays = {name: np.asarray(inputs[name], np.float64) for name in ("query", "key", "value")}
        self.plain = arrays["query"].ndim == 2
        self.swapped = parameters["layout"] == "BLHD" and not self.plain
        heads = {name: self.heads_first(array) for name, array in arrays.items()}
        self.batch = np.broadcast_shapes(*(array.shape[:-3] for array in heads.values()))
        self.query, self.key, self.value = (self._spread(heads[name]) for name in ("query", "key", "value"))
        self.heads, self.queries, self.depth = self.query.shape[-3:]
        self.keys = self.key.shape[-2]
        self.group = self.heads // self.key.shape[-3] if self.key.shape[-3] else 1
        scores = (*self.batch, self.heads, self.queries, self.keys)
        tables = {name: inputs[name] for name in inputs if inputs[name].ndim == 0 or name in ("mask", "bias", "keep")}
        tables |= {name: inputs[name] for name in inputs if name.startswith("given")}
        self.tables = {name: np.broadcast_to(array, scores) for name, array in tables.items()}

    def heads_first(self, array: np.ndarray) -> np.ndarray:
        """Return (..., H, L, D)."""
        array = array[None] if self.plain else array
        return np.swapaxes(array, -2, -3) if self.swapped else array

    def back(self, array: np.ndarray) -> np.ndarray:
        """Undo `heads_first`."""
        array = np.swapaxes(array, -2, -3) if self.swapped else array
        return array[0] if self.plain else array

    def _spread(self, array: np.ndarray) -> np.ndarray:
        return np.broadcast_to(array, (*self.batch, *array.shape[-3:]))

    def rows(self) -> Iterator[tuple[Index, int, int]]:
        """Yield every batch item, head and query."""
        for item in np.ndindex(self.batch):
            for head in range(self.heads):
                for query in range(self.queries):
                    yield item, head, query

    def dot(self, item: Index, head: int, i: int, j: int, query: Any = None, key: Any = None) -> float:
        """Return the product of a query (or its tangent) with a key (or its tangent)."""
        rows, columns = self.query if query is None else query, self.key if key is None else key
        one, other = rows[(*item, head, i)].tolist(), columns[(*item, head // self.group, j)].tolist()
        return total(a * b for a, b in zip(one, other, strict=True))

    def row(self, item: Index, head: int, i: int) -> Row:
        """Return the softmax of one query."""
        p = self.parameters
        keys = tuple(j for j in range(self.keys) if self.sees(item, head, i, j))
        scaled = tuple(p["scale"] * self.dot(item, head, i, j) for j in keys)
        cap = p["softcap"]
        tanh = tuple(0.0 if cap is None else math.tanh(s / cap) for s in scaled)
        capped = scaled if cap is None else tuple(cap * t for t in tanh)
        scores = [s + self.bias(p["bias"], item, head, i, j) for s, j in zip(capped, keys, strict=True)]
        sinks = [] if p["sinks"] is None else [float(self.inputs[p["sinks"]][head])]
        top = max([*scores, *sinks], default=-math.inf)
        if math.isnan(total([*scores])) or top == math.inf:
            return Row(
                keys, scaled, tanh, tuple(math.nan for _ in keys), math.nan, top if top == math.inf else math.nan
            )
        if top == -math.inf:
            return Row(keys, scaled, tanh, tuple(0.0 for _ in keys), 0.0, -math.inf)
        powers = [math.exp(s - top) for s in scores]
        sink = total(math.exp(s - top) for s in sinks)
        norm = total([*powers, sink])
        return Row(keys, scaled, tanh, tuple(x / norm for x in powers), sink / norm, top + math.log(norm))

    def sees(self, item: Index, head: int, i: int, j: int) -> bool:
        """Say whether a pair is visible: by the mask, and by a bias that is not -inf."""
        p = self.parameters
        if p["mask"] is not None and not self.rule(p["mask"], item, head, i, j):
            return False
        return bool(self.bias(p["bias"], item, head, i, j) != -math.inf)

    def place(self, name: str, item: Index, i: int) -> int:
        """Return the position of a query or key."""
        given = self.parameters[f"{name}_positions"]
        if name == "query" and _named(self.parameters["mask"], "causal_lower_right"):
            given = self.keys - self.queries
        return i + given if isinstance(given, int) else int(_of_item(given, item, 1)[i])

    def rule(self, rule: Mapping[str, Any], item: Index, head: int, i: int, j: int) -> bool:
        """Say whether the mask lets query i see key j."""
        name = rule["rule"]
        if name in ("and", "or", "not"):
            parts = [self.rule(part, item, head, i, j) for part in rule["of"]]
            return {"and": all(parts), "or": any(parts), "not": not parts[0]}[name]
        if name == "dense":
            return bool(self.tables[rule.get("input", "mask")][(*item, head, i, j)])
        if name == "segments":
            one, other = _of_item(rule["query_ids"], item, 1)[i], _of_item(rule["key_ids"], item, 1)[j]
            return bool(one == other and one >= 0)
        if name in ("key_lengths", "query_lengths"):
            return bool((j if name == "key_lengths" else i) < _of_item(rule["lengths"], item, 0))
        return self._by_position(rule, self.place("query", item, i), self.place("key", item, j), item)

    def _by_position(self, rule: Mapping[str, Any], query: int, key: int, item: Index) -> bool:
        name = rule["rule"]
        if name == "sliding_window":
            before, after = rule["left"], rule["right"]
            return (before is None or query - key <= before) and (after is None or key - query <= after)
        if name == "prefix":
            return bool(key < _of_item(rule["length"], item, 0))
        if name == "chunked":
            return math.floor(query / rule["size"]) == math.floor(key / rule["size"])
        if name == "dilated":
            return abs(query - key) % int(rule["step"]) == 0
        if name == "global_tokens":
            return min(query, key) < int(rule["count"])
        return key <= query

    def bias(self, rule: Any, item: Index, head: int, i: int, j: int) -> float:
        """Return what is added to the score of a pair."""
        if rule is None:
            return 0.0
        if rule["rule"] == "sum":
            return sum(self.bias(part, item, head, i, j) for part in rule["of"])
        if rule["rule"] == "dense":
            return float(self.tables[rule.get("input", "bias")][(*item, head, i, j)])
        distance = self.place("key", item, j) - self.place("query", item, i)
        if rule["rule"] == "alibi":
            slopes = rule["slopes"]
            if isinstance(slopes, int):
                return -paper_slopes(slopes)[head] * abs(distance)
            return -float((self.inputs[slopes] if isinstance(slopes, str) else slopes)[head]) * abs(distance)
        return float(self.inputs[rule["table"]][self.bucket(rule, distance), head])

    def bucket(self, rule: Mapping[str, Any], distance: int) -> int:
        """Return the row of T5's table, by whole powers instead of a logarithm."""
        count = self.inputs[rule["table"]].shape[0]
        side = count // 2 if rule["bidirectional"] else count
        if distance > 0:
            return side + _steps(distance, side, rule["max_distance"]) if rule["bidirectional"] else 0
        return _steps(-distance, side, rule["max_distance"])


def paper_slopes(heads: int) -> list[float]:
    """Return ALiBi's slopes as its authors' code finds them, calling itself for the next higher power of two."""
    exponent = math.log2(heads)
    if exponent.is_integer():
        first = 2.0 ** -(2.0 ** (3.0 - exponent))
        return [first ** (n + 1) for n in range(heads)]
    lower = 2 ** math.floor(exponent)
    return paper_slopes(lower) + paper_slopes(2 * lower)[0::2][: heads - lower]


def total(numbers: Any) -> float:
    """Return the sum, rounded once; NaN and infinities as they come."""
    listed = list(numbers)
    return math.fsum(listed) if all(map(math.isfinite, listed)) else sum(listed)


def _steps(distance: int, side: int, farthest: int) -> int:
    exact = side // 2
    if distance < exact:
        return distance
    reached = exact
    while reached < side - 1 and distance >= exact * (farthest / exact) ** ((reached + 1 - exact) / (side - exact)) * (
        1 - 1e-12
    ):
        reached += 1
    return reached


def _named(rule: Any, name: str) -> bool:
    return rule is not None and (rule["rule"] == name or any(_named(part, name) for part in rule.get("of", ())))


def _of_item(numbers: Any, item: Index, axes: int) -> Any:
    """Return what belongs to a batch item; missing leading axes are shared, axes of one entry too."""
    array = np.asarray(numbers)
    own = array.shape[: array.ndim - axes]
    used = tuple(0 if size == 1 else place for size, place in zip(own, item[len(item) - len(own) :], strict=True))
    return array[used].tolist()
