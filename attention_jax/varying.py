"""Arrays that differ between the devices of a mesh: what ``jax.shard_map`` asks of loops and of their inputs."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

__all__ = ["align", "like"]


def _axes(x: Any) -> frozenset[Any]:
    """Return the mesh axes over which ``x`` varies: none outside of ``shard_map``."""
    aval = jax.typeof(x)
    manual = getattr(aval, "manual_axis_type", None)
    return getattr(aval, "vma", frozenset()) if manual is None else manual.varying


def _vary(x: Any, axes: frozenset[Any]) -> Any:
    return lax.pcast(x, tuple(axes - _axes(x)), to="varying")


def align(tree: Any) -> Any:
    """Let all arrays vary over the axes over which some do; the gradient of a replicated one is summed over them."""
    axes: frozenset[Any] = frozenset().union(*map(_axes, jax.tree.leaves(tree)))
    return jax.tree.map(lambda x: _vary(x, axes), tree)


def like(x: jax.Array, tree: Any) -> Any:
    """Let the arrays of ``tree``, a loop's first state, vary as ``x`` does."""
    return jax.tree.map(lambda start: _vary(start, _axes(x)), tree)
