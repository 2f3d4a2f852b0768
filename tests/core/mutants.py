"""Wrong definitions, each one line away from the right one: the conventions that an attention can get wrong."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

import attention_core

ROOM = Path(attention_core.__file__).parent
COPY = "mutated_core"


class Mutant(NamedTuple):
    """One line of one room, and what stands in its place."""

    name: str
    room: str
    old: str
    new: str

    def source(self) -> str:
        """The room's source with the line replaced, which must stand there exactly once."""
        source = (ROOM / f"{self.room}.py").read_text(encoding="utf-8")
        assert source.count(self.old) == 1, f"mutant {self.name!r}: {self.room}.py has {self.old!r} not exactly once"
        return source.replace(self.old, self.new)


BIAS = "(0.0 if p.bias is None else p.bias.values(p.pairs(), p.dtype))"
TANH = "s = p.softcap * xp.tanh(s / p.softcap)"
MASKED = "return xp.where(visible, s, scalar_like(xp, -xp.inf, s))"
BOUNDS = "(distance >= -self.left) & (distance <= self.right)"
KEPT = "return xp.where(kept, weights / (1.0 - p.dropout.rate), scalar_like(xp, 0.0, weights))"
LSE = "lse = xp.where(empty, -xp.inf, shift + xp.log(xp.where(empty, 1.0, total)))"
NORMALISED = "weights = exponentials / xp.where(total == 0, 1.0, total)"
SINK = "    total = total + xp.exp(sink - shift)"
VALUE = "cast(xp, p.value, p.dtype)"
HEADS_FIRST = "query, key, value = (heads_first(xp, x, layout) for x in (query, key, value))"
COMPUTE = "return common if common == xp.float32 or common == xp.float64 else xp.result_type(common, xp.float32)"
TILED = (
    "; group = query.shape[-3] // max(key.shape[-3], 1)"
    "; key, value = (xp.concat([x] * group, axis=-3) if group else x for x in (key, value))"
)

