"""A functional case as most peers want it: four axes, heads first, tables for what they have no argument for.

The peer's arrays are made by its own library (`xp`), so that its gradients reach the case's inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from conformance import rules
from conformance.cases import Case

DEPTHS = "depth"  # the group that asks for other depths of the value
NOT_ATTENTION = "has attention from query, key and value only"
INVALID = "what a call must refuse is asked of implementations of this project's own call"


@dataclass(frozen=True, eq=False)
class Question:
    """`query (B, Hq, Lq, D)`, `key (B, Hkv, Lk, D)`, `value (B, Hkv, Lk, Dv)`, and how to give the answer back."""

    case: Case
    inputs: Mapping[str, Any]
    xp: Any
    one_depth: bool = False

    @property
    def batch(self) -> tuple[int, ...]:
        """Return the leading axes of query, key and value together."""
        shapes = (self.inputs[name].shape[:-3] for name in ("query", "key", "value"))
        return np.broadcast_shapes(*(tuple(shape) for shape in shapes))

    @property
    def plain(self) -> bool:
        """Whether the arrays are one head without an axis for it."""
        return len(self.inputs["query"].shape) == 2

    def array(self, name: str) -> Any:
        """Return `query`, `key` or `value` with four axes, heads first."""
        x = self.inputs[name]
        if len(x.shape) == 2:
            return x[None, None]
        if self.case.parameters["layout"] == "BLHD":
            x = x.swapaxes(-2, -3)
        x = self.xp.broadcast_to(x, (*self.batch, *x.shape[-3:]))
        return x.reshape((prod(self.batch), *x.shape[-3:]))

    def arrays(self) -> tuple[Any, Any, Any]:
        """Return query, key and value with four axes; where the peer has one depth for all, padded to it with zeros.

        Zeros change neither the scores, whose scale is given, nor the columns that `out` keeps. Where depths are the
        question, nothing is padded.
        """
        query, key, value = self.array("query"), self.array("key"), self.array("value")
        if not self.one_depth or self.case.group == DEPTHS:
            return query, key, value
        depth = max(query.shape[-1], value.shape[-1])
        return self._padded(query, depth), self._padded(key, depth), self._padded(value, depth)

    def _padded(self, x: Any, depth: int) -> Any:
        missing = depth - x.shape[-1]
        return self.xp.concat([x, self.xp.zeros((*x.shape[:-1], missing), dtype=x.dtype)], axis=-1) if missing else x

    def table(self, x: Any) -> Any:
        """Give a mask or bias `(..., Hq, Lq, Lk)` four axes; where the batch has at most one, it stays unbroadcast."""
        if len(self.batch) > 1:
            shape = tuple(x.shape)
            x = x.reshape((1,) * (3 - len(shape)) + shape)
            x = self.xp.broadcast_to(x, (*self.batch, *x.shape[-3:]))
            return x.reshape((prod(self.batch), *x.shape[-3:]))
        return x.reshape((1,) * (4 - len(x.shape)) + tuple(x.shape))

    def mask(self, native: tuple[str, ...] = ()) -> tuple[dict[str, rules.Rule], np.ndarray | None]:
        """Split the mask into the rules that the peer has arguments for, and one table for the rest."""
        parts = and_parts(self.case.parameters["mask"])
        if not self.indices_are_positions():
            native = tuple(name for name in native if name.endswith("lengths"))
        found = {rule["rule"]: rule for rule in parts if rule["rule"] in native}
        rest = [rule for rule in parts if found.get(rule["rule"]) is not rule]
        if not rest:
            return found, None
        pairs = rules.pairs_of(self.case)
        table = rules.visible({"rule": "and", "of": rest}, pairs)
        return found, self.table_of(table)

    def bias(self, dtype: Any = None) -> Any:
        """Return the bias with four axes, made of the inputs by their own library, so that they have gradients."""
        rule = self.case.parameters["bias"]
        if rule is None:
            return None
        table = self.table(rules.bias_table(self.case, self.inputs, self.xp))
        return table if dtype is None or rule["rule"] == "dense" else table.astype(dtype)

    def table_of(self, table: np.ndarray) -> Any:
        """Return a NumPy table with four axes, still NumPy's."""
        numpy_question = Question(self.case, self.inputs, np)
        return numpy_question.table(table)

    def indices_are_positions(self) -> bool:
        """Whether queries and keys stand at 0, 1, 2, ...: what a peer without positions assumes."""
        parameters = self.case.parameters
        shifted = rules.sets_positions(parameters["mask"])
        return not shifted and all(parameters[name] == 0 for name in ("query_positions", "key_positions"))

    def default_scale(self) -> bool:
        """Whether the scale is `1/sqrt(D)`, to the bit."""
        depth = self.inputs["query"].shape[-1]
        return bool(depth) and self.case.parameters["scale"] in (depth**-0.5, 1 / depth**0.5)

    def grouped(self) -> bool:
        """Whether several query heads share a key head."""
        return bool(self.array("query").shape[1] != self.array("key").shape[1])

    def out(self, x: Any) -> Any:
        """Return `(B, Hq, Lq, Dv)` in the case's shape, without the columns that were padded."""
        x = x[..., : self.inputs["value"].shape[-1]]
        if self.plain:
            return x[0, 0]
        x = x.reshape((*self.batch, *x.shape[1:]))
        return x.swapaxes(-2, -3) if self.case.parameters["layout"] == "BLHD" else x

    def per_pair(self, x: Any) -> Any:
        """Return weights `(B, Hq, Lq, Lk)` or lse `(B, Hq, Lq)` in the case's shape."""
        return x[0, 0] if self.plain else x.reshape((*self.batch, *x.shape[1:]))


def and_parts(rule: rules.Rule | None) -> list[rules.Rule]:
    """Return the masks that all must agree; none for no mask."""
    if rule is None:
        return []
    return [part for each in rule["of"] for part in and_parts(each)] if rule["rule"] == "and" else [rule]


def refusal(case: Case, signature: str, lacking: tuple[str, ...]) -> str:
    """Return an empty string, or why a peer cannot be asked; `lacking` names what its documented call does not take."""
    if case.op != "attention":
        return NOT_ATTENTION
    if not case.valid:
        return INVALID
    missing = [name for name in lacking if case.parameters.get(name) is not None]
    return f"no `{missing[0]}` in its documented call, {signature}" if missing else ""
