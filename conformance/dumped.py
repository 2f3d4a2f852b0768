"""A user's tensors as a question: heads first, in one of the layouts that their shapes allow, some rows where many."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.errors import UsageError
from conformance.settings import Setting, Sizes
from conformance.verdict import epsilon

LAYOUTS = ("BHLD", "BLHD")
SCORES = 100_000


@dataclass(frozen=True, eq=False)
class Dump:
    """The user's tensors, and what the user knows of the call."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    out: np.ndarray
    mask: np.ndarray | None = None
    bias: np.ndarray | None = None
    scale: float | None = None
    softcap: float | None = None

    @property
    def dtype(self) -> str:
        """Return the coarsest dtype, in which the output was rounded."""
        names = [array.dtype.name for array in (self.query, self.key, self.value, self.out)]
        return max((name for name in names if name != "bool"), key=epsilon)


@dataclass(frozen=True, eq=False)
class Problem:
    """The tensors in one layout, heads first, of the rows that are looked at."""

    layout: str
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    out: np.ndarray
    rows: np.ndarray
    sizes: Sizes
    base: Setting
    sampled: bool


def problem_of(dump: Dump, layout: str) -> Problem | None:
    """Take the tensors as one layout; None where the shapes do not fit it."""
    arrays = [array.astype(np.float64) for array in (dump.query, dump.key, dump.value, dump.out)]
    if arrays[0].ndim == 2:
        if layout != "BHLD":
            return None
        arrays = [array[None] for array in arrays]
    if layout == "BLHD":
        # An output with its heads joined has an axis less, and stays.
        arrays = [np.swapaxes(array, -2, -3) if array.ndim == dump.query.ndim else array for array in arrays]
    query, key, value, out = arrays
    sizes = sizes_of(query, key, value)
    if sizes is None or out.size != np.prod((*query.shape[:-1], sizes.value_depth)):
        return None
    depth_scale = sizes.depth**-0.5 if sizes.depth else 1.0
    given, bias = _given_tables(dump, sizes)
    scores = (*query.shape[:-1], sizes.keys)
    if not all(table is None or _fits(table.shape, scores) for table in (given, bias)):
        return None
    base = Setting(depth_scale if dump.scale is None else dump.scale, given=given, bias=bias, softcap=dump.softcap)
    return _sampled(Problem(layout, query, key, value, out, np.arange(sizes.queries), sizes, base, False))


def sizes_of(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> Sizes | None:
    """Return the sizes of heads-first arrays, or None where they do not fit together."""
    if not query.ndim == key.ndim == value.ndim or query.ndim < 3:
        return None
    (heads, queries, depth), (key_heads, keys, key_depth) = query.shape[-3:], key.shape[-3:]
    fits = key.shape[:-1] == value.shape[:-1] and depth == key_depth and query.shape[:-3] == key.shape[:-3]
    if not fits or key_heads == 0 or heads % key_heads or 0 in (queries, keys, depth):
        return None
    return Sizes(heads, key_heads, queries, keys, depth, value.shape[-1])


def split_heads(array: np.ndarray, heads: int, interleaved: bool = False) -> np.ndarray:
    """Return `(..., L, H * D)` as `(..., L, H, D)`; interleaved: the last axis is `(D, H)`."""
    if array.shape[-1] % heads:
        raise UsageError(f"an axis of {array.shape[-1]} cannot be split into {heads} heads")
    depth = array.shape[-1] // heads
    if interleaved:
        return np.swapaxes(array.reshape(*array.shape[:-1], depth, heads), -1, -2)
    return array.reshape(*array.shape[:-1], heads, depth)


def rows_of(problem: Problem, table: np.ndarray | None) -> np.ndarray | None:
    """Return a mask's or bias's rows that are looked at."""
    if table is None or table.ndim < 2 or table.shape[-2] == 1 or table.shape[-2] == len(problem.rows):
        return table
    return table[..., problem.rows, :]


def _given_tables(dump: Dump, sizes: Sizes) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The user's mask as booleans and bias as numbers; a mask of numbers below zero is a bias."""
    mask, bias = dump.mask, None if dump.bias is None else dump.bias.astype(np.float64)
    if mask is None:
        return None, bias
    if mask.dtype.kind not in "biu" and np.any(mask < 0):
        added = mask.astype(np.float64)
        return None, added if bias is None else bias + added
    table = mask != 0
    if table.ndim == 2 and table.shape[0] not in (1, sizes.queries) and table.shape[1] == sizes.keys:
        # Key padding, (batch, Lk).
        table = table[:, None, None, :]
    return table, bias


def _sampled(problem: Problem) -> Problem:
    """Look at some rows of the first batch item where all would be too many; the first and last row are among them."""
    if problem.query.size // problem.sizes.depth * problem.sizes.keys <= SCORES:
        return problem
    if problem.out.ndim != problem.query.ndim or problem.out.shape[-2] != problem.sizes.queries:
        return problem
    query, key, value, out = (
        x.reshape(-1, *x.shape[-3:])[:1] for x in (problem.query, problem.key, problem.value, problem.out)
    )
    count = max(8, SCORES // (problem.sizes.heads * problem.sizes.keys))
    rows = np.unique(np.linspace(0, problem.sizes.queries - 1, count).astype(int))
    fields: dict[str, Any] = {**vars(problem), "key": key, "value": value, "rows": rows, "sampled": True}
    base = replace(problem.base, given=_first_item(problem.base.given), bias=_first_item(problem.base.bias))
    return Problem(**{**fields, "query": query[..., rows, :], "out": out[..., rows, :], "base": base})


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether an array of one shape broadcasts to another."""
    sizes = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(size in (1, target) for size, target in sizes)


def _first_item(table: np.ndarray | None) -> np.ndarray | None:
    """A mask or bias of the first batch item."""
    return table if table is None or table.ndim < 4 else table.reshape(-1, *table.shape[-3:])[:1]


def looked_at(problem: Problem) -> str:
    """Say how many rows are looked at."""
    rows = len(problem.rows)
    return f"{rows} of {problem.sizes.queries} query rows" if problem.sampled else f"all {rows} query rows"
