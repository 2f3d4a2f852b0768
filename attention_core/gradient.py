"""Gradients of attention in closed form, from query, key, value and the weights alone (Dao et al. 2022).

With cotangents ``dout`` and ``dlse``, and ``p_sink = exp(sink - lse)``::

    dp_ij   = drop(dout_i . v_j)                 dv_j     = sum_i drop(p_ij) dout_i
    delta_i = sum_j p_ij dp_ij                   dsink_h  = sum_i p_sink_i (dlse_i - delta_i)
    ds_ij   = p_ij (dp_ij + dlse_i - delta_i)    dbias_ij = ds_ij
    du_ij   = scale ds_ij (1 - tanh^2)           dq_i     = sum_j du_ij k_j,   dk_j = sum_i du_ij q_i

A weight of 0 passes nothing on, whatever it is multiplied by: so masked pairs and empty rows have gradients of
exactly 0.
"""

from __future__ import annotations

from types import ModuleType

from .arrays import Array, scalar_like, sum_to_shape
from .dense import drop, over_keys, over_queries, pair_products, scores, softmax_of, visible_pairs
from .problem import Gradients, Problem, Result

__all__ = ["Tangents", "dense_jvp", "dense_vjp", "finish_gradients", "pair_gradients", "row_terms"]

Tangents = Gradients
"""Tangents of the differentiable arguments; ``None`` for one that does not move."""


def dense_vjp(problem: Problem, out_cotangent: Array, lse_cotangent: Array | None) -> Gradients:
    """Return the gradients of a problem for cotangents of ``out`` and, or ``None``, of ``lse``, all heads first."""
    xp, p = problem.xp, problem
    visible = visible_pairs(p)
    softmax = softmax_of(p, visible)
    weights, lse = softmax.weights, softmax.lse()
    dout = xp.astype(out_cotangent, p.dtype)
    dp = drop(p, pair_products(p, dout, xp.astype(p.value, p.dtype), visible))
    row = row_terms(p, weights, dp, lse_cotangent)
    return finish_gradients(p, pair_gradients(p, visible, weights, dp, row, dout), lse, row)


def row_terms(problem: Problem, weights: Array, dp: Array, lse_cotangent: Array | None) -> Array:
    """Return ``dlse_i - delta_i``, ``(..., Hq, Lq)``; ``out`` and ``dout`` for ``p`` and ``dp`` give the same."""
    xp, p = problem.xp, problem
    delta = xp.sum(_times(xp, weights, dp), axis=-1)
    return -delta if lse_cotangent is None else xp.astype(lse_cotangent, p.dtype) - delta


def pair_gradients(
    problem: Problem, visible: Array | None, weights: Array, dp: Array, row: Array, dout: Array
) -> Gradients:
    """Return what these pairs, all or a tile of them, add to the gradients: in the compute dtype, batch and all."""
    xp, p = problem.xp, problem
    ds = _times(xp, weights, dp + row[..., None])
    du = p.scale * _uncap(p, visible, ds)
    return Gradients(
        query=over_keys(p, du, visible, xp.astype(p.key, p.dtype)),
        key=over_queries(p, du, visible, xp.astype(p.query, p.dtype)),
        value=over_queries(p, drop(p, weights), visible, dout),
        bias=None if p.bias is None else p.bias.vjp(p.pairs(), ds),
    )


def finish_gradients(problem: Problem, pairs: Gradients, lse: Array, row: Array) -> Gradients:
    """Return all pairs' gradients in their arguments' shapes and dtypes, and that of the sinks, which are no pairs."""
    xp, p = problem.xp, problem
    return Gradients(
        query=_summed(p, p.query, pairs.query),
        key=_summed(p, p.key, pairs.key),
        value=_summed(p, p.value, pairs.value),
        bias=pairs.bias,
        sinks=None if p.sinks is None else _summed_heads(p, p.sinks, _times(xp, _sink_weights(p, lse), row)),
    )


def dense_jvp(problem: Problem, tangents: Tangents) -> Result:
    """Return the tangents of ``out`` and ``lse`` for tangents of the arguments, all heads first."""
    xp, p = problem.xp, problem
    visible = visible_pairs(p)
    softmax = softmax_of(p, visible)
    weights, lse = softmax.weights, softmax.lse()
    ds = _score_tangents(p, visible, weights, tangents)
    dlse = xp.sum(_times(xp, weights, ds), axis=-1)
    if tangents.sinks is not None:
        dlse = dlse + _times(xp, _sink_weights(p, lse), xp.astype(tangents.sinks, p.dtype)[:, None])
    dp = _times(xp, weights, ds - dlse[..., None])
    dout = over_keys(p, drop(p, dp), visible, xp.astype(p.value, p.dtype))
    if tangents.value is not None:
        dout = dout + over_keys(p, drop(p, weights), visible, xp.astype(tangents.value, p.dtype))
    return Result(xp.astype(dout, p.out_dtype), dlse)


def _score_tangents(problem: Problem, visible: Array | None, weights: Array, tangents: Tangents) -> Array:
    xp, p = problem.xp, problem
    ds = xp.zeros_like(weights)
    if tangents.query is not None:
        ds = ds + pair_products(p, xp.astype(tangents.query, p.dtype), xp.astype(p.key, p.dtype), visible)
    if tangents.key is not None:
        ds = ds + pair_products(p, xp.astype(p.query, p.dtype), xp.astype(tangents.key, p.dtype), visible)
    ds = _uncap(p, visible, p.scale * ds)
    if p.bias is not None and tangents.bias is not None:
        ds = ds + p.bias.jvp(p.pairs(), tangents.bias, p.dtype)
    return ds


def _times(xp: ModuleType, weights: Array, x: Array) -> Array:
    """Multiply, but a weight of exactly 0 gives 0 also for NaN and infinities, and so do the derivatives."""
    return weights * xp.where(weights == 0, scalar_like(xp, 0.0, x), x)


def _uncap(problem: Problem, visible: Array | None, ds: Array) -> Array:
    """Multiply by the derivative of the soft cap, ``1 - tanh^2``."""
    if problem.softcap is None:
        return ds
    tanh = scores(problem, "capped", visible) / problem.softcap
    return _times(problem.xp, ds, 1.0 - tanh * tanh)


def _sink_weights(problem: Problem, lse: Array) -> Array:
    """Return ``exp(sink - lse)``, the weight that goes to the sink: ``(..., Hq, Lq)``."""
    xp, p = problem.xp, problem
    empty = lse == -xp.inf
    safe = xp.where(empty, xp.zeros_like(lse), lse)  # -inf - -inf would be NaN
    return xp.where(empty, xp.zeros_like(lse), xp.exp(xp.astype(p.sinks, p.dtype)[:, None] - safe))


def _summed(problem: Problem, argument: Array, gradient: Array) -> Array:
    """Sum over the batch axes along which the argument was broadcast, in its dtype."""
    return problem.xp.astype(sum_to_shape(problem.xp, gradient, tuple(argument.shape)), argument.dtype)


def _summed_heads(problem: Problem, sinks: Array, gradient: Array) -> Array:
    rows = sum_to_shape(problem.xp, gradient, (gradient.shape[-2], 1))
    return problem.xp.astype(rows[:, 0], sinks.dtype)
