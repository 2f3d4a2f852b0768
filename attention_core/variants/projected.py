"""What the article's four variants share: three projections, attention, and heads side by side on the last axis.

Weights are stacked by head, ``(H, d_in, d)``; a single head is ``H = 1``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from ..arrays import Array, array_namespace, compute_dtype, describe, matmul, sum_to_shape, transpose
from ..attention import attention_scores, dot_product_attention
from ..attention import vjp as attention_vjp
from ..checks import check_dtypes
from ..masks import Mask
from .decoding import Decoding, attend_decoding, check_decoding, decoding_positions
from .headed_call import HeadedCall, KeysValues
from .layer import Parameter, check_inputs
from .linear import join_heads

__all__ = [
    "Projections",
    "attend",
    "attend_prepared",
    "attend_steps",
    "attend_vjp",
    "check_weights",
    "decode",
    "keys_values",
    "one_head",
    "weight_parameters",
]

NAMES = ("W_query", "W_key", "W_value")


Inputs: TypeAlias = Mapping[str, Array]
"""The inputs by the caller's names: one sequence, or the one that asks and the one that answers."""


class Projections(NamedTuple):
    """The three weights, ``(H, d_in, d_out_kq)`` twice and ``(H, d_in, d_out_v)``."""

    W_query: Array
    W_key: Array
    W_value: Array


def weight_parameters(prefix: str = "", *, d_in: int, d_out_kq: int, d_out_v: int) -> dict[str, Parameter]:
    """Shapes of one head's weights; the article draws all of them uniformly from [0, 1)."""
    depths = zip(NAMES, (d_out_kq, d_out_kq, d_out_v), strict=True)
    return {prefix + name: Parameter((d_in, depth)) for name, depth in depths}


def check_weights(weights: Mapping[str, Array], prefixes: tuple[str, ...] = ("",)) -> None:
    """Raise for a name that is missing or not expected, for what is no real array, and for shapes that do not fit."""
    if not isinstance(weights, Mapping):
        raise TypeError(f"`weights` must be a mapping of names to arrays; got {describe(weights)}")
    expected = [prefix + name for prefix in prefixes for name in NAMES]
    missing, unexpected = [n for n in expected if n not in weights], [n for n in weights if n not in expected]
    if missing or unexpected:
        names = ", ".join(expected[:3]) + (f" ... {expected[-1]}" if len(expected) > 3 else "")
        raise ValueError(f"`weights` must hold {names}; missing: {missing}, not expected: {unexpected}")
    check_dtypes(array_namespace(*weights.items()), **weights)
    d_in, d_out_kq = _matrix_shape(expected[0], weights[expected[0]])
    _, d_out_v = _matrix_shape(expected[2], weights[expected[2]])
    for prefix in prefixes:
        for name, depth in zip(NAMES, (d_out_kq, d_out_kq, d_out_v), strict=True):
            if _matrix_shape(prefix + name, weights[prefix + name]) != (d_in, depth):
                shape = tuple(weights[prefix + name].shape)
                raise ValueError(
                    f"`{prefix}{name}` has shape {shape}; beside the other weights it must be {(d_in, depth)}"
                )


def _matrix_shape(name: str, x: Array) -> tuple[int, int]:
    if x.ndim != 2:
        raise ValueError(f"`{name}` must be a matrix (d_in, d_out); got shape {tuple(x.shape)}")
    return int(x.shape[0]), int(x.shape[1])


def attend(weights: Projections, mask: Mask | None, inputs: Inputs) -> Array:
    """Return the context vectors ``(..., L_1, H * d_out_v)``."""
    xp, (queries, keys, values) = _project(weights, inputs)
    return join_heads(xp, dot_product_attention(queries, keys, values, mask=mask))


def keys_values(weights: Projections, x_2: Array) -> KeysValues:
    """Return the keys and values of ``x_2``, ``(..., H, L_2, d)``."""
    _, projected = _projected(weights, {"x_2": x_2}, (("W_key", x_2), ("W_value", x_2)))
    return KeysValues(*projected)


def attend_prepared(weights: Projections, x_1: Array, prepared: KeysValues) -> Array:
    """Return the context vectors of ``x_1``, which attends to keys and values that are projected already."""
    xp, (queries,) = _projected(weights, {"x_1": x_1}, (("W_query", x_1),))
    return join_heads(xp, dot_product_attention(queries, *prepared))


def decode(weights: Projections, mask: Mask | None, x: Array, decoding: Decoding) -> Any:
    """Return the context vectors of a padded batch; with a cache, the cache that holds ``x`` too beside them."""
    check_decoding(x, mask is not None, {}, decoding)
    xp, (queries, keys, values) = _project(weights, {"x": x})
    positions, call = decoding_positions(x, decoding), HeadedCall(mask=mask)
    heads, cache = attend_decoding(queries, KeysValues(keys, values), None, call, positions, decoding)
    out = join_heads(xp, heads)
    return out if cache is None else (out, cache)


def attend_steps(weights: Projections, mask: Mask | None, inputs: Inputs) -> dict[str, Array]:
    """Return every intermediate of the article by its name, with a head axis: ``(..., H, L, d)``."""
    xp, (queries, keys, values) = _project(weights, inputs)
    result = dot_product_attention(queries, keys, values, mask=mask, return_weights=True)
    return {
        "queries": queries,
        "keys": keys,
        "values": values,
        "attn_scores": attention_scores(queries, keys, scale=1.0, stage="scaled"),
        "scaled_scores": attention_scores(queries, keys, stage="scaled"),
        "attn_weights": result.weights,
        "context_vec": join_heads(xp, result.out),
    }


