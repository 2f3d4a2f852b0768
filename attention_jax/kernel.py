"""The kernel of JAX: tiles, a gradient of its own, and work proportional to what the mask leaves, on any XLA device."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from attention_core.arrays import is_traced
from attention_core.kernels import Kernel
from attention_core.problem import Gradients, Problem, Result

from .backward import Cotangents, backward
from .flat import Operands, Spec, operands_of, spec_of
from .forward import forward
from .modes import forward_over_only, named, reverse_only
from .varying import align

__all__ = ["TILED", "tiled_attention"]


@partial(jax.jit, static_argnums=0)
def tiled_attention(spec: Spec, operands: Operands) -> tuple[jax.Array, jax.Array]:
    """Return out and lse, differentiable in reverse mode."""
    return _attention(spec, reverse_only(align(operands)))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(spec: Spec, operands: Operands) -> tuple[jax.Array, jax.Array]:
    return _mapped(partial(forward, spec))(operands)


def _attention_forward(spec: Spec, operands: Operands) -> tuple[tuple[jax.Array, jax.Array], Any]:
    out, lse = _mapped(partial(forward, spec))(operands)
    out, lse = checkpoint_name(out, "attention_out"), checkpoint_name(lse, "attention_lse")
    return (out, lse), (operands, out, lse)


def _attention_backward(spec: Spec, residuals: Any, cotangents: tuple[jax.Array, jax.Array]) -> tuple[Operands]:
    operands, out, lse = residuals
    gradients: Cotangents = _mapped(partial(backward, spec))(operands, out, lse, *cotangents)
    return (Operands(*gradients[:3], None, gradients.bias, gradients.sinks, None, None, None),)


_attention.defvjp(_attention_forward, _attention_backward)


def _mapped(fn: Any) -> Any:
    """Make ``vmap`` of ``fn`` a loop: its own loops take one item at a time anyway, and keep their conditions.

    Mapped natively, a ``lax.cond`` would run both branches, and a dynamic loop go on as long as its longest item.
    """

    def call(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        trees = []

        def flat(*leaves: Any) -> list[Any]:  # leaves alone: a batched one may be of any kind, a mask may not
            out, out_tree = jax.tree.flatten(fn(*jax.tree.unflatten(tree, leaves)))
            trees.append(out_tree)
            return out

        out = forward_over_only(_looped(flat))(*leaves)
        return jax.tree.unflatten(trees[0], out)

    return call


def _looped(fn: Any) -> Any:
    looped = jax.custom_batching.custom_vmap(fn)

    @looped.def_vmap
    def _rule(axis_size: int, in_batched: list[bool], *leaves: Any) -> Any:
        def one(n: jax.Array) -> Any:
            pairs = zip(leaves, in_batched, strict=True)
            return _looped(fn)(*(lax.dynamic_index_in_dim(x, n, 0, False) if batched else x for x, batched in pairs))

        out = lax.map(one, jnp.arange(axis_size))
        return out, jax.tree.map(lambda _: True, out)

    return looped


def _forward(problem: Problem, *, lse: bool = True, weights: bool = False) -> Result:
    problem = _moving(problem)
    with named():
        out, log_sum = tiled_attention(spec_of(problem), operands_of(problem))
    return Result(out, log_sum if lse else None)


def _backward(problem: Problem, result: Result, dout: jax.Array, dlse: jax.Array | None) -> Gradients:
    assert result.lse is not None
    problem = _moving(problem)
    dlse = jnp.zeros_like(result.lse) if dlse is None else dlse.astype(result.lse.dtype)
    run = jax.jit(backward, static_argnums=0)
    return Gradients(*run(spec_of(problem), operands_of(problem), result.out, result.lse, dout, dlse))


def _moving(problem: Problem) -> Problem:
    """Make positions data where a caller without ``jit`` gives another integer at each call: each would be compiled.

    Positions that follow from the sizes stay static, and with them the schedule.
    """
    p = problem
    if any(map(is_traced, jax.tree.leaves(operands_of(p)))):
        return p
    fixed = (0, p.sizes.keys - p.sizes.queries)
    query, key = (
        jnp.asarray(n) if isinstance(n, int) and n not in fixed else n for n in (p.query_positions, p.key_positions)
    )
    return replace(p, query_positions=query, key_positions=key)


def _lacks(problem: Problem, weights: bool) -> str | None:
    if weights:
        return "it never holds the weights that `return_weights` asks for"
    sizes = problem.sizes
    nothing = 0 in (*sizes.scores, sizes.kv_heads, sizes.depth, sizes.value_depth)
    return "it makes no tiles of arrays of size 0" if nothing else None


def _suits(problem: Problem) -> bool:
    """Whether tiles pay: below this the dense definition is as fast, shorter to compile, and has every derivative."""
    sizes = problem.sizes
    return sizes.queries * sizes.keys >= 256 * 256 or sizes.keys >= 512


TILED = Kernel("tiled", _forward, _backward, _lacks, _suits)
