"""Random calls of attention, made of a recipe: what is drawn is small, prints well and gives the same call each time.

A :class:`Call` names the axes of each of its arrays, so that a law can permute keys, pick a batch item or a row of the
whole call, masks and positions included, in one line.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import strategies as st

from . import reference

Array = np.ndarray

AXES = {
    "query": "bhid", "key": "bgjd", "value": "bgje", "query_positions": "bi", "key_positions": "bj",
    "lengths": "b", "query_ids": "bi", "key_ids": "bj", "seen": "bhij", "bias": "bhij", "slopes": "h", "table": "rh",
    "sinks": "h", "keep": "bhij",
}  # fmt: skip
DIFFERENTIABLE = ("query", "key", "value", "bias", "slopes", "table", "sinks")

# name: the mask of the package, and whether a pair is visible, in numbers
MASKS: dict[str, tuple[Callable[[Any, Mapping[str, Any]], Any], Callable[..., bool]]] = {
    "none": (lambda m, a: None, lambda a, b, h, i, j, q, k: True),
    "causal": (lambda m, a: m.causal(), lambda a, b, h, i, j, q, k: k <= q),
    "window": (lambda m, a: m.sliding_window(2, 0), lambda a, b, h, i, j, q, k: q - 2 <= k <= q),
    "two-sided": (lambda m, a: m.sliding_window(0, 1), lambda a, b, h, i, j, q, k: q <= k <= q + 1),
    "chunked": (lambda m, a: m.chunked(2), lambda a, b, h, i, j, q, k: q // 2 == k // 2),
    "dilated": (lambda m, a: m.dilated(2) & m.causal(), lambda a, b, h, i, j, q, k: k <= q and (q - k) % 2 == 0),
    "global": (
        lambda m, a: m.global_tokens(1) | m.sliding_window(0, 0),
        lambda a, b, h, i, j, q, k: q < 1 or k < 1 or q == k,
    ),
    "prefix": (
        lambda m, a: m.prefix(a["lengths"]) | m.causal(),
        lambda a, b, h, i, j, q, k: k < a["lengths"][b] or k <= q,
    ),
    "key_lengths": (lambda m, a: m.key_lengths(a["lengths"]), lambda a, b, h, i, j, q, k: j < a["lengths"][b]),
    "query_lengths": (lambda m, a: m.query_lengths(a["lengths"]), lambda a, b, h, i, j, q, k: i < a["lengths"][b]),
    "segments": (
        lambda m, a: m.segments(a["query_ids"], a["key_ids"]),
        lambda a, b, h, i, j, q, k: a["query_ids"][b, i] == a["key_ids"][b, j] >= 0,
    ),
    "dense": (lambda m, a: m.dense(a["seen"]), lambda a, b, h, i, j, q, k: bool(a["seen"][b, h, i, j])),
    "not": (
        lambda m, a: ~m.dense(a["seen"]) & ~m.sliding_window(0, 0),
        lambda a, b, h, i, j, q, k: not a["seen"][b, h, i, j] and q != k,
    ),
    "rule": (
        lambda m, a: m.rule(lambda batch, head, query, key: (query + 2 * key + head) % 3 != 0),
        lambda a, b, h, i, j, q, k: (q + 2 * k + h) % 3 != 0,
    ),
    "-inf bias": (lambda m, a: None, lambda a, b, h, i, j, q, k: a["bias"][b, h, i, j] > -np.inf),
}  # fmt: skip
BY_INDEX = ("key_lengths", "query_lengths")  # not by position: they cannot be permuted or cut
BIASES = ("none", "dense", "alibi", "relative", "sum")
TABLE_LIMIT = 5


@dataclass(frozen=True)
class Recipe:
    batch: int = 2
    kv_heads: int = 2
    group: int = 2
    queries: int = 3
    keys: int = 5
    depth: int = 4
    value_depth: int = 3
    mask: str = "none"
    bias: str = "none"
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    rate: float = 0.0
    start: int = 0
    seed: int = 0

    def draw(self) -> "Call":
        """The call of this recipe."""
        rng = np.random.default_rng(self.seed)
        sizes = {
            "b": self.batch,
            "h": self.kv_heads * self.group,
            "g": self.kv_heads,
            "i": self.queries,
            "j": self.keys,
        }
        sizes |= {"d": self.depth, "e": self.value_depth, "r": 8}
        arrays = {}
        for name, axes in AXES.items():
            shape = tuple(sizes[axis] for axis in axes)
            arrays[name] = self._array(name, shape, rng)
        return Call(self, {name: x for name, x in arrays.items() if name in self._used()})

    def _array(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        if name in ("seen", "keep"):
            return rng.random(shape) < 0.6
        if name == "lengths":
            return rng.integers(0, max(self.queries, self.keys) + 1, shape)
        if name.endswith("ids"):
            return rng.integers(-1, 2, shape)
        if name.endswith("positions"):
            return self.start * (name == "query_positions") + np.broadcast_to(np.arange(shape[-1]), shape).copy()
        x = rng.normal(size=shape) * (1.5 if name in ("query", "key") else 1.0)
        if name == "bias" and self.mask == "-inf bias":
            x[rng.random(shape) < 0.4] = -np.inf
        return x

    def _used(self) -> set[str]:
        used = {"query", "key", "value", "query_positions", "key_positions"}
        used |= {"lengths"} if self.mask in ("prefix", *BY_INDEX) else set()
        used |= {"query_ids", "key_ids"} if self.mask == "segments" else set()
        used |= {"seen"} if self.mask in ("dense", "not") else set()
        used |= {"bias"} if self.bias in ("dense", "sum") or self.mask == "-inf bias" else set()
        used |= {"slopes"} if self.bias in ("alibi", "sum") else set()
        used |= {"table"} if self.bias == "relative" else set()
        used |= {"sinks"} if self.sinks else set()
        return used | ({"keep"} if self.rate else set())


SHAPES: tuple[dict[str, Any], ...] = (
    {"batch": 2, "kv_heads": 2, "group": 2, "queries": 3, "keys": 5, "depth": 4, "value_depth": 6},
    {"batch": 1, "kv_heads": 1, "group": 3, "queries": 4, "keys": 2, "depth": 1, "value_depth": 2},
)


@dataclass(frozen=True)
class Call:
    """One call: its recipe, and the arrays that it uses."""

    recipe: Recipe
    arrays: dict[str, Array]

    def __getattr__(self, name: str) -> Array:
        try:
            return self.arrays[name]
        except KeyError:
            raise AttributeError(name) from None

    def with_arrays(self, **arrays: Array) -> "Call":
        return replace(self, arrays={**self.arrays, **arrays})

    def with_recipe(self, **changes: Any) -> "Call":
        return replace(self, recipe=replace(self.recipe, **changes))

    def take(self, axis: str, indices: Any) -> "Call":
        """Pick indices along one axis of all the arrays that have it."""
        indices = np.asarray(indices, dtype=int)
        return self.with_arrays(
            **{
                name: np.take(x, indices, axis=AXES[name].index(axis))
                for name, x in self.arrays.items()
                if axis in AXES[name]
            }
        )

    def given(self) -> dict[str, Array]:
        """The differentiable arrays of the call."""
        return {name: self.arrays[name] for name in DIFFERENTIABLE if name in self.arrays}

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """``(batch, heads, queries, keys)``."""
        return (*self.query.shape[:3], self.key.shape[2])

    def visible(self) -> Array:
        """Which pairs are visible, by the rule in numbers."""
        sees = MASKS[self.recipe.mask][1]

        def rule(b: int, h: int, i: int, j: int) -> bool:
            return sees(self.arrays, b, h, i, j, self.query_positions[b, i], self.key_positions[b, j])

        return reference.visible_by(rule, self.shape)

    def bias_array(self) -> Array | float:
        """The bias as an array, by the reference."""
        a, positions = self.arrays, (self.query_positions, self.key_positions)
        total = a.get("bias", 0.0)
        if "slopes" in a:
            total = total + reference.alibi(a["slopes"], *positions)
        if "table" in a:
            total = total + reference.relative(a["table"], *positions, True, TABLE_LIMIT)
        return total

    def expected(self) -> reference.Answer:
        """The reference's answer."""
        r = self.recipe
        return reference.attention(
            self.query, self.key, self.value, visible=self.visible(), bias=self.bias_array(), scale=r.scale,
            softcap=r.softcap, sinks=self.arrays.get("sinks"), keep=self.arrays.get("keep", True), rate=r.rate,
        )  # fmt: skip

    def mask(self, core: ModuleType, as_array: Callable[[Array], Any]) -> Any:
        """The package's mask."""
        return MASKS[self.recipe.mask][0](core.masks, {name: as_array(x) for name, x in self.arrays.items()})

    def bias_value(self, core: ModuleType, as_array: Callable[[Array], Any]) -> Any:
        """The package's bias."""
        a = {name: as_array(x) for name, x in self.arrays.items()}
        biases = [core.biases.alibi(a["slopes"])] if "slopes" in a else []
        biases += [core.biases.relative(a["table"], max_distance=TABLE_LIMIT)] if "table" in a else []
        if "bias" in a and not biases:
            return a["bias"]
        biases += [core.biases.dense(a["bias"])] if "bias" in a else []
        return None if not biases else biases[0] if len(biases) == 1 else biases[0] + biases[1]

    def options(self, core: ModuleType, as_array: Callable[[Array], Any]) -> dict[str, Any]:
        """The keyword arguments of the package's call."""
        r, a = self.recipe, self.arrays
        options: dict[str, Any] = {"mask": self.mask(core, as_array), "bias": self.bias_value(core, as_array)}
        options |= {"scale": r.scale, "softcap": r.softcap}
        options |= {name: as_array(a[name]) for name in ("query_positions", "key_positions", "sinks") if name in a}
        if "keep" in a:
            options["dropout"] = core.dropout(r.rate, keep=as_array(a["keep"]))
        return options

    def inputs(self, as_array: Callable[[Array], Any]) -> tuple[Any, Any, Any]:
        return as_array(self.query), as_array(self.key), as_array(self.value)

    def run(self, core: ModuleType, as_array: Callable[[Array], Any] = np.asarray, **more: Any) -> reference.Answer:
        """The package's answer, as NumPy arrays."""
        options = {**self.options(core, as_array), **more}
        result = core.dot_product_attention(
            *self.inputs(as_array), **options, impl="dense", return_lse=True, return_weights=True
        )
        return reference.Answer(*map(np.asarray, result))

    def gradients(
        self, core: ModuleType, as_array: Callable[[Array], Any], out: Array, lse: Array | None
    ) -> dict[str, Array]:
        """The gradients in closed form of all differentiable arrays, by name."""
        _, pullback = core.vjp(*self.inputs(as_array), **self.options(core, as_array), impl="dense")
        found = pullback(as_array(out), None if lse is None else as_array(lse))
        return {name: np.asarray(x) for name, x in zip(self.given(), self._named(found), strict=True)}

    def tangents(
        self, core: ModuleType, as_array: Callable[[Array], Any], moves: dict[str, Array]
    ) -> tuple[Array, Array]:
        """The tangents of out and lse in closed form, for tangents of all differentiable arrays."""
        moved = self.with_arrays(**moves)
        sinks = as_array(moves["sinks"]) if "sinks" in moves else None
        tangents = core.Gradients(*moved.inputs(as_array), moved.bias_value(core, as_array), sinks)
        _, result = core.jvp(*self.inputs(as_array), tangents, **self.options(core, as_array))
        return np.asarray(result.out), np.asarray(result.lse)

    def _named(self, found: Any) -> list[Any]:
        """Gradients in the order of :data:`DIFFERENTIABLE`."""
        bias = found.bias
        parts = [] if bias is None else [bias] if hasattr(bias, "dtype") else list(bias.arrays())
        if len(parts) == 2:
            parts.reverse()  # alibi or relative, plus dense
        return [found.query, found.key, found.value, *parts, *([] if found.sinks is None else [found.sinks])]


