"""Which derivatives the tiled kernel has, and errors that say so.

It has the gradient, and forward mode over the gradient. What it lacks would end in an error that speaks of JAX's
insides; here it ends in one that names ``impl="dense"``, which has every derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import custom_partial_eval_rules

__all__ = ["forward_over_only", "named", "reverse_only"]

NO_FORWARD = (
    "the tiled kernel has no forward mode of its own (jax.jvp, jax.jacfwd, jax.linearize), only jax.grad and forward "
    'mode over it: pass `impl="dense"`, which has every derivative'
)
NO_SECOND_REVERSE = (
    "the tiled kernel has no reverse mode over its gradient (jax.grad of jax.grad, jax.jacrev of jax.grad); forward "
    'mode over it (jax.jvp or jax.jacfwd of jax.grad) works; or pass `impl="dense"`, which has every derivative'
)


def reverse_only(tree: Any) -> Any:
    """Return the same arrays, whose tangents reverse mode may transpose but nothing may compute."""
    return jax.tree.map(lambda x: _marked(x) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x, tree)


@jax.custom_jvp
def _marked(x: Any) -> Any:
    return x


@_marked.defjvp
def _marked_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    return primals[0], _tangent.bind(tangents[0])


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise TypeError(NO_FORWARD)


def _refuse_second(trace: Any, x: Any) -> Any:
    if x.pval.is_known():
        return _second_tangent.bind(x.pval.get_known())
    raise TypeError(NO_SECOND_REVERSE)


def _linear_identity(name: str) -> Primitive:
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x: x)
    ad.deflinear2(primitive, lambda cotangent, x: [cotangent])
    batching.defvectorized(primitive)
    return primitive


_tangent = _linear_identity("attention_tangent")  # there to be transposed, never to be computed
_tangent.def_impl(_refuse)
mlir.register_lowering(_tangent, _refuse)

_second_tangent = _linear_identity("attention_second_tangent")  # there to be computed, never to be transposed
_second_tangent.def_impl(lambda x: x)
mlir.register_lowering(_second_tangent, lambda context, x: [x])
custom_partial_eval_rules[_second_tangent] = _refuse_second


@contextmanager
def named() -> Iterator[None]:
    """Name the definition also where JAX refuses before we do: in forward mode under ``vmap``, as ``jacfwd`` is."""
    try:
        yield
    except TypeError as error:
        if "forward-mode" not in str(error):
            raise
        raise TypeError(NO_FORWARD) from error


def forward_over_only(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` of arrays, which may be differentiated in forward mode, and says so in reverse mode."""
    marked = jax.custom_jvp(fn)

    @marked.defjvp
    def _rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        return jax.jvp(
            fn, primals, tuple(t if t.dtype == jax.dtypes.float0 else _second_tangent.bind(t) for t in tangents)
        )

    return marked
