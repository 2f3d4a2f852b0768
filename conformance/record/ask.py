"""A case of a group in a few lines: sizes, rules, what it must tell apart. Everything else is drawn or computed."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from conformance.cases import Coincidence
from conformance.errors import RecordError
from conformance.record import departures_masks, departures_scores, plain
from conformance.record.departures import TABLE, Call, found
from conformance.record.draft import Draft
from conformance.record.draw import booleans, eighths
from conformance.record.visible import has_rule, places, visible
from conformance.verdict import distance, magnitude

DTYPES = ("float64", "float32", "float16", "bfloat16")
# How far a wrong answer must be from the right one, absolutely and in units of the largest number: 10 tolerances where
# plain PyTorch's error is that of numbers of about 4.
FAR = {"float64": (1e-11, 1e-10), "float32": (1e-4, 1e-4), "float16": (0.08, 0.05), "bfloat16": (0.45, 0.34)}
MOST = 14
DRAWS = Path(__file__).with_name("draws.json")
GITHUB = "https://github.com/"
REAL = ("query", "key", "value", "bias", "sinks", "bias_table", "slopes")


@dataclass(frozen=True)
class Size:
    """Sizes by their letters; `heads` 0 means plain (L, D) arrays."""

    queries: int
    keys: int
    depth: int
    value_depth: int
    heads: int = 0
    kv: int = 0
    batch: tuple[int, ...] = ()
    kv_batch: tuple[int, ...] | None = None

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of the scores."""
        return (*self.batch, *((self.heads,) if self.heads else ()), self.queries, self.keys)


@dataclass(frozen=True, eq=False)
class Ask:
    """One case to ask. `kills` names the departures that it must tell from the truth, `same` those that coincide.

    `prefer` names those to enter first where they can be told apart. `loud` is how much larger than elsewhere PyTorch's
    own error in 16 bits is in the group, where gradients are large.
    """

    id: str
    name: str
    why: str
    failure: str
    size: Size
    mask: Any = None
    bias: Any = None
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    dropout: float | None = None
    query_positions: Any = 0
    key_positions: Any = 0
    layout: str = "BHLD"
    kills: str = ""
    prefer: str = ""
    same: Mapping[str, str] = field(default_factory=dict)
    reports: str = ""
    outputs: str = "out lse"
    lse_cotangent: bool = False
    gradients: bool = True
    tangents: bool = False
    dtypes: tuple[str, ...] = DTYPES
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    spread: float = 2.0
    loud: float = 1.0
    edit: Callable[[dict[str, np.ndarray]], None] | None = None
    memory: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    valid: bool = True
    flags: tuple[str, ...] = ()


def drafted(ask: Ask) -> Draft:
    """Return the draft of one case, by its draw."""
    draw, count = draws().get(ask.id, (0, len(ask.dtypes)))
    return draft_of(ask, draw, ask.dtypes[:count])


@cache
def draws() -> dict[str, tuple[int, int]]:
    """The draw of each case, and in how many of its dtypes it is asked, where they are not the first and all."""
    return {name: (draw, count) for name, (draw, count) in json.loads(DRAWS.read_text()).items()}


def draft_of(ask: Ask, draw: int, dtypes: tuple[str, ...]) -> Draft:
    """Return the draft of one case for a draw.

    Raises:
        RecordError: it cannot tell the truth from what it must.
    """
    import torch

    arrays = _inputs(ask, draw)
    draft = Draft(
        id=ask.id,
        name=ask.name,
        why=ask.why,
        failure=ask.failure,
        op="attention",
        inputs={name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()},
        parameters=parameters(ask),
        wrt=tuple(name for name in REAL if name in arrays and not _derived(ask, name)) if ask.gradients else (),
        features=features(ask),
        flags=ask.flags,
        dtypes=dtypes,
        reports=tuple(GITHUB + each for each in ask.reports.split()),
        valid=ask.valid,
        outputs=tuple(ask.outputs.split()),
        memory=ask.memory,
        fixed=ask.fixed,
        loops=True,
        seeds={},
    )
    if not ask.valid:
        return replace(draft, wrt=())
    draft = _with_table(draft)
    truth = plain.OPS["attention"](_doubles(draft), draft.parameters)
    draft = replace(draft, seeds=_seeds(ask, truth) if draft.wrt else {}, tangents=_tangents(ask, draft))
    return _with_variants(ask, draft)


def parameters(ask: Ask) -> dict[str, Any]:
    """Return every parameter of the call."""
    depth = ask.size.depth
    return {
        "mask": ask.mask,
        "bias": ask.bias,
        "scale": (depth**-0.5 if depth else 1.0) if ask.scale is None else ask.scale,
        "softcap": ask.softcap,
        "sinks": "sinks" if ask.sinks else None,
        "dropout": None if ask.dropout is None else {"rate": ask.dropout, "keep": "keep"},
        "query_positions": ask.query_positions,
        "key_positions": ask.key_positions,
        "layout": ask.layout,
    }