def one_head(steps: dict[str, Array]) -> dict[str, Array]:
    """Drop the head axis of the steps of a single head."""
    return {name: x if name == "context_vec" else x[..., 0, :, :] for name, x in steps.items()}


@dataclass(frozen=True, eq=False)
class _Pullback:
    """From the cotangent of the context vectors to those of the inputs and of the weights."""

    xp: ModuleType
    weights: Projections
    inputs: tuple[Array, Array]
    shape: tuple[int, ...]
    pullback: Callable[..., Any]

    def __call__(self, cotangent: Array) -> tuple[Array, Array, Projections]:
        xp, weights = self.xp, self.weights
        _check_cotangent(cotangent, self.shape)
        *batch, heads, length, depth = self.shape
        split = xp.reshape(cotangent, (*batch, length, heads, depth))
        queries, keys, values, *_ = self.pullback(xp.moveaxis(split, -2, -3))
        x_1, x_2 = self.inputs
        dx_1 = _input_cotangent(xp, x_1, (queries, weights.W_query))
        dx_2 = _input_cotangent(xp, x_2, (keys, weights.W_key), (values, weights.W_value))
        rows = ((x_1, queries, weights.W_query), (x_2, keys, weights.W_key), (x_2, values, weights.W_value))
        return dx_1, dx_2, Projections(*(_weight_cotangent(xp, *row) for row in rows))


def attend_vjp(weights: Projections, mask: Mask | None, inputs: Inputs) -> tuple[Array, _Pullback]:
    """Return the context vectors and the pullback to ``(x_1, x_2, weights)``."""
    xp, projected = _project(weights, inputs)
    result, pullback = attention_vjp(*projected, mask=mask)
    return join_heads(xp, result.out), _Pullback(xp, weights, _both(inputs), tuple(result.out.shape), pullback)


def _check_cotangent(cotangent: Array, shape: tuple[int, ...]) -> None:
    *batch, heads, length, depth = shape
    expected = (*batch, length, heads * depth)
    if not hasattr(cotangent, "shape") or tuple(cotangent.shape) != expected:
        got = f"shape {tuple(cotangent.shape)}" if hasattr(cotangent, "shape") else describe(cotangent)
        raise ValueError(f"the cotangent must have the shape of the context vectors, {expected}; got {got}")


def _project(weights: Projections, inputs: Inputs) -> tuple[ModuleType, list[Array]]:
    x_1, x_2 = _both(inputs)
    return _projected(weights, inputs, (("W_query", x_1), ("W_key", x_2), ("W_value", x_2)))


def _projected(
    weights: Projections, inputs: Inputs, parts: tuple[tuple[str, Array], ...]
) -> tuple[ModuleType, list[Array]]:
    _check_projections(weights)
    xp = check_inputs(weights.W_query.shape[-2], weights._asdict(), inputs)
    rows = [(x, getattr(weights, name)) for name, x in parts]
    return xp, [_product(xp, x[..., None, :, :], weight, xp.result_type(x.dtype, weight.dtype)) for x, weight in rows]


def _check_projections(weights: Projections) -> None:
    """A layer that was made by its constructor has not been looked at yet."""
    for name, weight in weights._asdict().items():
        if weight.ndim != 3:
            raise ValueError(f"`{name}` must be a matrix (d_in, d_out) a head; got shape {tuple(weight.shape[1:])}")
    first = tuple(weights.W_query.shape)
    for name, weight in weights._asdict().items():
        depth = weight.shape[-1] if name == "W_value" else first[-1]
        if tuple(weight.shape) != (*first[:2], depth):
            here, there = (f"{shape[0]} x {tuple(shape[1:])}" for shape in (weight.shape, (*first[:2], depth)))
            raise ValueError(f"`{name}` is {here}, heads x (d_in, d_out); beside `W_query` it must be {there}")


def _both(inputs: Inputs) -> tuple[Array, Array]:
    first, *_, last = (*inputs.values(), *inputs.values())
    return first, last


def _product(xp: ModuleType, x: Array, weight: Array, dtype: Any) -> Array:
    # NumPy gives float32 for a product of bfloat16: hence the cast after it
    return xp.astype(matmul(xp, xp.astype(x, dtype), xp.astype(weight, dtype)), dtype)


def _input_cotangent(xp: ModuleType, x: Array, *projected: tuple[Array, Array]) -> Array:
    """Sum ``cotangent W^T`` over the projections of ``x`` and their heads, in the compute dtype."""
    parts = [
        xp.sum(
            _product(xp, cotangent, transpose(xp, weight), compute_dtype(xp, cotangent.dtype, weight.dtype)), axis=-3
        )
        for cotangent, weight in projected
    ]
    return xp.astype(sum(parts[1:], start=parts[0]), x.dtype)


def _weight_cotangent(xp: ModuleType, x: Array, cotangent: Array, weight: Array) -> Array:
    """Sum ``x^T cotangent`` over the batch, in the compute dtype."""
    products = _product(xp, transpose(xp, x[..., None, :, :]), cotangent, compute_dtype(xp, x.dtype, cotangent.dtype))
    return xp.astype(sum_to_shape(xp, products, tuple(weight.shape)), weight.dtype)
