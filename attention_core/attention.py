"""The public calls: attention, its scores by stage, its derivatives, and which kernel a call takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack

from . import biases
from .arrays import Array, array_namespace, describe, is_real_floating, library_name
from .biases import Bias
from .biases.given import Dense
from .dense import STAGES, Stage, visible_pairs
from .dense import scores as _scores
from .gradient import Tangents, dense_jvp
from .kernels import Choice, choose, explain
from .layout import from_heads_first, heads_first
from .problem import Gradients, Problem, Result, make_problem

__all__ = ["Call", "attention_scores", "dot_product_attention", "jvp", "vjp", "which_kernel"]


class ScoresCall(TypedDict, total=False):
    """The keyword arguments that say which scores are meant; :func:`dot_product_attention` explains them."""

    mask: Any
    bias: Any
    scale: float | None
    softcap: float | None
    query_positions: int | Array
    key_positions: int | Array
    layout: str


class Call(ScoresCall, total=False):
    """The keyword arguments that say which attention is meant; :func:`dot_product_attention` explains them."""

    sinks: Array | None
    dropout: Any


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Any = None,
    bias: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    dropout: Any = None,
    query_positions: int | Array = 0,
    key_positions: int | Array = 0,
    layout: str = "BHLD",
    impl: str = "auto",
    return_lse: bool = False,
    return_weights: bool = False,
) -> Any:
    r"""Scaled dot-product attention (Vaswani et al. 2017), on the arrays of any Array API library.

    In this order::

        s     = scale * (query @ key^T)                 scale defaults to 1/sqrt(D), and to 1 where D = 0
        s     = softcap * tanh(s / softcap)             only with a softcap
        s     = s + bias
        s     = where(mask, s, -inf)
        p_ij  = exp(s_ij) / (exp(sink_h) + sum_j exp(s_ij))
        p     = dropout(p)
        out   = p @ value
        lse_i = log(exp(sink_h) + sum_j exp(s_ij))

    Args:
        query: ``(..., Hq, Lq, D)``; float16, bfloat16, float32 or float64, like ``key`` and ``value``.
        key: ``(..., Hkv, Lk, D)``, where ``Hkv`` divides ``Hq``: query head ``h`` reads head ``h // (Hq / Hkv)``.
        value: ``(..., Hkv, Lk, Dv)``. Leading axes broadcast together. Plain ``(L, D)`` arrays are one head.
        mask: a value of ``masks``, or a boolean array that broadcasts to ``(..., Hq, Lq, Lk)``: ``True`` = may attend.
        bias: a value of ``biases``, or a real array that broadcasts to ``(..., Hq, Lq, Lk)``; ``-inf`` masks its pair.
        scale: a finite Python number, 0 and negative ones too. An array scale belongs into ``query``.
        softcap: a positive Python number, or ``None`` for no cap.
        sinks: ``(Hq,)``, a logit a head in the denominator only: not scaled, capped, biased, masked or dropped.
        dropout: a value of :func:`dropout`.
        query_positions: an integer ``n`` for ``n, n + 1, ...`` or integers ``(..., Lq)``; masks and biases read them.
        key_positions: the same for keys, ``(..., Lk)``.
        layout: ``"BHLD"``, or ``"BLHD"`` for arrays ``(..., L, H, D)``; mask, bias, weights, lse are the same in both.
        impl: ``"auto"``, ``"dense"``, or a kernel that a backend registered: used, or refused with a reason.
        return_lse: return a :class:`Result` with ``lse``.
        return_weights: return a :class:`Result` with ``weights``, those before dropout.

    Returns:
        ``out (..., Hq, Lq, Dv)`` in ``result_type(query, key, value)``; or ``Result(out, lse, weights)``, where lse
        ``(..., Hq, Lq)`` and weights ``(..., Hq, Lq, Lk)`` have the compute dtype,
        ``result_type(query, key, value, float32)``.

    A query that sees no key gives ``out = 0``, weights 0, gradients 0 and ``lse = -inf`` (its sink, with one). Masked
    pairs contribute exactly nothing, also where NaN or an infinity stands in key or value.

    Raises:
        ValueError: a shape, value or combination that does not fit.
        TypeError: a wrong kind of argument or dtype, or arrays of two libraries.
        NotImplementedError: a named ``impl`` that cannot do this call.

    >>> import numpy as np
    >>> from attention_np import dot_product_attention, masks
    >>> q, k, v = np.eye(2), np.array([[1.0, 0], [0, 1], [1, 1]]), np.array([[1.0, 2], [3, 4], [5, 6]])
    >>> dot_product_attention(q, k, v, mask=masks.causal())
    array([[1.       , 2.       ],
           [2.3395231, 3.3395231]])
    """
    problem = make_problem(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        dropout=dropout,
        query_positions=query_positions,
        key_positions=key_positions,
        layout=layout,
    )
    kernel = choose(problem, impl, return_weights)
    result = problem.restore(kernel.forward(problem, lse=return_lse, weights=return_weights))
    if not (return_lse or return_weights):
        return result.out
    return result


def attention_scores(query: Array, key: Array, *, stage: Stage = "masked", **call: Unpack[ScoresCall]) -> Array:
    """The scores ``(..., Hq, Lq, Lk)`` after a stage of the formula, in the compute dtype.

    ``stage`` is ``"scaled"``, ``"capped"``, ``"biased"`` or ``"masked"`` (the last, where masked pairs are ``-inf``);
    the other arguments are those of :func:`dot_product_attention`.

    >>> import numpy as np
    >>> from attention_np import attention_scores, masks
    >>> attention_scores(np.eye(2), np.eye(2), scale=2.0, mask=masks.causal())
    array([[  2., -inf],
           [  0.,   2.]])
    """
    named: Any = stage
    if not isinstance(named, str) or named not in STAGES:
        raise ValueError(f"`stage` must be one of {', '.join(STAGES)}; got {stage!r}")
    _check_names("attention_scores", call, ScoresCall)
    problem = make_problem(query, key, key, **call)
    scores = _scores(problem, stage, visible_pairs(problem) if stage == "masked" else None)
    return scores[0, ...] if problem.plain else scores


def which_kernel(
    query: Array,
    key: Array,
    value: Array,
    *,
    impl: str = "auto",
    return_weights: bool = False,
    **call: Unpack[Call],
) -> Choice:
    """Say which kernel a call would take, why and which way, and why not the others; no attention is computed.

    >>> import numpy as np
    >>> from attention_np import which_kernel
    >>> x = np.eye(3)
    >>> which_kernel(x, x, x, return_weights=True).impl
    'dense'
    """
    _check_names("which_kernel", call, Call)
    return explain(make_problem(query, key, value, **call), impl, return_weights)


def vjp(
    query: Array, key: Array, value: Array, *, impl: str = "auto", **call: Unpack[Call]
) -> tuple[Result, Callable[..., Gradients]]:
    """Attention and its pullback: the gradients in closed form, on any Array API library.

    Takes the arguments of :func:`dot_product_attention` and returns ``(Result(out, lse), pullback)``, where
    ``pullback(out_cotangent, lse_cotangent=None)`` gives :class:`Gradients` of query, key, value, bias and sinks. A row
    that sees no key, and a masked pair, have gradients of exactly 0.

    >>> import numpy as np
    >>> from attention_np import vjp
    >>> q, k, v = np.eye(2), np.array([[1.0, 0], [0, 1], [1, 1]]), np.array([[1.0, 2], [3, 4], [5, 6]])
    >>> result, pullback = vjp(q, k, v)
    >>> pullback(np.ones_like(result.out)).value.round(4)
    array([[0.5989, 0.5989],
           [0.5989, 0.5989],
           [0.8022, 0.8022]])
    """
    _check_names("vjp", call, Call)
    problem = make_problem(query, key, value, **call)
    kernel = choose(problem, impl, False)
    result = kernel.forward(problem, lse=True, weights=False)
    restored = problem.restore(result)

    def pullback(out_cotangent: Array, lse_cotangent: Array | None = None) -> Gradients:
        _check_like(problem, "out_cotangent", out_cotangent, restored.out)
        if lse_cotangent is not None:
            _check_like(problem, "lse_cotangent", lse_cotangent, restored.lse)
        dout = heads_first(problem.xp, out_cotangent, problem.layout)
        dlse = lse_cotangent[None, :] if lse_cotangent is not None and problem.plain else lse_cotangent
        return _restore_gradients(problem, call.get("bias"), kernel.backward(problem, result, dout, dlse))

    return Result(restored.out, restored.lse), pullback


def jvp(query: Array, key: Array, value: Array, tangents: Tangents, **call: Unpack[Call]) -> tuple[Result, Result]:
    """Attention and its directional derivative, in closed form, on any Array API library.

    ``tangents`` is a :class:`Gradients` of arrays like query, key, value, bias and sinks, ``None`` for what stays.
    Returns ``Result(out, lse)`` and the ``Result`` of their tangents. A row that sees no key has tangents of 0.

    >>> import numpy as np
    >>> from attention_np import Gradients, jvp
    >>> q, k, v = np.eye(2), np.array([[1.0, 0], [0, 1], [1, 1]]), np.array([[1.0, 2], [3, 4], [5, 6]])
    >>> result, moved = jvp(q, k, v, Gradients(None, None, np.ones_like(v)))
    >>> moved.out
    array([[1., 1.],
           [1., 1.]])
    """
    _check_names("jvp", call, Call)
    problem = make_problem(query, key, value, **call)
    settled = _settle_tangents(problem, tangents)
    kernel = choose(problem, "dense", False)
    result, moved = kernel.forward(problem, lse=True, weights=False), dense_jvp(problem, settled)
    return problem.restore(result), problem.restore(moved)


def _check_names(caller: str, call: Mapping[str, Any], known: type) -> None:
    for name in call:
        if name not in known.__annotations__:
            names = ", ".join(known.__annotations__)
            raise TypeError(f"{caller} takes no `{name}`; besides arrays and its own options it takes {names}")


def _check_like(problem: Problem, name: str, given: Any, like: Array) -> None:
    """A cotangent or tangent has the shape of what it belongs to, and is real, in whatever precision."""
    if not hasattr(given, "shape") or tuple(given.shape) != tuple(like.shape):
        got = f"shape {tuple(given.shape)}" if hasattr(given, "shape") else describe(given)
        raise ValueError(f"`{name}` must have shape {tuple(like.shape)}; got {got}")
    if library_name(problem.xp) != "jax":
        array_namespace(("query", problem.query), (name, given))
    if not is_real_floating(problem.xp, given.dtype):
        raise TypeError(f"`{name}` must be real floating-point; got {describe(given)}")


def _restore_gradients(problem: Problem, bias: Any, gradients: Gradients) -> Gradients:
    def restore(x: Array) -> Array:
        return from_heads_first(problem.xp, x, problem.layout, problem.plain)

    query, key, value, dbias, sinks = gradients
    if isinstance(dbias, Dense) and not isinstance(bias, Bias):
        dbias = dbias.array
    return Gradients(restore(query), restore(key), restore(value), dbias, sinks)


def _settle_tangents(problem: Problem, tangents: Tangents) -> Tangents:
    if not isinstance(tangents, Gradients):
        raise TypeError(f"`tangents` must be Gradients(query, key, value, bias, sinks); got {describe(tangents)}")
    arguments = {"query": problem.query, "key": problem.key, "value": problem.value, "sinks": problem.sinks}
    settled = {}
    for name in ("bias", "sinks"):
        if getattr(tangents, name) is not None and getattr(problem, name) is None:
            raise ValueError(f"`tangents.{name}` was given, but the call has no `{name}`")
    for name, argument in arguments.items():
        tangent = getattr(tangents, name)
        if hasattr(tangent, "ndim") and name != "sinks":
            tangent = heads_first(problem.xp, tangent, problem.layout)
        if tangent is not None:
            _check_like(problem, f"tangents.{name}", tangent, argument)
        settled[name] = tangent
    bias = None if tangents.bias is None else _bias_tangent(problem, tangents.bias)
    return Gradients(settled["query"], settled["key"], settled["value"], bias, settled["sinks"])


def _bias_tangent(problem: Problem, tangent: Any) -> Bias:
    """Return a bias whose arrays are the tangents of those of the call's bias."""
    bias = tangent if isinstance(tangent, Bias) else biases.dense(tangent)
    if type(bias) is not type(problem.bias):
        raise TypeError(f"`tangents.bias` must be of the kind of the call's `bias`, {problem.bias!r}; got {bias!r}")
    if isinstance(bias, Dense) and isinstance(problem.bias, Dense):
        _check_like(problem, "tangents.bias", bias.array, problem.bias.array)
    return bias
