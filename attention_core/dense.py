"""The dense definition of attention: what every kernel is held against.

Each stage is a line of the formula, on arrays of shape ``(..., Hq, Lq, Lk)``. Pairs that may not attend contribute
exactly nothing, forward and backward, whatever stands in query, key or value there. A product with 0 does not give that
(``0 * NaN`` is NaN), so what is not finite is taken out of every product and its effect put back for the pairs that see
it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Literal, TypeAlias, get_args

from .arrays import Array, cast, if_true, known_finite, matmul, scalar_like, transpose
from .problem import Problem, Result
from .softmax import Softmax, masked_softmax

__all__ = [
    "STAGES",
    "Stage",
    "dense_attention",
    "drop",
    "group_rows",
    "over_keys",
    "over_queries",
    "pair_products",
    "scores",
    "ungroup_rows",
    "visible_pairs",
]

Stage: TypeAlias = Literal["scaled", "capped", "biased", "masked"]
STAGES: tuple[Stage, ...] = get_args(Stage)


def dense_attention(problem: Problem, *, lse: bool = True, weights: bool = True) -> Result:
    """Attention by its definition, one stage after the other."""
    xp, p = problem.xp, problem
    visible = visible_pairs(p)
    softmax = softmax_of(p, visible)
    out = over_keys(p, drop(p, softmax.weights), visible, cast(xp, p.value, p.dtype))
    if visible is not None:  # it is 0 there already, but an autodiff would multiply the cotangent, NaN perhaps, by 0
        some = xp.any(visible, axis=-1, keepdims=True) if visible.ndim else visible
        out = xp.where(some, out, scalar_like(xp, 0.0, out))
    return Result(
        out=cast(xp, out, p.out_dtype),
        lse=softmax.lse() if lse else None,
        weights=softmax.weights if weights else None,
    )


def softmax_of(problem: Problem, visible: Array | None) -> Softmax:
    """Return the softmax of the masked scores."""
    p = problem
    sinks = None if p.sinks is None else cast(p.xp, p.sinks, p.dtype)
    return masked_softmax(p.xp, scores(p, "masked", visible), sinks)


def visible_pairs(problem: Problem) -> Array | None:
    """Return booleans that broadcast to ``(..., Hq, Lq, Lk)``, or ``None`` where every pair is visible."""
    p = problem
    visible = p.mask.visible(p.pairs()) if p.mask is not None and p.seen is None else p.seen
    if p.bias is None or not p.bias.may_mask():
        return visible
    unmasked = p.bias.values(p.pairs(), p.dtype) != -p.xp.inf
    return unmasked if visible is None else visible & unmasked


def scores(problem: Problem, stage: Stage, visible: Array | None) -> Array:
    """Return the scores ``(..., Hq, Lq, Lk)`` after ``stage``, in the compute dtype."""
    xp, p = problem.xp, problem
    scaled = p.scale * cast(xp, p.query, p.dtype)  # D roundings that average out, not one of each large score
    s = pair_products(p, scaled, cast(xp, p.key, p.dtype), visible)
    if stage == "scaled":
        return s
    if p.softcap is not None:  # before bias and mask, or a capped -inf would come back as -softcap
        if visible is not None:  # the derivative of tanh would be NaN where a masked score is
            s = xp.where(visible, s, scalar_like(xp, 0.0, s))
        s = p.softcap * xp.tanh(s / p.softcap)
    if stage == "capped":
        return s
    if p.bias is not None:
        s = s + p.bias.values(p.pairs(), p.dtype)
    if stage == "biased" or visible is None:
        return s
    return xp.where(visible, s, scalar_like(xp, -xp.inf, s))


def pair_products(problem: Problem, rows: Array, columns: Array, visible: Array | None) -> Array:
    """Return ``rows_i . columns_j`` of ``(..., Hq, Lq, C)`` and ``(..., Hkv, Lk, C)``: ``(..., Hq, Lq, Lk)``.

    Grouped heads without a copy of the columns; NaN where a row or a column is not finite and some pairs are masked.
    """
    xp, p = problem.xp, problem
    if visible is None or (known_finite(xp, rows) and known_finite(xp, columns)):
        products = matmul(xp, group_rows(p, rows), transpose(xp, columns))
    else:
        products = matmul(xp, group_rows(p, _finite(xp, rows)), transpose(xp, _finite(xp, columns)))
        products = products + (group_rows(p, _poison(xp, rows)) + transpose(xp, _poison(xp, columns)))
    products = ungroup_rows(p, products)
    same = tuple(products.shape) == p.sizes.scores
    return products if same else xp.broadcast_to(products, p.sizes.scores)  # value alone has some batch axis


def _finite(xp: ModuleType, x: Array) -> Array:
    return xp.where(xp.isfinite(x), x, scalar_like(xp, 0.0, x))


def _poison(xp: ModuleType, x: Array) -> Array:
    """NaN for each row of ``x`` that holds NaN or an infinity, else 0: ``(..., L, 1)``."""
    sound = xp.all(xp.isfinite(x), axis=-1, keepdims=True)
    return xp.where(sound, scalar_like(xp, 0.0, x), scalar_like(xp, xp.nan, x))


def drop(problem: Problem, weights: Array) -> Array:
    """Apply inverted dropout to weights, or to their cotangents: its own transpose."""
    xp, p = problem.xp, problem
    if p.dropout is None or p.dropout.rate == 0:
        return weights
    kept = p.dropout.kept(p.pairs())
    return xp.where(kept, weights / (1.0 - p.dropout.rate), scalar_like(xp, 0.0, weights))


def over_keys(problem: Problem, weights: Array, visible: Array | None, x: Array) -> Array:
    """Sum ``weights (..., Hq, Lq, Lk)`` times ``x (..., Hkv, Lk, C)`` over the visible keys: ``(..., Hq, Lq, C)``."""
    xp, p = problem.xp, problem
    weights = group_rows(p, weights)
    return ungroup_rows(p, _visible_product(xp, weights, x, _where_needed(p, visible, x)))


def over_queries(problem: Problem, weights: Array, visible: Array | None, x: Array) -> Array:
    """Sum ``weights (..., Hq, Lq, Lk)`` times ``x (..., Hq, Lq, C)`` over the queries: ``(..., Hkv, Lk, C)``."""
    xp, p = problem.xp, problem
    seen = _where_needed(p, visible, x)
    swapped = None if seen is None else lambda: transpose(xp, seen())
    return _visible_product(xp, transpose(xp, group_rows(p, weights)), group_rows(p, x), swapped)


def _where_needed(problem: Problem, visible: Array | None, x: Array) -> Callable[[], Array] | None:
    """Return what gives the visible pairs, grouped as the weights are, or ``None`` where an ordinary product does."""
    xp, p = problem.xp, problem
    if visible is None or known_finite(xp, x):
        return None
    return lambda: group_rows(p, xp.broadcast_to(visible, p.sizes.scores))


def _visible_product(xp: ModuleType, weights: Array, x: Array, seen: Callable[[], Array] | None) -> Array:
    if seen is None:
        return matmul(xp, weights, x)
    product = matmul(xp, weights, _finite(xp, x))
    sound = xp.all(xp.isfinite(x))
    return if_true(sound, lambda: product, lambda: product + _seen_infinities(xp, seen(), x))


def _seen_infinities(xp: ModuleType, seen: Array, x: Array) -> Array:
    """NaN and infinities where ``seen`` pairs meet them in ``x``, and 0 elsewhere."""
    seen, unknown = xp.astype(seen, x.dtype), xp.isnan(x)
    up = matmul(xp, seen, xp.astype(unknown | (x == xp.inf), x.dtype)) > 0
    down = matmul(xp, seen, xp.astype(unknown | (x == -xp.inf), x.dtype)) > 0
    zero, inf, nan = (scalar_like(xp, number, x) for number in (0.0, xp.inf, xp.nan))
    return xp.where(up & down, nan, xp.where(up, inf, xp.where(down, -inf, zero)))


def group_rows(problem: Problem, x: Array) -> Array:
    """Stack the rows of the query heads that share a key/value head: ``(..., Hkv, G * Lq, C)``, usually a view."""
    sizes = problem.sizes
    if sizes.group == 1:
        return x
    return problem.xp.reshape(x, (*x.shape[:-3], sizes.kv_heads, sizes.group * sizes.queries, x.shape[-1]))


def ungroup_rows(problem: Problem, x: Array) -> Array:
    """Undo :func:`group_rows`: ``(..., Hq, Lq, C)``."""
    sizes = problem.sizes
    if sizes.group == 1:
        return x
    return problem.xp.reshape(x, (*x.shape[:-3], sizes.heads, sizes.queries, x.shape[-1]))
