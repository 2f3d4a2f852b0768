"""What a call may have meant: one setting of every convention, and the departures from it that people meet.

`diagnose` starts from this project's meaning of the user's tensors and applies departures, one at a time, then two.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from conformance.plain import Switches

CAPS = (5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
WINDOWS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 511, 512, 1023, 1024, 2047, 2048, 4095)
CHUNKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SHORT = 64


@dataclass(frozen=True)
class Sizes:
    """The sizes of the call, heads first: `Hq`, `Hkv`, `Lq`, `Lk`, `D`, `Dv`."""

    heads: int
    key_heads: int
    queries: int
    keys: int
    depth: int
    value_depth: int


@dataclass(frozen=True, eq=False)
class Setting:
    """One meaning of the call. `visible` is a rule on indices `(i, j)`; `given` is the user's mask as booleans."""

    scale: float
    visible: Callable[[Any, Any], Any] | None = None
    given: np.ndarray | None = None
    bias: np.ndarray | None = None
    softcap: float | None = None
    switches: Switches = field(default_factory=Switches)
    swap: str = ""  # query_key, key_value
    output: str = "as query"
    sink: float | None = None
    arithmetic: str | None = None  # a dtype that is narrower than the tensors'


@dataclass(frozen=True, eq=False)
class Departure:
    """Another convention: which question it answers, its name, what it means, what it changes."""

    axis: str
    name: str
    means: str
    change: Callable[[Setting], Setting]
    alone: bool = False  # too special to be tried together with another
    alike: tuple[str, ...] = ()  # other names of what is the same in a call of these sizes


def departures(sizes: Sizes, base: Setting, dtype: str, sampled: bool) -> list[Departure]:
    """Return every departure that can show in a call of these sizes; `sampled`: not all of its rows are looked at."""
    found = [*_scales(sizes, base), *_masks(sizes), *_given(base), *_caps(base), *_biases(base), *_softmaxes(sampled)]
    return [*found, *_heads(sizes), *_roles(sizes), *_outputs(sizes), *_empty_rows(), *_arithmetic(dtype)]


def _scales(sizes: Sizes, base: Setting) -> Iterator[Departure]:
    depth, joined = sizes.depth, sizes.heads * sizes.depth
    scales = {
        "1/sqrt(D)": (depth**-0.5, "divided by the root of the depth"),
        "1": (1.0, "not scaled"),
        "1/D": (1 / depth, "divided by the depth, or twice by its root"),
        "sqrt(D)": (depth**0.5, "multiplied by the root of the depth"),
        "D^(-1/4)": (depth**-0.25, "only one of query and key was scaled by the fourth root"),
        "1/sqrt(Dv)": (sizes.value_depth**-0.5, "divided by the root of the value's depth"),
        "1/sqrt(H*D)": (joined**-0.5, "divided by the root of the whole embedding's depth"),
        "1/sqrt(Lk)": (sizes.keys**-0.5, "divided by the root of the number of keys"),
    }
    seen = {base.scale}
    for name, (scale, means) in scales.items():
        if not any(abs(scale - other) < 1e-12 for other in seen):
            seen.add(scale)
            yield Departure("scale", f"scale={name}", f"the scores are {means}", _changed(scale=scale))


def _changed(**fields: Any) -> Callable[[Setting], Setting]:
    return lambda setting: replace(setting, **fields)


def _switched(**fields: Any) -> Callable[[Setting], Setting]:
    return lambda setting: replace(setting, switches=replace(setting.switches, **fields))


def _rule(name: str, means: str, visible: Callable[[Any, Any], Any], alone: bool = False) -> Departure:
    return Departure("mask", name, means, _changed(visible=visible), alone)


def _masks(sizes: Sizes) -> Iterator[Departure]:
    """Every rule on indices, the plain ones first: of rules that hide the same keys, the first is told."""
    shift = sizes.keys - sizes.queries
    corners = {"": 0} if shift == 0 else {",upper_left": 0, ",lower_right": shift}
    for corner, by in corners.items():
        where = _where(corner)
        yield _rule(f"mask=causal{corner}", f"a key is visible up to the query's own{where}", _up_to(by))
    for corner, by in corners.items():
        where = _where(corner)
        yield _rule(f"mask=causal{corner},without_self", f"only keys before the query's own{where}", _up_to(by - 1))
        yield _rule(f"mask=causal{corner},one_too_many", f"one key beyond the query's own{where}", _up_to(by + 1))
        yield _rule(f"mask=anti_causal{corner}", f"the query's own key and later ones{where}", _from(by))
    for count in range(1, min(sizes.keys, SHORT)):
        yield _rule(f"mask=first_{count}_keys", f"only the first {count} keys", _first(count), alone=True)
        yield _rule(f"mask=not_first_{count}_keys", f"all but the first {count} keys", _not_first(count), alone=True)
    for corner, by in corners.items():
        for size in (size for size in WINDOWS if size < sizes.keys):
            yield from _windows(size, by, corner)
        for size in (size for size in CHUNKS if size < sizes.keys):
            means = f"causal, keys of the query's chunk of {size}{_where(corner)}"
            yield _rule(f"mask=chunked({size}){corner}", means, _chunk(size, by))


def _where(corner: str) -> str:
    words = {",upper_left": ", the first query at the first key", ",lower_right": ", the last query at the last key"}
    return words.get(corner, "")


def _first(count: int) -> Callable[[Any, Any], Any]:
    return lambda i, j: j < count


def _not_first(count: int) -> Callable[[Any, Any], Any]:
    return lambda i, j: j >= count


def _up_to(by: int) -> Callable[[Any, Any], Any]:
    return lambda i, j: j <= i + by