def recipes(
    masks: tuple[str, ...] = tuple(MASKS),
    biases: tuple[str, ...] = BIASES,
    sinks: bool = True,
    dropout: bool = True,
    shapes: int | None = None,
) -> st.SearchStrategy[Recipe]:
    """Draw recipes, of any shape or of the first one or two of :data:`SHAPES`."""
    sizes = {
        "batch": (1, 2),
        "kv_heads": (1, 2),
        "group": (1, 3),
        "queries": (1, 4),
        "keys": (0, 6),
        "depth": (0, 4),
        "value_depth": (1, 3),
    }
    options = {
        "mask": st.sampled_from(masks),
        "bias": st.sampled_from(biases),
        "scale": st.sampled_from([None, 0.7, -1.3, 0.0]),
        "softcap": st.sampled_from([None, 0.8, 5.0]),
        "sinks": st.booleans() if sinks else st.just(False),
        "rate": st.sampled_from([0.0, 0.25]) if dropout else st.just(0.0),
        "start": st.integers(0, 4),
        "seed": st.integers(0, 2**16),
    }
    if shapes is not None:
        return st.one_of(*(st.builds(partial(Recipe, **fixed), **options) for fixed in SHAPES[:shapes]))
    return st.builds(Recipe, **{name: st.integers(*bounds) for name, bounds in sizes.items()}, **options)
