"""Numbers of 40 digits that remember how they were made: the second source's reverse-mode differentiation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import mpmath

CONTEXT = mpmath.MPContext()
CONTEXT.dps = 40


@dataclass(eq=False, slots=True)
class Number:
    """A value, and the numbers that it came from with the derivative with respect to each."""

    value: Any
    parents: tuple[tuple[Number, Any], ...] = field(default=())

    def __add__(self, other: Number) -> Number:
        return Number(self.value + other.value, ((self, 1), (other, 1)))

    def __sub__(self, other: Number) -> Number:
        return Number(self.value - other.value, ((self, 1), (other, -1)))

    def __mul__(self, other: Number) -> Number:
        return Number(self.value * other.value, ((self, other.value), (other, self.value)))

    def __truediv__(self, other: Number) -> Number:
        quotient = self.value / other.value
        return Number(quotient, ((self, 1 / other.value), (other, -quotient / other.value)))

    def exp(self) -> Number:
        """Return e to this number."""
        power = CONTEXT.exp(self.value)
        return Number(power, ((self, power),))

    def log(self) -> Number:
        """Return the natural logarithm."""
        return Number(CONTEXT.log(self.value), ((self, 1 / self.value),))


def number(value: Any) -> Number:
    """Make a number with no past; a float is taken exactly."""
    return Number(CONTEXT.mpf(value))


def total(numbers: Iterable[Number]) -> Number:
    """Return the sum, 0 of nothing."""
    result = number(0)
    for each in numbers:
        result = result + each
    return result


def derivatives(result: Number) -> dict[int, Any]:
    """Return the derivative of `result` with respect to every number that it came from, by the number's `id`."""
    found: dict[int, Any] = {id(result): CONTEXT.mpf(1)}
    for node in reversed(_in_order(result)):
        for parent, slope in node.parents:
            found[id(parent)] = found.get(id(parent), CONTEXT.mpf(0)) + found[id(node)] * slope
    return found


def _in_order(result: Number) -> list[Number]:
    """Every number after those that it came from, without recursion."""
    order: list[Number] = []
    seen: set[int] = set()
    stack: list[tuple[Number, bool]] = [(result, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((parent, False) for parent, _ in node.parents)
    return order