MUTANTS = (
    # scale, soft cap, bias
    Mutant("no scale", "checks", "return 1.0 / math.sqrt(depth) if", "return 1.0 if"),
    Mutant("scale 1/D", "checks", "return 1.0 / math.sqrt(depth) if", "return 1.0 / depth if"),
    Mutant("scale 0 is the default", "checks", "    if scale is None:", "    if not scale:"),
    Mutant("negative scale is positive", "dense", "scaled = p.scale * cast(", "scaled = abs(p.scale) * cast("),
    Mutant("cap after bias", "dense", TANH, f"s = p.softcap * xp.tanh((s + (b := {BIAS})) / p.softcap) - b"),
    Mutant("cap after mask", "dense", MASKED, "return xp.where(visible, s, -(p.softcap or xp.inf))"),
    Mutant("tanh not multiplied back", "dense", TANH, "s = xp.tanh(s / p.softcap)"),
    Mutant("tanh of the whole score", "dense", TANH, "s = p.softcap * xp.tanh(s)"),
    Mutant("bias scaled", "dense", "s = s + p.bias.values(", "s = s + p.scale * p.bias.values("),
    Mutant("ALiBi rewards distance", "biases/distance", "return -self._slopes(", "return self._slopes("),
    Mutant("ALiBi signed", "biases/distance", "astype(abs(distance), dtype)", "astype(distance, dtype)"),
    Mutant(
        "T5 distance reversed", "biases/distance",
        "distance = pairs.key_position - pairs.query_position", "distance = pairs.query_position - pairs.key_position",
    ),
    # masks
    Mutant("mask inverted", "dense", MASKED, "return xp.where(visible, scalar_like(xp, -xp.inf, s), s)"),
    Mutant("finite fill", "dense", MASKED, "return xp.where(visible, s, scalar_like(xp, -1e9, s))"),
    Mutant("very negative bias masks", "dense", "p.dtype) != -p.xp.inf", "p.dtype) > -1e9"),
    Mutant("bias of -inf leaks NaN", "dense", "if p.bias is None or not p.bias.may_mask():", "if True:"),
    Mutant("causal is lower right", "masks/rules", "return SlidingWindow(None, 0)", "return LowerRight(None, 0)"),
    Mutant("lower right is upper left", "masks/rules", "return LowerRight(None, 0)", "return SlidingWindow(None, 0)"),
    Mutant("strictly causal", "masks/rules", "else distance <= self.right\n", "else distance < self.right\n"),
    Mutant("window counts self left", "masks/rules", BOUNDS, "(distance > -self.left) & (distance <= self.right)"),
    Mutant("window counts self right", "masks/rules", BOUNDS, "(distance >= -self.left) & (distance < self.right)"),
    Mutant("one key too many", "masks/given", "pairs.key_index < as_index(", "pairs.key_index <= as_index("),
    Mutant("one query too many", "masks/given", "pairs.query_index < as_index(", "pairs.query_index <= as_index("),
    Mutant("prefix one too long", "masks/rules", "pairs.key_position < as_index(", "pairs.key_position <= as_index("),
    Mutant(
        "padding sees padding", "masks/given",
        "seen = seen if least is None else seen & (ids >= least)", "seen = seen",
    ),
    Mutant(
        "chunks slide", "masks/rules",
        "pairs.query_position // self.size == pairs.key_position // self.size",
        "abs(pairs.query_position - pairs.key_position) < self.size",
    ),
    Mutant("dilation inverted", "masks/rules", "% self.step == 0\n", "% self.step != 0\n"),
    Mutant(
        "global queries only", "masks/rules",
        "return (pairs.query_position < self.count) | (pairs.key_position < self.count)",
        "return (pairs.query_position < self.count) | (pairs.key_position < 0)",
    ),
    Mutant("and is or", "masks/algebra", "visible(pairs) & self.right", "visible(pairs) | self.right"),
    Mutant("or is and", "masks/algebra", "visible(pairs) | self.right", "visible(pairs) & self.right"),
    Mutant("not is nothing", "masks/algebra", "return ~self.mask.visible(", "return self.mask.visible("),
    Mutant("queries from 0", "pairs", "self.indices(self.queries, self.query_positions)", "self.indices(self.queries)"),
    # softmax, sinks, lse
    Mutant("softmax over queries", "softmax", "xp.sum(exponentials, axis=-1,", "xp.sum(exponentials, axis=-2,"),
    Mutant(
        "mean of V for dead rows", "softmax", NORMALISED,
        "weights = (exponentials + (total == 0)) / xp.where(total == 0, scores.shape[-1], total)",
    ),
    Mutant("NaN for dead rows", "softmax", NORMALISED, "weights = exponentials / total"),
    Mutant("dead rows' lse is +inf", "softmax", LSE, LSE.replace("empty, -xp.inf", "empty, xp.inf")),
    Mutant("sink scaled", "dense", "else cast(p.xp, p.sinks, p.dtype)", "else p.scale * cast(p.xp, p.sinks, p.dtype)"),
    Mutant(
        "sink not in the denominator", "softmax", NORMALISED,
        f"sums = xp.sum(exponentials, axis=-1, keepdims=True); {NORMALISED.replace('total', 'sums')}",
    ),
    Mutant(
        "sink not in the lse", "softmax", "return Softmax(xp, weights, shift, total)",
        "return Softmax(xp, weights, shift, xp.sum(exponentials, axis=-1, keepdims=True))",
    ),
    Mutant("a sink for every key", "softmax", SINK, SINK.replace("+ ", "+ scores.shape[-1] * ")),
    Mutant("lse of base 2", "softmax", LSE, f"{LSE} / 0.6931471805599453"),
    Mutant("lse without the largest", "softmax", LSE, LSE.replace("shift + ", "")),
    Mutant("lse without scale", "dense", "lse=softmax.lse() if lse", "lse=softmax.lse() / p.scale if lse"),
    Mutant("no keys not thought of", "softmax", "if scores.shape[-1] == 0:", "if False:"),
    Mutant(
        "merge counts empty parts", "softmax",
        "return weight * xp.astype(counted,", "return weight * xp.astype(out,",
    ),
    # heads, layout, dropout, precision, NaN
    Mutant("heads tiled", "problem", HEADS_FIRST, HEADS_FIRST + TILED),
    Mutant("heads reversed", "dense", f"visible, {VALUE})", f"visible, xp.flip({VALUE}, axis=-3))"),
    Mutant("layout not read", "problem", HEADS_FIRST, HEADS_FIRST.replace("layout", '"BHLD"')),
    Mutant("dropout without rescaling", "dense", KEPT, KEPT.replace(" / (1.0 - p.dropout.rate)", "")),
    Mutant("dropout inverted", "dense", KEPT, KEPT.replace("kept,", "~kept,")),
    Mutant("weights after dropout", "dense", "weights=softmax.weights if", "weights=drop(p, softmax.weights) if"),
    Mutant("float32 for float64", "arrays", COMPUTE, "return xp.float32"),
    Mutant("16 bits for 16 bits", "arrays", COMPUTE, "return common"),
    Mutant("0 * NaN over keys", "dense", "if visible is None or known_finite(xp, x):", "if True:"),
    Mutant(
        "NaN hidden", "dense",
        "scalar_like(xp, 0.0, x), scalar_like(xp, xp.nan, x)", "*[scalar_like(xp, 0.0, x)] * 2",
    ),
    # derivatives
    Mutant("0 * NaN in the gradient", "gradient", "xp.where(weights == 0, scalar_like(xp, 0.0, x), x)", "x"),
    Mutant("bias gradient not summed", "biases/given", "sum_to_shape(pairs.xp, cotangent, shape)", "cotangent"),
    Mutant(
        "argument gradient not summed", "gradient",
        "sum_to_shape(problem.xp, gradient, tuple(argument.shape))", "gradient",
    ),
    Mutant(
        "lse cotangent dropped", "gradient",
        "return -delta if lse_cotangent is None else", "return -delta if True else",
    ),
    Mutant("delta omitted", "gradient", "delta = xp.sum(", "delta = 0.0 * xp.sum("),
    Mutant("cap's derivative omitted", "gradient", "return _times(problem.xp, ds, 1.0 - tanh * tanh)", "return ds"),
    Mutant("cap's derivative not squared", "gradient", "1.0 - tanh * tanh)", "1.0 - tanh)"),
    Mutant("gradient not scaled", "gradient", "du = p.scale * _uncap(", "du = _uncap("),
    Mutant("bias gradient scaled", "gradient", "p.bias.vjp(p.pairs(), ds)", "p.bias.vjp(p.pairs(), p.scale * ds)"),
    Mutant("sink gradient's sign", "gradient", "else _summed_heads(", "else -_summed_heads("),
    Mutant(
        "dead rows' cotangents in sinks", "gradient",
        "_times(xp, _sink_weights(p, lse), row)", "_sink_weights(p, lse) * row",
    ),
    Mutant(
        "cotangents not dropped", "gradient",
        "dp = drop(p, pair_products(", "dp = (lambda p, x: x)(p, pair_products(",
    ),
    Mutant("value gradient not dropped", "gradient", "drop(p, weights), visible, dout)", "weights, visible, dout)"),
    Mutant("slopes' gradient's sign", "biases/distance", "-cotangent * distance", "cotangent * distance"),
    Mutant("tangents not centred", "gradient", "ds - dlse[..., None]", "ds"),
    Mutant("sink's tangent dropped", "gradient", "dlse = dlse + _times(xp,", "dlse = dlse + 0.0 * _times(xp,"),
)  # fmt: skip