def features(ask: Ask) -> tuple[str, ...]:
    """Return what an implementation must have to be asked."""
    size = ask.size
    has = {
        "mask": ask.mask is not None,
        "bias": ask.bias is not None,
        "softcap": ask.softcap is not None,
        "sinks": ask.sinks,
        "dropout": ask.dropout is not None,
        "positions": ask.query_positions != 0 or ask.key_positions != 0,
        "heads": size.heads > 0,
        "grouped": size.heads != size.kv,
        "batch": bool(size.batch),
        "layout": ask.layout != "BHLD",
        "gradient": ask.gradients and ask.valid,
        "tangent": ask.tangents,
        "strides": bool(ask.memory),
    }
    return ("attention", *(name for name, needed in has.items() if needed), *_rule_names(ask.mask))


def _rule_names(rule: Any) -> list[str]:
    if rule is None:
        return []
    return list(dict.fromkeys([rule["rule"], *(name for part in rule.get("of", ()) for name in _rule_names(part))]))


def _derived(ask: Ask, name: str) -> bool:
    return name == "bias" and ask.bias["rule"] not in ("dense", "sum")


def _inputs(ask: Ask, draw: int) -> dict[str, np.ndarray]:
    shapes, seed = _shapes(ask), f"{ask.id}/{draw}/"
    drawn = {}
    for name, shape in shapes.items():
        if name in ("mask", "keep") or name.startswith("given"):
            drawn[name] = booleans(seed + name, shape)
        else:
            low, high = {"value": (-2.0, 4.0), "sinks": (-1.0, 3.0), "bias": (-3.0, 3.0)}.get(
                name, (-ask.spread, ask.spread)
            )
            drawn[name] = eighths(seed + name, shape, low, high)
    if ask.edit is not None:
        ask.edit(drawn)
    return drawn


def _shapes(ask: Ask) -> dict[str, tuple[int, ...]]:
    size, kv = ask.size, ask.size.batch if ask.size.kv_batch is None else ask.size.kv_batch

    def layout(batch: tuple[int, ...], heads: int, length: int, depth: int) -> tuple[int, ...]:
        if not size.heads:
            return (*batch, length, depth)
        return (*batch, length, heads, depth) if ask.layout == "BLHD" else (*batch, heads, length, depth)

    found = {
        "query": layout(size.batch, size.heads, size.queries, size.depth),
        "key": layout(kv, size.kv, size.keys, size.depth),
        "value": layout(kv, size.kv, size.keys, size.value_depth),
    }
    wanted = {name: size.scores for name in ("mask", "bias") if has_rule(getattr(ask, name), "dense")}
    if ask.mask is not None and "of" in ask.mask:
        wanted = {("given" if name == "mask" else name): shape for name, shape in wanted.items()}
    wanted |= {"sinks": (size.heads,)} if ask.sinks else {}
    wanted |= {"keep": size.scores} if ask.dropout is not None else {}
    wanted |= {"slopes": (size.heads,)} if ask.bias and ask.bias.get("slopes") == "slopes" else {}
    return {**found, **wanted, **ask.shapes}


def _with_table(draft: Draft) -> Draft:
    """Add what a reader that knows no rules needs: `mask`, the table of all visible pairs."""
    mask = draft.parameters["mask"]
    if mask is None or mask["rule"] == "dense":
        return draft
    heads_last = draft.parameters["layout"] == "BLHD" and draft.inputs["query"].ndim > 2
    lengths = [draft.inputs[name].shape[-3 if heads_last else -2] for name in ("query", "key")]
    table = visible(mask, places(draft.inputs, draft.parameters, *lengths))
    full = table.expand(*table.shape[:-2], *lengths)
    return replace(draft, inputs={**draft.inputs, "mask": full.contiguous()})


def _doubles(draft: Draft) -> dict[str, Any]:
    return {name: x.double() if x.is_floating_point() else x for name, x in draft.inputs.items()}


