"""Masks as modules take them, and the mistakes that every port can make."""

from collections.abc import Callable
from typing import Any

import torch

Edit = Callable[[Any], None]


def causal_mask(length: int, window: int | None = None) -> torch.Tensor:
    """Return ``(L, L)``, `True` where a query sees: nothing after itself, and at most `window` keys with itself."""
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    return seen if window is None else seen.triu(1 - window)


def length_mask(length: int, lengths: list[int]) -> torch.Tensor:
    """Return ``(B, 1, 1, L)``, `True` for the keys that exist."""
    return (torch.arange(length) < torch.tensor(lengths)[:, None])[:, None, None, :]


def additive(seen: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the mask that is added to the scores, ``(B or 1, 1, Lq, Lk)``."""
    numbers = torch.zeros(seen.shape, dtype=like.dtype).masked_fill(~seen, -torch.inf)
    return numbers if numbers.ndim == 4 else numbers[None, None]


def scaled_by(module: Any, scale: float) -> None:
    """Give the module another factor of the scores."""
    for name in ("scaling", "inv_norm_factor"):
        if hasattr(module, name):
            setattr(module, name, scale)


def roll_heads(name: str, heads: int) -> Edit:
    """Put a projection's heads in another order."""

    def edit(module: Any) -> None:
        linear = module.get_submodule(name)
        for parameter in linear.parameters():
            parameter.data = parameter.data.roll(parameter.shape[0] // heads, 0)

    return edit


def roll_columns(name: str, heads: int) -> Edit:
    """Put the heads that a weight reads in another order."""

    def edit(module: Any) -> None:
        weight = dict(module.named_parameters())[name]
        weight.data = weight.data.roll(weight.shape[1] // heads, 1)

    return edit


def reorder(names: tuple[str, ...], order: Callable[[int], list[int]], axis: int = 0) -> Edit:
    """Read the outputs of projections in another order, `order(their number)`, along an axis of weight and bias."""

    def edit(module: Any) -> None:
        for name in names:
            for parameter in module.get_submodule(name).parameters():
                count = parameter.shape[axis]
                parameter.data = parameter.data.index_select(axis, torch.tensor(order(count)))

    return edit


def thirds_as_by_head(name: str, heads: int) -> Edit:
    """Let a Linear that goes head by head be read as all queries, all keys, all values."""

    def order(rows: int) -> list[int]:
        depth = rows // (3 * heads)
        return [(part * heads + h) * depth + j for h in range(heads) for part in range(3) for j in range(depth)]

    return reorder((name,), order)


def by_head_as_thirds(name: str, heads: int) -> Edit:
    """Let a Conv1D of all queries, all keys, all values be read head by head."""

    def order(columns: int) -> list[int]:
        depth = columns // (3 * heads)
        return [(h * 3 + part) * depth + j for part in range(3) for h in range(heads) for j in range(depth)]

    return reorder((name,), order, axis=-1)


def other_rotation(depth: int, turning: int | None = None) -> Callable[[int], list[int]]:
    """The order of rows under which half-split rotation pairs what interleaved rotation pairs, head by head.

    Of each head of `depth` features the last `turning` turn.
    """
    count = depth if turning is None else turning
    pairs = [*range(0, count, 2), *range(1, count, 2)]
    head = [*range(depth - count), *(depth - count + feature for feature in pairs)]
    return lambda rows: [start + feature for start in range(0, rows, depth) for feature in head]
