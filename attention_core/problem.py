"""One call of attention, checked and settled: the single argument that a kernel takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from numbers import Integral
from types import ModuleType
from typing import Any, NamedTuple

from . import biases, checks, settled
from .arrays import Array, array_namespace, as_array, common_dtype, compute_dtype, device_of, library_name
from .biases import Bias
from .dropout import Dropout
from .layout import from_heads_first, heads_first
from .masks import Mask, dense
from .masks.rules import LowerRight
from .pairs import Pairs, Span
from .sizes import Sizes

__all__ = ["Gradients", "Problem", "Result", "make_problem"]


class Result(NamedTuple):
    """What attention gives: ``None`` stands where something was not asked for.

    ``out (..., Hq, Lq, Dv)`` in the inputs' dtype; ``lse (..., Hq, Lq)``, the natural logarithm of the softmax's
    denominator, and ``weights (..., Hq, Lq, Lk)``, before dropout, in the compute dtype.

    >>> import numpy as np
    >>> from attention_np import dot_product_attention
    >>> x = np.eye(2)
    >>> result = dot_product_attention(x, x, x, scale=0.0, return_lse=True)
    >>> result.lse.round(4)  # log 2
    array([0.6931, 0.6931])
    """

    out: Array
    lse: Array | None = None
    weights: Array | None = None


class Gradients(NamedTuple):
    """Cotangents of the differentiable arguments, each of its argument's shape and dtype.

    ``bias`` is an array where the bias was one, a bias value that holds cotangents where it was a bias value; ``bias``
    and ``sinks`` are ``None`` where the call had none.

    >>> import numpy as np
    >>> from attention_np import vjp
    >>> x = np.eye(2)
    >>> result, pullback = vjp(x, x, x)
    >>> pullback(np.ones((2, 2))).value
    array([[1., 1.],
           [1., 1.]])
    """

    query: Array
    key: Array
    value: Array
    bias: Any = None
    sinks: Array | None = None


@dataclass(frozen=True, eq=False, init=False)
class Problem:
    """A checked call. Arrays are ``(..., H, L, D)`` views of the caller's, of their dtypes; nothing is copied.

    Where an earlier call has settled them, ``seen`` are the visible pairs of the whole call, and ``taken`` the kernels
    that ``impl="auto"`` took, with and without weights.
    """

    xp: ModuleType
    sizes: Sizes
    query: Array
    key: Array
    value: Array
    mask: Mask | None
    bias: Bias | None
    scale: float
    softcap: float | None
    sinks: Array | None
    dropout: Dropout | None
    query_positions: int | Array
    key_positions: int | Array
    dtype: Any
    out_dtype: Any
    layout: str
    plain: bool
    spans: tuple[Span, Span] | None = None
    seen: Array | None = field(default=None, init=False)  # both are left behind by `replace`: a part's are others
    taken: dict[bool, Any] | None = field(default=None, init=False)

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)  # a frozen dataclass's own costs as much as a small call's softmax

    def tile(self, queries: Span, keys: Span) -> Problem:
        """Return the problem of some queries and keys, whose pairs keep their places in the whole."""
        return replace(
            self,
            sizes=self.sizes._replace(queries=queries[1] - queries[0], keys=keys[1] - keys[0]),
            query=self.query[..., slice(*queries), :],
            key=self.key[..., slice(*keys), :],
            value=self.value[..., slice(*keys), :],
            spans=(queries, keys),
        )

    def pairs(self) -> Pairs:
        """All query-key pairs of the call or of its tile; a kernel takes tiles of it."""
        sizes = self.sizes
        spans = ((0, sizes.heads), *(self.spans or ((0, sizes.queries), (0, sizes.keys))))
        positions = (self.query_positions, self.key_positions)
        return Pairs(self.xp, sizes.batch, *spans, *positions, device=device_of(self.xp, self.query))

    def restore(self, result: Result) -> Result:
        """Bring a kernel's ``(..., H, L, D)`` result to the caller's layout."""
        if self.layout == "BHLD" and not self.plain:
            return result
        out, lse, weights = result
        out = from_heads_first(self.xp, out, self.layout, self.plain)
        if self.plain:
            lse, weights = (None if x is None else x[0, ...] for x in (lse, weights))
        return Result(out, lse, weights)


def make_problem(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Any = None,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sinks: Any = None,
    dropout: Any = None,
    query_positions: Any = 0,
    key_positions: Any = 0,
    layout: str = "BHLD",
) -> Problem:
    """Check a call and settle its shapes, dtypes and positions; raise before any work if it is wrong."""
    checks.check_layout(layout)
    usual = bias is None and softcap is None and sinks is None and dropout is None
    kind = settled.kind_of(mask, query_positions, key_positions, layout) if usual else None
    if kind is not None and (fields := settled.recall(query, key, value, kind)) is not None:
        return _problem_again(fields, query, key, value, scale)
    given = query, key, value
    mask, bias, dropout = _as_mask(mask), _as_bias(bias), _as_dropout(dropout)
    others = _other_arrays(mask, bias, dropout, sinks, query_positions=query_positions, key_positions=key_positions)
    xp = array_namespace(("query", query), ("key", key), ("value", value), *others)
    if library_name(xp) == "jax":
        query, key, value = (as_array(xp, x) for x in (query, key, value))
    checks.check_dtypes(xp, query=query, key=key, value=value)
    checks.check_axes(query, key, value)
    plain = query.ndim == 2
    if plain or layout != "BHLD":
        query, key, value = (heads_first(xp, x, layout) for x in (query, key, value))
    sizes = checks.measure(query, key, value)
    sinks = None if sinks is None else checks.check_sinks(xp, as_array(xp, sinks), sizes)
    query_positions, key_positions = settle_positions(mask, query_positions, key_positions, sizes)
    _check_values(xp, sizes, mask, bias, dropout)
    out_dtype = common_dtype(xp, query.dtype, key.dtype, value.dtype)
    dtype = compute_dtype(xp, out_dtype)
    problem = Problem(
        xp=xp,
        sizes=sizes,
        query=query,
        key=key,
        value=value,
        mask=mask,
        bias=bias,
        scale=checks.check_scale(scale, sizes.depth),
        softcap=checks.check_softcap(xp, softcap, dtype),
        sinks=sinks,
        dropout=dropout,
        query_positions=query_positions,
        key_positions=key_positions,
        dtype=dtype,
        out_dtype=out_dtype,
        layout=layout,
        plain=plain,
    )
    if kind is not None and library_name(xp) != "jax":  # whose calls may mix classes
        settled.remember(problem, *given, kind)
    return problem


def _problem_again(known: dict[str, Any], query: Array, key: Array, value: Array, scale: Any) -> Problem:
    problem = object.__new__(Problem)
    fields = problem.__dict__
    fields.update(known)
    if problem.plain or problem.layout != "BHLD":
        query, key, value = (heads_first(problem.xp, x, problem.layout) for x in (query, key, value))
    fields["query"], fields["key"], fields["value"] = query, key, value
    if scale is not None:
        fields["scale"] = checks.check_scale(scale, problem.sizes.depth)
    return problem


def _check_values(xp: ModuleType, sizes: Sizes, mask: Mask | None, bias: Bias | None, dropout: Dropout | None) -> None:
    if mask is not None:
        mask.check(sizes)
    if bias is not None:
        bias.check(xp, sizes)
    if dropout is not None:
        dropout.check(sizes)


def _other_arrays(
    mask: Mask | None, bias: Bias | None, dropout: Dropout | None, sinks: Any, **positions: Any
) -> Iterator[tuple[str, Any]]:
    for name, value_object in (("mask", mask), ("bias", bias), ("dropout", dropout)):
        if value_object is not None:
            yield from ((name, x) for x in value_object.arrays())
    if sinks is not None:
        yield "sinks", sinks
    for name, x in positions.items():
        if type(x) is not int and hasattr(x, "ndim") and not isinstance(x, Integral):
            yield name, x


def _as_mask(mask: Any) -> Mask | None:
    return mask if mask is None or isinstance(mask, Mask) else dense(mask)


def _as_bias(bias: Any) -> Bias | None:
    return bias if bias is None or isinstance(bias, Bias) else biases.dense(bias)


def _as_dropout(dropout: Any) -> Dropout | None:
    if dropout is None or isinstance(dropout, Dropout):
        return dropout
    raise TypeError(f"`dropout` must be a value made by dropout(...), or None; got a {type(dropout).__qualname__}")


def settle_positions(mask: Any, query_positions: Any, key_positions: Any, sizes: Sizes) -> tuple[Any, Any]:
    """Return the call's positions; ``causal_lower_right()`` anywhere in the mask sets those of the queries."""
    queries = checks.check_positions("query_positions", query_positions, sizes.batch, sizes.queries)
    keys = checks.check_positions("key_positions", key_positions, sizes.batch, sizes.keys)
    if not isinstance(mask, Mask) or not any(isinstance(part, LowerRight) for part in mask.parts()):
        return queries, keys
    for name, given in (("query_positions", queries), ("key_positions", keys)):
        if not isinstance(given, int) or given != 0:
            raise ValueError(f"`{name}` was given, but causal_lower_right() sets the positions itself: use causal()")
    return sizes.keys - sizes.queries, 0