def _from(by: int) -> Callable[[Any, Any], Any]:
    return lambda i, j: j >= i + by


def _chunk(size: int, by: int) -> Callable[[Any, Any], Any]:
    return lambda i, j: ((i + by) // size == j // size) & (j <= i + by)


def _windows(size: int, by: int, corner: str) -> Iterator[Departure]:
    before = f"causal, {size} keys before the query's own ({size + 1} in all)"
    around = f"{size} keys to either side of the query's own"
    yield _rule(f"mask=window({size},0){corner}", before, lambda i, j: (j <= i + by) & (j >= i + by - size))
    yield _rule(f"mask=window({size},{size}){corner}", around, lambda i, j: abs(j - i - by) <= size)


def _given(base: Setting) -> Iterator[Departure]:
    if base.given is None:
        return
    numbers = base.given.astype(np.float64)
    axis = "given mask"
    yield Departure(axis, "mask=inverted", "True means `may not attend`", _changed(given=~base.given))
    yield Departure(axis, "mask=none", "the mask is ignored", _changed(given=None))
    yield Departure(axis, "mask=added", "the mask is added to the scores as 0 and 1", _added(numbers))
    yield Departure(axis, "mask=zero_fill", "masked scores are set to 0", _switched(fill="zero"))
    means = "the weights are masked after the softmax, and rows do not sum to one"
    yield Departure(axis, "mask=without_renormalising", means, _switched(fill="after_softmax"))
    if base.given.ndim >= 2 and base.given.shape[-1] == base.given.shape[-2]:
        turned = np.swapaxes(base.given, -1, -2)
        yield Departure(axis, "mask=transposed", "the mask's rows are keys", _changed(given=turned))


def _added(numbers: np.ndarray) -> Callable[[Setting], Setting]:
    return lambda setting: replace(setting, given=None, bias=numbers + (0 if setting.bias is None else setting.bias))


def _caps(base: Setting) -> Iterator[Departure]:
    if base.softcap is None:
        for cap in CAPS:
            means = f"the scores are capped at {cap:g} by cap * tanh(score / cap)"
            yield Departure("softcap", f"softcap={cap:g}", means, _changed(softcap=cap))
    else:
        yield Departure("softcap", "softcap=none", "the cap is ignored", _changed(softcap=None))
    if base.bias is not None:
        yield Departure(
            "cap's place", "softcap=after_bias", "the cap comes after the bias", _switched(cap="after_bias")
        )
    if base.given is not None:
        means = "the cap comes after the mask, so that masked keys keep a weight"
        yield Departure("cap's place", "softcap=after_mask", means, _switched(cap="after_mask"))


def _biases(base: Setting) -> Iterator[Departure]:
    if base.bias is None:
        return
    yield Departure("bias", "bias=none", "the bias is ignored", _changed(bias=None))
    yield Departure("bias", "bias=negated", "the bias is subtracted", _changed(bias=-base.bias))
    means = "the bias is added before the scale"
    yield Departure(
        "bias", "bias=scaled", means, lambda s: replace(s, bias=None if s.bias is None else s.bias * s.scale)
    )


def _softmaxes(sampled: bool) -> Iterator[Departure]:
    words = {"base_2": "powers of 2 in place of e", "sigmoid": "a sigmoid of each score", "none": "no softmax at all"}
    if not sampled:
        words["over_queries"] = "the softmax runs over the queries"
    for name, means in words.items():
        yield Departure("softmax", f"softmax={name}", means, _switched(softmax=name))
    means = "1 is added to the denominator: a sink of 0 in every head"
    yield Departure("softmax", "softmax=off_by_one", means, _changed(sink=0.0))


def _heads(sizes: Sizes) -> Iterator[Departure]:
    if sizes.key_heads not in (1, sizes.heads):
        means = "query head h reads key head h % Hkv: key heads are tiled, not repeated"
        yield Departure("heads", "heads=tiled", means, _switched(heads="tile"))
    if sizes.key_heads > 1:
        yield Departure(
            "heads", "heads=reversed", "the key heads stand in the other order", _switched(heads="reversed")
        )


def _roles(sizes: Sizes) -> Iterator[Departure]:
    if sizes.queries == sizes.keys and sizes.heads == sizes.key_heads:
        yield Departure("roles", "roles=query_key_swapped", "query and key are exchanged", _changed(swap="query_key"))
    if sizes.depth == sizes.value_depth:
        yield Departure("roles", "roles=key_value_swapped", "key and value are exchanged", _changed(swap="key_value"))


def _outputs(sizes: Sizes) -> Iterator[Departure]:
    ways = {
        "heads_last": "the output is (..., L, H, D): heads and lengths exchanged",
        "heads_joined": "the output is (..., L, H * D): the heads beside each other",
        "heads_interleaved": "the output is (..., L, D * H): the heads interleaved",
        "not_transposed": "the output's heads were reshaped away without exchanging heads and lengths first",
    }
    for name, means in ways.items():
        if sizes.heads > 1:
            yield Departure("output", f"output={name}", means, _changed(output=name))


def _empty_rows() -> Iterator[Departure]:
    words = {"mean_of_v": "the mean of the values", "nan": "NaN"}
    for name, means in words.items():
        said = f"a query that sees no key gives {means}"
        yield Departure("empty row", f"empty_row={name}", said, _switched(empty_row=name))


def _arithmetic(dtype: str) -> Iterator[Departure]:
    for narrow in {"float64": ("float32",), "float32": ("float16", "bfloat16")}.get(dtype, ()):
        means = f"it was computed in {narrow}, or rounded to it on the way"
        yield Departure("arithmetic", f"arithmetic={narrow}", means, _changed(arithmetic=narrow))