def _seeds(ask: Ask, truth: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    names = ("out", "lse") if ask.lse_cotangent else ("out",)
    return {n: torch.from_numpy(eighths(f"{ask.id}/cotangent/{n}", tuple(truth[n].shape), -1.0, 1.0)) for n in names}


def _tangents(ask: Ask, draft: Draft) -> dict[str, Any]:
    import torch

    if not ask.tangents:
        return {}
    shapes = {name: tuple(draft.inputs[name].shape) for name in draft.wrt or ("query", "key", "value")}
    return {
        name: torch.from_numpy(eighths(f"{ask.id}/tangent/{name}", shape, -0.5, 0.5)) for name, shape in shapes.items()
    }


def _with_variants(ask: Ask, draft: Draft) -> Draft:
    """Enter the departures that the case must tell apart, then others that it can, up to a number."""
    call = Call(_doubles(draft), draft.parameters, memory=draft.memory)
    truth = _answer(draft, call, "")
    far = (ask.loud * FAR[draft.dtypes[-1]][0], FAR[draft.dtypes[-1]][1])
    kept: dict[str, dict[str, Any]] = {}
    for name, required in _names(ask):
        wrong = _wrong(draft, call, name)
        if name not in ask.same and wrong is not None:
            wrong = {n: x for n, x in wrong.items() if _far(x, truth[n], far)}
        twins = [other for other, known in kept.items() if wrong and not _apart(wrong, known)]
        alone = bool(wrong) and all(f"{other} {name}" in ask.same for other in twins)
        if required and not alone and name not in ask.same:
            reason = f"it is `{twins[0]}`" if twins else "the truth" if wrong is not None else "it changes nothing"
            raise RecordError(f"{ask.id}: cannot tell `{name}`: {reason}")
        if wrong and (required or (alone and len(kept) < MOST)):
            kept[name] = wrong
    wrong_outputs = {name: (TABLE[name][0], _maker(draft, name, tuple(tensors))) for name, tensors in kept.items()}
    if "out=zeros" not in ask.same and not _far(0.0 * truth["out"].nan_to_num(), truth["out"], far):
        raise RecordError(f"{ask.id}: cannot tell zeros")
    return replace(draft, wrong=wrong_outputs, coincidences=_coincidences(ask.same, {*kept, "out=zeros"}))


def _coincidences(same: Mapping[str, str], names: set[str]) -> tuple[Coincidence, ...]:
    """What coincides with the truth does so with each other."""
    truths = [name for name in same if " " not in name and name in names]
    pairs = [("expected", name) for name in truths] + [tuple(name.split()) for name in same if " " in name]
    pairs += [pair for pair in combinations(truths, 2) if "out=zeros" not in pair]
    because = same | {name: reason for key, reason in same.items() for name in [key.split()[-1]]}
    return tuple(Coincidence(pair, because.get(" ".join(pair), because[pair[-1]])) for pair in pairs)


def _wrong(draft: Draft, call: Call, name: str) -> dict[str, Any] | None:
    other = found(call, name)
    return None if other is None else _answer(draft, other, name)


def _names(ask: Ask) -> Iterator[tuple[str, bool]]:
    if not TABLE:
        departures_masks.enter()
        departures_scores.enter()
    required = [
        *ask.kills.split(),
        *" ".join(ask.same).split(),
        "out=mean_of_v",
        *(["mask=inverted"] if ask.mask else []),
    ]
    required = list(dict.fromkeys(name for name in required if name != "out=zeros"))
    yield from ((name, True) for name in required)
    wished = [name for name in ask.prefer.split() if name not in required]
    rest = [name for name in TABLE if name not in required and name not in wished and not name.startswith("dtype=")]
    yield from ((name, False) for name in (*wished, *rest))


def _maker(draft: Draft, name: str, outputs: tuple[str, ...]) -> Any:
    def make(inputs: Any) -> dict[str, Any]:
        call = found(Call(inputs, draft.parameters, memory=draft.memory), name)
        answer = {} if call is None else _answer(draft, call, name)
        return {output: answer[output] for output in outputs}

    return make


def _answer(draft: Draft, call: Call, name: str) -> dict[str, Any]:
    """What a departure is seen by: the gradients, lse or weights that it is about, else `out`."""
    kind = name.partition("=")[0]
    outputs = call.outputs() if kind != "gradient" and name else {}
    if kind in ("lse", "weights"):
        return {kind: outputs[kind]} if kind in (draft.outputs or ()) else {}
    if name and kind != "gradient":
        return {"out": outputs["out"]}
    leaves = {n: x.clone().requires_grad_(n in draft.wrt) for n, x in call.inputs.items()}
    outputs = replace(call, inputs=leaves).outputs()
    seeds = {n: tensor.double() for n, tensor in (draft.seeds or {}).items()}
    slopes = plain.gradients(outputs, seeds, leaves, draft.wrt) if draft.wrt else {}
    return slopes if name else {**outputs, **slopes}


def _far(wrong: Any, right: Any, far: tuple[float, float]) -> bool:
    one, other = wrong.detach().numpy(), right.detach().numpy()
    return distance(one, other)[0] > far[0] + far[1] * magnitude(other)


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    shared = one.keys() & other.keys()
    return all(_far(one[n], other[n], FAR["float32"]) for n in shared) if shared else True
