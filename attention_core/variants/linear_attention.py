"""Linear attention (Katharopoulos et al. 2020): a kernel in place of the softmax, and so a state of fixed size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self

from ..arrays import Array, array_namespace, cast, common_dtype, compute_dtype, describe
from ..cache.positions import check_padding, token_positions
from ..checks import fits
from ..values import static_int
from .headed import check_heads, heads_of, shape_of
from .layer import Layer, Parameter, option
from .linear import Linear, join_heads
from .linear_forms import LinearState, attend, causal_chunks, causal_full
from .named import check_named, named_arrays, under
from .options import count, flag

__all__ = ["LinearAttention"]

PARTS = ("q_proj", "k_proj", "v_proj", "out_proj")


class LinearResult(NamedTuple):
    """The output ``(..., L, d_in)``, and the state after its last token."""

    out: Array
    state: LinearState


@dataclass(frozen=True, eq=False)
class LinearAttention(Layer):
    """``out_i = phi(q_i) . sum_j phi(k_j) v_j^T / (phi(q_i) . sum_j phi(k_j))``, by heads, ``phi(x) = elu(x) + 1``.

    The sums are over all keys, or with ``causal`` over ``j <= i``. This is not softmax attention with another name: it
    is a kernel of its own, so that the sums alone, ``d * (d + 1)`` numbers a head, stand for any number of tokens.

    Three forms of one mathematics, equal to rounding: ``form="full"``, which makes all weights ``(L, L)``;
    ``form="chunked"``, the default, of ``chunk`` tokens at once, linear in ``L``; and recurrent, which is a call a
    token with the ``state`` that the last one gave.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> layer = attention.init(attention.LinearAttention, np.random.default_rng(0), d_in=6, num_heads=2, d_head=3)
    >>> x = np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32)
    >>> first, state = layer(x[:3], return_state=True)
    >>> bool(np.allclose(layer(x[3:], state=state), layer(x)[3:], atol=1e-6))
    True
    """

    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    out_proj: Linear
    num_heads: int = option(count)
    causal: bool = option(flag, default=True)

    size_names: ClassVar[tuple[str, ...]] = ("d_in", "num_heads", "d_head")
    no_cache: ClassVar[str] = "its state, of any number of tokens, stands in the place of keys: `return_state=True`"

    @classmethod
    def parameters(cls, *, bias: bool = True, causal: bool = True, **sizes: Any) -> dict[str, Parameter]:
        """Return the laws of ``nn.Linear`` for the four parts."""
        d_in, heads, depth = cls.check_sizes(sizes).values()
        inner = heads * depth
        shapes = dict(zip(PARTS, ((d_in, inner), (d_in, inner), (d_in, inner), (inner, d_in)), strict=True))
        return {
            f"{name}.{part}": parameter
            for name, (d, width) in shapes.items()
            for part, parameter in Linear.parameters(bias=bias, d_in=d, d_out=width).items()
        }

    @classmethod
    def from_state_dict(cls, weights: Mapping[str, Array], *, num_heads: int, causal: bool = True) -> Self:
        inner, d_in = shape_of(weights, "q_proj.weight")
        check_heads(inner, num_heads)
        biased = "q_proj.bias" in weights
        expected = cls.parameters(bias=biased, d_in=d_in, num_heads=num_heads, d_head=inner // num_heads)
        check_named(weights, expected)
        parts = {name: Linear.from_state_dict(under(name, weights)) for name in PARTS}
        return cls(**parts, num_heads=num_heads, causal=causal)

    def state_dict(self) -> dict[str, Array]:
        return named_arrays(self)

    def __call__(
        self,
        x: Array,
        *,
        state: LinearState | None = None,
        key_mask: Array | None = None,
        lengths: int | Array | None = None,
        padding: str = "right",
        form: str = "chunked",
        chunk: int = 64,
        return_state: bool = False,
    ) -> Any:
        """Return ``(..., L, d_in)``; with ``return_state`` the pair of it and the state, which a later call takes.

        ``key_mask (..., L)`` is ``True`` for the tokens that may be attended to. A token that sees none, and has no
        state, gives ``out_proj(0)``. In a padded batch ``lengths (...)`` tokens of each item are real, the first ones
        or, with ``padding="left"``, the last: padding is not attended to, and its rows of the output mean nothing.
        """
        if form not in ("chunked", "full"):
            raise ValueError(f'`form` must be "chunked" or "full"; got {form!r}')
        chunk = static_int("chunk", chunk, least=1)
        xp = array_namespace(("x", x))
        queries, keys, values = (
            heads_of(linear, self.num_heads, "x", x) for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        dtype = common_dtype(xp, queries.dtype, keys.dtype, values.dtype)
        queries, keys, values = (cast(xp, part, compute_dtype(xp, dtype)) for part in (queries, keys, values))
        _check_state(state, keys, values)
        queries = _feature(xp, queries)
        key_mask = _and_real(xp, x, key_mask, lengths, padding)
        keys, values = (_seen(xp, part, key_mask) for part in (_feature(xp, keys), values))
        if not self.causal:
            out, after = attend(xp, queries, keys, values, state)
        elif form == "full":
            out, after = causal_full(xp, queries, keys, values, state)
        else:
            out, after = causal_chunks(xp, queries, keys, values, state, chunk)
        out = self.out_proj(join_heads(xp, cast(xp, out, dtype)))
        return LinearResult(out, after) if return_state else out


def _feature(xp: ModuleType, x: Array) -> Array:
    """``elu(x) + 1``; the exponential is taken where it is small, for a gradient without infinities."""
    zero = xp.zeros_like(x)
    return xp.where(x > 0, x + 1, xp.exp(xp.minimum(x, zero)))


def _and_real(xp: ModuleType, x: Array, key_mask: Array | None, lengths: Any, padding: str) -> Array | None:
    """Return the mask of tokens that may be attended to and are no padding."""
    check_padding(lengths, padding, tuple(x.shape[:-2]))
    if key_mask is not None:
        _check_key_mask(x, key_mask)
    if lengths is None:
        return key_mask
    real = token_positions(xp, 0, x.shape[-2], lengths, padding, x) >= 0
    return real if key_mask is None else real & key_mask


def _check_key_mask(x: Array, key_mask: Any) -> None:
    shape, expected = tuple(getattr(key_mask, "shape", ())), tuple(x.shape[:-1])
    if "bool" not in str(getattr(key_mask, "dtype", None)) or shape[-1:] != expected[-1:] or not fits(shape, expected):
        raise ValueError(
            f"`key_mask` must be booleans that broadcast to (..., L) = {expected}, True = may be attended to; "
            f"got {describe(key_mask)} of shape {shape}"
        )
    array_namespace(("key_mask", key_mask), ("x", x))


def _seen(xp: ModuleType, keys: Array, key_mask: Array | None) -> Array:
    """Zeros for what may not be attended to: in features and in values, whatever stands there (``0 * NaN`` is NaN)."""
    return keys if key_mask is None else xp.where(key_mask[..., None, :, None], keys, xp.zeros_like(keys))


def _check_state(state: Any, keys: Array, values: Array) -> None:
    if state is None:
        return
    if not isinstance(state, LinearState):
        raise TypeError(f"`state` must be a LinearState that a call returned; got {describe(state)}")
    array_namespace(("x", keys), *state._asdict().items())
    heads, depth = keys.shape[-3], keys.shape[-1]
    for name, x, own in (
        ("products", state.products, (heads, depth, values.shape[-1])),
        ("keys", state.keys, (heads, depth)),
    ):
        batch = tuple(x.shape[: -len(own)])
        if tuple(x.shape[-len(own) :]) != own or not fits(batch, tuple(keys.shape[:-3])):
            expected = ", ".join(map(str, own))
            raise ValueError(f"`state.{name}` has shape {tuple(x.shape)}; this layer and `x` need (..., {expected})")
