"""The dense definition, compiled: one program a shape instead of one an operation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from attention_core.dense import dense_attention
from attention_core.kernels import DENSE, Kernel
from attention_core.problem import Problem, Result

from .flat import Operands, Spec, operands_of, spec_of

__all__ = ["COMPILED_DENSE", "problem_of"]


def problem_of(spec: Spec, operands: Operands) -> Problem:
    """Put the two halves of a problem together again."""
    fixed = (spec.query_positions, spec.key_positions)
    traced = (operands.query_positions, operands.key_positions)
    query_positions, key_positions = (t if n is None else n for n, t in zip(fixed, traced, strict=True))
    return Problem(
        xp=jnp,
        sizes=spec.sizes,
        query=operands.query,
        key=operands.key,
        value=operands.value,
        mask=operands.mask,
        bias=operands.bias,
        scale=spec.scale,
        softcap=spec.softcap,
        sinks=operands.sinks,
        dropout=operands.dropout,
        query_positions=query_positions,
        key_positions=key_positions,
        dtype=spec.dtype,
        out_dtype=spec.out_dtype,
        layout="BHLD",
        plain=False,
    )


@partial(jax.jit, static_argnames=("spec", "lse", "weights"))
def _compiled(operands: Operands, *, spec: Spec, lse: bool, weights: bool) -> tuple[Any, ...]:
    return tuple(dense_attention(problem_of(spec, operands), lse=lse, weights=weights))


def _forward(problem: Problem, *, lse: bool = True, weights: bool = True) -> Result:
    moving = replace(  # positions as data, or each would be compiled anew
        problem,
        query_positions=jnp.asarray(problem.query_positions),
        key_positions=jnp.asarray(problem.key_positions),
    )
    return Result(*_compiled(operands_of(moving), spec=spec_of(moving), lse=lse, weights=weights))


COMPILED_DENSE = Kernel("dense", _forward, DENSE.backward, DENSE.lacks, DENSE.suits)
