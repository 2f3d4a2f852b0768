"""What several peers say in the same way, in the core's words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import and_
from types import ModuleType
from typing import Any

from .. import biases, masks
from ..arrays import Array, array_namespace, cast, describe, dtype_name
from ..dropout import Dropout, dropout
from ..masks import Mask

__all__ = [
    "all_of",
    "check_axes",
    "dropout_of",
    "mask_or_bias",
    "mean_of_values_where_empty",
    "unbounded",
]


def all_of(*parts: Mask | None) -> Mask | None:
    """Return the mask of the pairs that every part lets through; ``None`` is no mask."""
    given = [part for part in parts if part is not None]
    return reduce(and_, given) if given else None


def check_axes(legends: Mapping[int, str], **arrays: Array) -> ModuleType:
    """Check that all arrays have one of the peer's numbers of axes, and return their namespace."""
    xp = array_namespace(*arrays.items())
    shapes = ", ".join(f"`{name}` {tuple(x.shape)}" for name, x in arrays.items())
    if any(x.ndim not in legends for x in arrays.values()) or len({x.ndim for x in arrays.values()}) > 1:
        raise ValueError(f"all of {', '.join(arrays)} must be {' or '.join(legends.values())}; got {shapes}")
    return xp


def mask_or_bias(name: str, x: Any) -> dict[str, Any]:
    """Return the core's argument for a peer's mask: booleans are a ``mask``, numbers a ``bias``."""
    if x is None:
        return {}
    if not hasattr(x, "dtype"):
        raise TypeError(f"`{name}` must be an array of booleans, True = may attend, or of numbers; got {describe(x)}")
    return {"mask": masks.dense(x)} if "bool" in dtype_name(x.dtype) else {"bias": biases.dense(x)}


def unbounded(bound: int) -> int | None:
    """Return a window's bound where the peer writes -1 for none."""
    return None if bound == -1 else bound


def dropout_of(rate: float, seed: int | Array | None) -> Dropout | None:
    """Return the dropout of a peer's rate: which pairs it drops is a function of ``seed``, not of hidden state."""
    if rate == 0:
        return None
    if seed is None:
        raise ValueError(f"`dropout_p` is {rate}, so `seed` is needed: what is dropped depends on nothing else")
    return dropout(rate, seed=seed)


def mean_of_values_where_empty(out: Array, lse: Array, value: Array, layout: str = "BHLD") -> Array:
    """Put the mean of all values into the rows that see no key, where the core has 0.

    That is what a softmax gives whose masked scores are one large negative number instead of ``-inf``: all of a row's
    scores are equal then.
    """
    xp = array_namespace(("out", out))
    keys, heads = (-2, -3) if layout == "BHLD" else (-3, -2)
    if 0 in value.shape:
        return out
    mean = xp.mean(cast(xp, value, lse.dtype), axis=keys, keepdims=True)
    mean = xp.repeat(mean, out.shape[heads] // value.shape[heads], axis=heads)
    empty = lse == -xp.inf
    empty = empty if layout == "BHLD" else xp.matrix_transpose(empty)
    return xp.where(empty[..., None], cast(xp, mean, out.dtype), out)
