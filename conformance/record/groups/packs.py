"""Packed sequences: several of unequal lengths, one after the other, without padding between them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from conformance.errors import RecordError
from conformance.record import packing
from conformance.record.ask import DTYPES
from conformance.record.departures import TABLE, Call
from conformance.record.draft import Draft
from conformance.record.drafting import GITHUB
from conformance.record.draw import booleans, eighths
from conformance.record.groups.rules import CAUSAL, LOWER_RIGHT, window
from conformance.record.groups.theme import DENSE, Theme
from conformance.record.threefry import kept
from conformance.record.variants import enter_all, told_apart

Arrays = dict[str, Any]
PACKED = Theme(
    "packed",
    "Packed sequences",
    "Rows offsets[s] to offsets[s + 1] - 1 are sequence s; each is a call of its own, with positions from 0.",
    "Documents see each other, or a long one is cut, where batches are packed to save padding.",
    "fla-org/flash-linear-attention/pull/842 huggingface/diffusers/issues/14114",
)
THREE, TOTAL, TRIES = [0, 3, 5, 9], 9, 200
NO_BOUNDS = "packed=boundaries_ignored packed=one_more"


def packs() -> Iterator[Draft]:
    """Yield the cases of the op `packed`."""
    yield from _plain()
    yield from _positions()
    yield from _tables()


def _plain() -> Iterator[Draft]:
    yield _case("three", "three sequences of 3, 2 and 4", THREE, kills=NO_BOUNDS)
    yield _case("causal", "causal in each", THREE, mask=CAUSAL, kills=NO_BOUNDS)
    yield _case("cross", "more keys than queries", [0, 2, 5], [0, 4, 9], kills="packed=key_offsets_ignored")
    yield _case("empty", "a sequence without rows", [0, 3, 3, 9], mask=CAUSAL, kills=NO_BOUNDS)
    yield _case("no-keys", "a sequence without keys: its rows see nothing", [0, 2, 5], [0, 9, 9], lse=True)
    yield _case("padding", "two rows beyond the last offset", [0, 3, 7], kills="packed=padding_attends")
    yield _case(
        "padding-sinks",
        "rows beyond the last offset have their sink as lse",
        [0, 4, 7],
        sinks=True,
        lse=True,
        kills="packed=padding_attends",
    )
    yield _case("one", "one sequence is the call itself", [0, 9], weights=True)
    yield _case(
        "grouped", "4 query heads, 2 key heads", THREE, heads=(4, 2), mask=CAUSAL, lse=True, kills="heads=tiled"
    )


def _positions() -> Iterator[Draft]:
    cross: Arrays = {"offsets": [0, 2, 5], "keys": [0, 4, 9]}
    yield _case("cross-causal", "causal, more keys than queries", **cross, mask=CAUSAL, kills="packed=lower_right")
    yield _case(
        "lower-right",
        "each sequence's last query at its last key",
        **cross,
        mask=LOWER_RIGHT,
        kills="packed=upper_left packed=lower_right_of_all",
    )
    yield _case(
        "decode",
        "one query a sequence, after caches of 3 and 4",
        [0, 1, 2],
        [0, 4, 9],
        mask=CAUSAL,
        first=[2, 4],
        kills="packed=first_position",
    )
    yield _case("window", "a window of one key before", THREE, mask=window(1, 0), kills=NO_BOUNDS)
    yield _case(
        "chunks",
        "chunks of 2 are counted from each sequence's first row",
        THREE,
        mask={"rule": "chunked", "size": 2},
        kills="packed=positions_run_on",
    )
    yield _case(
        "alibi",
        "ALiBi counts from each sequence's first row",
        **cross,
        bias={"rule": "alibi", "slopes": [1.0, 0.5]},
        kills="packed=positions_run_on",
    )


def _tables() -> Iterator[Draft]:
    yield _case("mask", "a boolean mask over all packed rows", THREE, mask=DENSE, kills="mask=none")
    yield _case("bias", "a bias over all packed rows", THREE, bias=DENSE, lse=True, kills="bias=none")
    yield _case("capped", "a soft cap", THREE, softcap=1.5, mask=CAUSAL, weights=True, kills="cap=none")
    yield _case(
        "seed",
        "a seed counts packed rows",
        THREE,
        dropout={"rate": 0.25, "seed": 4, "origin": [0, 0, 0, 0]},
        kills="dropout=heads_alike",
    )


def _case(
    suffix: str,
    words: str,
    offsets: list[int],
    keys: list[int] | None = None,
    *,
    kills: str = "",
    heads: tuple[int, int] = (2, 2),
    first: Any = 0,
    lse: bool = False,
    weights: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    **call: Any,
) -> Draft:
    import torch

    given = parameters(offsets, keys, first, call)
    rows = offsets[-1] if keys is not None else TOTAL
    seeds = {"out": (rows, heads[0], 3), **({"lse": (heads[0], rows)} if lse else {})}
    shared = Draft(
        id=f"packed-{suffix}",
        name=f"{PACKED.title}: {words}",
        why=f"{PACKED.why} Here: {words}.",
        failure=PACKED.failure,
        op="packed",
        inputs={},
        parameters=given,
        dtypes=dtypes,
        reports=tuple(GITHUB + each for each in PACKED.reports.split()),
        outputs=("out", "lse", *(("weights",) if weights else ())),
        seeds={n: torch.from_numpy(eighths(f"packed-{suffix}/cotangent/{n}", seeds[n], -1.0, 1.0)) for n in seeds},
        loops=True,
    )
    return _told(shared, rows, heads, (*kills.split(), "out=mean_of_v"))


def _told(draft: Draft, rows: int, heads: tuple[int, int], required: tuple[str, ...]) -> Draft:
    """Draw inputs until the case tells apart what it must."""
    import torch

    for draw in range(TRIES):
        arrays = _inputs(f"{draft.id}/{draw}", draft.parameters, rows, heads)
        drawn = replace(
            draft,
            inputs={name: torch.from_numpy(array) for name, array in arrays.items()},
            wrt=tuple(name for name in ("query", "key", "value", "bias", "sinks") if name in arrays),
            features=("attention", "packed", "heads", "gradient", *_features(draft.parameters, heads)),
        )
        try:
            wrong = told_apart(_answer(draft.parameters), drawn, required, NAMES)
        except RecordError:
            continue
        return replace(drawn, wrong={name: (_means(name), make) for name, make in wrong.items()})
    raise RecordError(f"{draft.id}: no draw tells {', '.join(required)}")


def _means(name: str) -> str:
    return packing.MEANS[name] if name in packing.MEANS else TABLE[name][0]


NAMES = (*packing.MEANS, "heads=tiled", "scale=1", "mask=none", "bias=none", "bias=scaled", "cap=none", "sink=none")
NAMES = (*NAMES, "softmax=base_2", "lse=base_2", "dropout=ignored", "dropout=heads_alike", "dropout=transposed")


def parameters(offsets: list[int], keys: list[int] | None, first: Any, call: Mapping[str, Any]) -> Arrays:
    """Return every parameter of a packed call."""
    sinks = {"sinks": "sinks"} if call.get("sinks") else {}
    dropout = {**call["dropout"], "keep": "keep"} if "dropout" in call else None
    return {
        "mask": None,
        "bias": None,
        "scale": 0.5,
        "softcap": None,
        **call,
        "sinks": None,
        **sinks,
        "dropout": dropout,
        "query_positions": first,
        "key_positions": 0,
        "layout": "BLHD",
        "query_offsets": offsets,
        "key_offsets": offsets if keys is None else keys,
    }


def _inputs(seed: str, parameters: Mapping[str, Any], rows: int, heads: tuple[int, int]) -> Arrays:
    shapes = {"query": (rows, heads[0], 4), "key": (TOTAL, heads[1], 4)}
    pairs = (heads[0], rows, TOTAL)
    found = {name: eighths(f"{seed}/{name}", shape, -2.0, 2.0) for name, shape in shapes.items()}
    found["value"] = eighths(f"{seed}/value", (TOTAL, heads[1], 3), -2.0, 4.0)
    found |= {"bias": eighths(f"{seed}/bias", pairs, -3.0, 3.0)} if parameters["bias"] == DENSE else {}
    found |= {"mask": booleans(f"{seed}/mask", pairs)} if parameters["mask"] == DENSE else {}
    found |= {"sinks": eighths(f"{seed}/sinks", heads[:1], -1.0, 3.0)} if parameters["sinks"] else {}
    return found | ({"keep": kept(parameters["dropout"], pairs)} if parameters["dropout"] else {})


def _features(parameters: Mapping[str, Any], heads: tuple[int, int]) -> Iterator[str]:
    yield from (each for each in ("mask", "bias", "softcap", "sinks", "dropout") if parameters[each] is not None)
    if heads[0] != heads[1]:
        yield "grouped"
    if parameters["mask"] is not None:
        yield parameters["mask"]["rule"]


def _answer(parameters: Mapping[str, Any]) -> Any:
    """From a departure's name and inputs to what it gives; the right answer by the name ""."""
    enter_all()

    def answer(name: str, inputs: Any) -> Arrays | None:
        call: Call | None = packing.as_one_call(inputs, parameters, name)
        if name and name not in packing.MEANS:
            call = TABLE[name][1](packing.as_one_call(inputs, parameters))
        return None if call is None else call.outputs()

    return answer