@contextmanager
def mutated(mutant: Mutant | None) -> Iterator[ModuleType]:
    """A second copy of the package under another name, with the mutant's line in it."""
    finder = _Finder(mutant)
    sys.meta_path.insert(0, finder)
    try:
        yield importlib.import_module(COPY)
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] == COPY]:
            del sys.modules[name]


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the copy's modules where the package's own stand."""

    def __init__(self, mutant: Mutant | None) -> None:
        self.mutant = mutant

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        package, _, rest = name.partition(".")
        if package != COPY:
            return None
        place = ROOM.joinpath(*rest.split(".")) if rest else ROOM
        is_package = place.is_dir()
        file = place / "__init__.py" if is_package else place.with_suffix(".py")
        loader = _Loader(name, str(file), self._source_of(rest.replace(".", "/")))
        places = [str(place)] if is_package else None
        return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=places)

    def _source_of(self, room: str) -> str | None:
        return self.mutant.source() if self.mutant is not None and self.mutant.room == room else None


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a source of its own, or takes the package's compiled file."""

    def __init__(self, name: str, path: str, source: str | None) -> None:
        super().__init__(name, path)
        self.source = source

    def get_code(self, fullname: str) -> CodeType | None:
        if self.source is None:
            return super().get_code(fullname)
        return compile(self.source, self.path, "exec", dont_inherit=True)
