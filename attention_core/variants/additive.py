"""Additive attention, where attention began (Bahdanau, Cho and Bengio 2015)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Self, Unpack

from ..arrays import Array, array_namespace, broadcast_shapes, cast, common_dtype, compute_dtype, device_of
from ..biases import dense
from ..checks import check_dtypes
from ..problem import Result
from .headed import HeadedCall, KeysValues, attention_result, shape_of
from .layer import Layer, Parameter, check_inputs
from .linear import Linear
from .named import check_named, named_arrays, under

__all__ = ["AdditiveAttention"]


@dataclass(frozen=True, eq=False)
class AdditiveAttention(Layer):
    """``softmax_j(w_v . tanh(W_q query_i + W_k key_j)) value_j``: scores by a small network, not by a product.

    ``query (..., L, d_query)``, ``key (..., L_2, d_key)``, ``value (..., L_2, d)`` give ``(..., L, d)``. Weights have
    the names of *Dive into Deep Learning*: ``W_q.weight (d_hidden, d_query)``, ``W_k.weight (d_hidden, d_key)``,
    ``w_v.weight (1, d_hidden)``, each with an optional bias. It makes ``L x L_2 x d_hidden`` numbers.

    Its softmax is that of :func:`dot_product_attention`, with the scores as the bias: masks mean the same, a query that
    sees no key gives 0, and lse and weights are to be had.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> rng = np.random.default_rng(0)
    >>> layer = attention.init(attention.AdditiveAttention, rng, d_query=3, d_key=4, d_hidden=5)
    >>> layer(np.ones((2, 3)), np.ones((6, 4)), np.ones((6, 7))).shape
    (2, 7)
    """

    W_q: Linear
    W_k: Linear
    w_v: Linear

    size_names: ClassVar[tuple[str, ...]] = ("d_query", "d_key", "d_hidden")
    no_cache: ClassVar[str] = "its scores are no products of keys, which it takes from `keys_values(key, value)`"

    @classmethod
    def parameters(cls, *, bias: bool = False, **sizes: Any) -> dict[str, Parameter]:
        """Return the laws of ``nn.Linear``."""
        d_query, d_key, hidden = cls.check_sizes(sizes).values()
        shapes = {"W_q": (d_query, hidden), "W_k": (d_key, hidden), "w_v": (hidden, 1)}
        return {
            f"{name}.{part}": parameter
            for name, (d_in, d_out) in shapes.items()
            for part, parameter in Linear.parameters(bias=bias, d_in=d_in, d_out=d_out).items()
        }

    @classmethod
    def from_state_dict(cls, weights: Mapping[str, Array]) -> Self:
        hidden, d_query = shape_of(weights, "W_q.weight")
        shapes = {"W_q": (hidden, d_query), "W_k": (hidden, shape_of(weights, "W_k.weight")[1]), "w_v": (1, hidden)}
        expected = {}
        for name, (d_out, d_in) in shapes.items():
            expected[f"{name}.weight"] = Parameter((d_out, d_in))
            if f"{name}.bias" in weights:
                expected[f"{name}.bias"] = Parameter((d_out,))
        check_named(weights, expected)
        return cls(*(Linear.from_state_dict(under(name, weights)) for name in shapes))

    def state_dict(self) -> dict[str, Array]:
        return named_arrays(self)

    def keys_values(self, key: Array, value: Array | None = None) -> KeysValues:
        """Return ``W_k key (..., 1, L_2, d_hidden)``, in the compute dtype, and ``value (..., 1, L_2, d)``.

        A later call takes them in the place of ``key``: what every step of a decoder looks at is projected once.
        """
        xp = check_inputs(self.W_k.weight.shape[-1], self.state_dict(), {"key": key})
        value = key if value is None else value
        check_dtypes(array_namespace(("key", key), ("value", value)), key=key, value=value)
        if value.ndim < 2:
            raise ValueError(f"`value` must have at least the axes (L_2, d); got shape {tuple(value.shape)}")
        answers = self.W_k(cast(xp, key, compute_dtype(xp, key.dtype, self.W_k.weight.dtype)))
        return KeysValues(answers[..., None, :, :], value[..., None, :, :])

    def scores(self, query: Array, key: Array | KeysValues) -> Array:
        """Return ``w_v . tanh(W_q query_i + W_k key_j)``, ``(..., L, L_2)``, in the compute dtype."""
        xp = check_inputs(self.W_q.weight.shape[-1], self.state_dict(), {"query": query})
        answers = (key if isinstance(key, KeysValues) else self.keys_values(key)).keys
        _check_answers(query, answers, self.W_q.weight.shape[0])
        answers = answers[..., 0, :, :]
        asked = self.W_q(cast(xp, query, compute_dtype(xp, query.dtype, answers.dtype)))
        return self.w_v(xp.tanh(asked[..., :, None, :] + answers[..., None, :, :]))[..., 0]

    def __call__(
        self,
        query: Array,
        key: Array | KeysValues,
        value: Array | None = None,
        *,
        return_weights: bool = False,
        **call: Unpack[HeadedCall],
    ) -> Any:
        """Return ``(..., L, d)``; with ``return_weights`` a ``Result`` with the weights ``(..., L, L_2)``.

        ``value`` is ``key`` by default; ``keys_values(key, value)`` may stand in the place of both. The other arguments
        are those of :func:`dot_product_attention`, for which there is one head: a dense mask is ``(..., 1, L, L_2)`` or
        ``(L, L_2)``.
        """
        if isinstance(key, KeysValues) and value is not None:
            raise ValueError("`value` was given, but `key` holds the values already")
        prepared = key if isinstance(key, KeysValues) else self.keys_values(key, value)
        scores, value = self.scores(query, prepared), prepared.values[..., 0, :, :]
        named = {"query": query, "value": value} | ({} if isinstance(key, KeysValues) else {"key": key})
        xp = array_namespace(*named.items())
        check_dtypes(xp, **named)
        own, given = dense(scores[..., None, :, :]), call.get("bias")
        call["bias"] = own if given is None else own + given
        asked, answers, values = (x[..., None, :, :] for x in (*_nothing(xp, scores, value), value))
        result = attention_result(asked, KeysValues(answers, values), None, return_weights, call)
        out = cast(xp, result.out[..., 0, :, :], common_dtype(xp, *(x.dtype for x in named.values())))
        return out if result.weights is None else Result(out, None, result.weights[..., 0, :, :])


def _check_answers(query: Array, keys: Array, hidden: int) -> None:
    """Keys are those that this layer made, of a batch that goes with the query's."""
    if keys.ndim < 3 or (keys.shape[-3], keys.shape[-1]) != (1, hidden):
        raise ValueError(
            f"`key` holds keys of shape {tuple(keys.shape)}; those of this layer are (..., 1, L_2, {hidden})"
        )
    try:
        broadcast_shapes(tuple(query.shape[:-2]), tuple(keys.shape[:-3]))
    except ValueError:
        named = f"`query` {tuple(query.shape[:-2])}, `key` {tuple(keys.shape[:-3])}"
        raise ValueError(f"the batch axes of query and key must broadcast together; got {named}") from None


def _nothing(xp: ModuleType, scores: Array, value: Array) -> tuple[Array, Array]:
    """Queries and keys of depth 0, whose product is 0: what remains are the scores."""
    shape = tuple(scores.shape)
    dtype = compute_dtype(xp, value.dtype)
    options = {"dtype": dtype, "device": device_of(xp, scores)}
    return xp.zeros((*shape[:-1], 0), **options), xp.zeros((*shape[:-2], shape[-1], 0), **options)
