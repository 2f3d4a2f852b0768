"""The named wrong answers of the groups: each one convention that somebody takes, said as another call where it can be.

A departure gets a call and returns the call that the other convention amounts to, or None where the case has nothing
that it could change. What no other call can say is a `switch` of `conformance.record.formula`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.record.formula import attention

Tensor = Any
Rule = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Call:
    """One call: tensors, parameters, and a switch of the formula."""

    inputs: Mapping[str, Tensor]
    parameters: Mapping[str, Any]
    switch: str = ""
    memory: Mapping[str, Any] = field(default_factory=dict)

    def outputs(self) -> dict[str, Tensor]:
        """Compute it."""
        return attention(self.inputs, self.parameters, self.switch)

    def given(self, **parameters: Any) -> "Call":
        """Return the call with other parameters."""
        return replace(self, parameters={**self.parameters, **parameters})

    def tensor(self, **inputs: Tensor) -> "Call":
        """Return the call with other tensors."""
        return replace(self, inputs={**self.inputs, **inputs})

    def axis(self, name: str) -> int:
        """Return a size by its letter."""
        heads, lengths = (-2, -3) if self.parameters["layout"] == "BLHD" and self["query"].ndim > 2 else (-3, -2)
        sizes = {"D": ("query", -1), "Dv": ("value", -1), "Lq": ("query", lengths), "Lk": ("key", lengths)}
        sizes |= {"Hq": ("query", heads), "Hkv": ("key", heads)}
        tensor, axis = sizes[name]
        return 1 if self[tensor].ndim == 2 and name[0] == "H" else int(self[tensor].shape[axis])

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes of the query."""
        return tuple(self["query"].shape[:-3])

    def __getitem__(self, name: str) -> Tensor:
        return self.inputs[name]

    def rules(self, name: str, change: Callable[[Rule], Rule | None]) -> "Call | None":
        """Return the call with every rule of this name (or every rule, "*") changed."""
        if self.parameters["mask"] is None:
            return None
        mask = changed(self.parameters["mask"], name, change)
        return None if mask == self.parameters["mask"] else self.given(mask=mask)

    def biases(self, name: str, change: Callable[[Rule], Rule]) -> "Call | None":
        """Return the call with every bias of this name changed."""
        if self.parameters["bias"] is None:
            return None
        bias = changed(self.parameters["bias"], name, change)
        return None if bias == self.parameters["bias"] else self.given(bias=bias)


def changed(rule: Rule, name: str, change: Callable[[Rule], Rule | None]) -> Any:
    """Return a rule with those of one name changed; a part that became None is left out."""
    if "of" in rule and name not in ("*", rule["rule"]):
        parts = [part for part in (changed(part, name, change) for part in rule["of"]) if part is not None]
        return {**rule, "of": parts} if parts else None
    return change(rule) if name in ("*", rule["rule"]) else rule


Change = Callable[[Call], Call | None]
TABLE: dict[str, tuple[str, Change]] = {}


def departure(name: str, means: str, change: Change) -> None:
    """Enter one departure."""
    TABLE[name] = (means, change)


def switch(name: str, means: str, applies: Callable[[Call], Any]) -> None:
    """Enter a departure that the formula knows by its name."""
    TABLE[name] = (means, lambda c: replace(c, switch=name) if applies(c) else None)


def found(call: Call, name: str) -> Call | None:
    """Return the call that a departure amounts to here, or None."""
    return TABLE[name][1](call)


def whole(rule: Rule) -> bool:
    """Say whether a mask is one rule, without parts."""
    return "of" not in rule
