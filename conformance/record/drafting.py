"""From an `Ask` to the draft that is recorded: drawn inputs, cotangents, tangents, the table of visible pairs."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from conformance.record import plain, threefry
from conformance.record.ask import Ask
from conformance.record.draft import Draft
from conformance.record.draw import booleans, eighths
from conformance.record.variants import doubles, with_variants
from conformance.record.visible import has_rule, places, visible

DRAWS = Path(__file__).with_name("draws.json")
GITHUB = "https://github.com/"
REAL = ("query", "key", "value", "bias", "sinks", "bias_table", "slopes")


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
    truth = plain.OPS["attention"](doubles(draft), draft.parameters)
    draft = replace(draft, seeds=_seeds(ask, truth) if draft.wrt else {}, tangents=_tangents(ask, draft))
    return with_variants(ask, draft)


def parameters(ask: Ask) -> dict[str, Any]:
    """Return every parameter of the call."""
    depth = ask.size.depth
    return {
        "mask": ask.mask,
        "bias": ask.bias,
        "scale": (depth**-0.5 if depth else 1.0) if ask.scale is None else ask.scale,
        "softcap": ask.softcap,
        "sinks": "sinks" if ask.sinks else None,
        "dropout": _dropout(ask),
        "query_positions": ask.query_positions,
        "key_positions": ask.key_positions,
        "layout": ask.layout,
    }


def _dropout(ask: Ask) -> dict[str, Any] | None:
    seed = {} if ask.seed is None else {"seed": ask.seed, "origin": list(ask.origin)}
    return None if ask.dropout is None else {"rate": ask.dropout, **seed, "keep": "keep"}


def features(ask: Ask) -> tuple[str, ...]:
    """Return what an implementation must have to be asked."""
    size = ask.size
    has = {
        "mask": ask.mask is not None,
        "bias": ask.bias is not None,
        "softcap": ask.softcap is not None,
        "sinks": ask.sinks,
        "dropout": ask.dropout is not None,
        "seed": ask.seed is not None,
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
        if name == "keep" and ask.seed is not None and ask.valid:
            drawn[name] = threefry.kept(parameters(ask)["dropout"], shape)
        elif name in ("mask", "keep") or name.startswith("given"):
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
