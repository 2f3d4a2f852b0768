"""Packed, rotary and merging calls that must raise."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from conformance.record.draft import Draft
from conformance.record.drafting import GITHUB
from conformance.record.draw import booleans, eighths
from conformance.record.groups import packs, rotations
from conformance.record.groups.refused import INVALID
from conformance.record.groups.rules import CAUSAL, LOWER_RIGHT
from conformance.record.groups.theme import DENSE

Arrays = dict[str, Any]
# What only reading an array shows: in a trace nobody can.
READS_DATA = ("reads_data",)


def refused() -> Iterator[Draft]:
    """Yield the cases of `invalid` whose op is another than attention."""
    yield from _packed()
    yield from _rotary()
    yield from _merge()


def _packed() -> Iterator[Draft]:
    yield _pack("axes", "a query with a batch axis", shapes={"query": (2, 9, 2, 4)})
    yield _pack("rows", "value has fewer rows than key", shapes={"value": (8, 2, 3)})
    yield _pack("heads", "3 query heads, 2 key heads", shapes={"query": (9, 3, 4)})
    yield _pack("mask-rows", "a mask for 8 rows beside 9", mask=DENSE, shapes={"mask": (2, 8, 9)})
    yield _pack("offsets-float", "offsets that are no integers", [0.0, 2.5, 9.0])
    yield _pack("offsets-axes", "offsets with two axes", [[0, 3], [5, 9]])
    yield _pack("sequences", "two sequences of keys beside three of queries", keys=[0, 4, 9])
    yield _pack("lengths", "key lengths beside offsets, which are lengths", mask={"rule": "key_lengths", "lengths": 3})
    yield _pack("first-positions", "two first positions, three sequences", mask=CAUSAL, query_positions=[1, 2])
    yield _pack("positions-twice", "causal_lower_right() beside positions", mask=LOWER_RIGHT, query_positions=[1, 2, 0])
    yield _pack("offsets-start", "offsets that begin at 1", [1, 3, 9], flags=READS_DATA)
    yield _pack("offsets-decreasing", "offsets that decrease", [0, 5, 3, 9], flags=READS_DATA)
    yield _pack("offsets-beyond", "offsets beyond the rows", [0, 3, 10], flags=READS_DATA)


def _rotary() -> Iterator[Draft]:
    yield _turn("odd", "a depth of 5 has no pairs", (2, 3, 5))
    yield _turn("dim-odd", "3 features are to turn", dim=3)
    yield _turn("dim-wide", "8 features of 6 are to turn", dim=8)
    yield _turn("base-one", "a base of 1 turns all pairs alike", base=1.0)
    yield _turn("base-negative", "a negative base", base=-100.0)
    yield _turn("integer", "integer features", edit=lambda x: np.round(x).astype(np.int32))
    yield _turn("axes", "one axis, without positions", (6,))
    yield _turn("layout", "an unknown layout", layout="LBHD")
    yield _turn("positions-length", "positions for 4 rows beside 3", positions=[0, 1, 2, 3])
    yield _turn("positions-float", "positions between integers", positions=[0.5, 1.5, 2.5])
    yield _turn("positions-items", "positions for three items beside two", (2, 1, 3, 6), positions=[[0, 1, 2]] * 3)
    yield _turn("factor-zero", "a factor of 0", scaling={"rule": "linear", "factor": 0.0})
    longrope = {"rule": "longrope", "factors": [1.0, 2.0], "factor": 4.0, "original_length": 32}
    yield _turn("factors", "two factors, three pairs", scaling=longrope)
    llama3 = {"factor": 8.0, "low_frequency_factor": 4.0, "high_frequency_factor": 1.0, "original_length": 64}
    yield _turn("frequency-factors", "the low bound above the high one", scaling={"rule": "llama3", **llama3})


def _merge() -> Iterator[Draft]:
    shapes = {"outs.0": (2, 3, 4), "lses.0": (2, 3), "outs.1": (2, 3, 4), "lses.1": (2, 3)}
    yield _parts("queries", "parts with 3 and 2 queries", {**shapes, "outs.1": (2, 2, 4), "lses.1": (2, 2)})
    yield _parts("depths", "parts of depth 4 and 3", {**shapes, "outs.1": (2, 3, 3)})
    yield _parts("lse", "lse of shape (Lq, H)", {**shapes, "lses.1": (3, 2)})
    yield _parts("layout", "an unknown layout", shapes, layout="LBHD")
    yield _parts("integer", "an integer output", shapes, integers="outs.1")


def _pack(
    suffix: str,
    words: str,
    offsets: Any = (0, 3, 5, 9),
    keys: Any = None,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    flags: tuple[str, ...] = (),
    **call: Any,
) -> Draft:
    name = f"packed-{suffix}"
    asked = {"query": (9, 2, 4), "key": (9, 2, 4), "value": (9, 2, 3), **(shapes or {})}
    draws = {each: booleans if each == "mask" else _numbers for each in asked}
    arrays = {each: draws[each](f"invalid-{name}/{each}", shape) for each, shape in asked.items()}
    parameters = packs.parameters(list(offsets), keys, call.pop("query_positions", 0), call)
    return _draft(name, f"packed, {words}", "packed", arrays, parameters, ("attention", "packed", "heads"), flags)


def _turn(suffix: str, words: str, shape: tuple[int, ...] = (2, 3, 6), edit: Any = None, **call: Any) -> Draft:
    x = _numbers(f"invalid-rotary-{suffix}/x", shape)
    arrays = {"x": x if edit is None else edit(x)}
    return _draft(f"rotary-{suffix}", f"rotary, {words}", "rotary", arrays, {**rotations.CALL, **call}, ("rotary",))


def _parts(suffix: str, words: str, shapes: Mapping[str, tuple[int, ...]], integers: str = "", **call: Any) -> Draft:
    arrays = {name: _numbers(f"invalid-merge-{suffix}/{name}", shape) for name, shape in shapes.items()}
    if integers:
        arrays[integers] = np.round(arrays[integers]).astype(np.int32)
    return _draft(f"merge-{suffix}", f"merging, {words}", "merge", arrays, {"layout": "BHLD", **call}, ("merge",))


def _numbers(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return eighths(name, shape, -2.0, 2.0)


def _draft(
    suffix: str,
    words: str,
    op: str,
    arrays: Arrays,
    parameters: Arrays,
    features: tuple[str, ...],
    flags: tuple[str, ...] = (),
) -> Draft:
    import torch

    return Draft(
        id=f"invalid-{suffix}",
        name=f"{INVALID.title}: {words}",
        why=f"{INVALID.why} Here: {words}.",
        failure=INVALID.failure,
        op=op,
        inputs={name: torch.from_numpy(array) for name, array in arrays.items()},
        parameters=parameters,
        features=features,
        flags=flags,
        dtypes=("float32",),
        reports=tuple(GITHUB + each for each in INVALID.reports.split()),
        valid=False,
        outputs=(),
        seeds={},
    )
