"""Packed sequences by our public names: `packed_attention`, and the one masked call whose `vjp` is its gradient."""

import itertools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from conformance.cases import Case

Arrays = Mapping[str, Any]
Convert = Callable[[np.ndarray], Any]


def forward(library: ModuleType, case: Case, inputs: Arrays, asarray: Convert) -> dict[str, Any]:
    """Return out, lse and weights as far as the case expects them."""
    returned = {f"return_{name}": name in case.expected for name in ("lse", "weights")}
    return attend(library, case, inputs, asarray, **returned)


def attend(library: ModuleType, case: Case, inputs: Arrays, asarray: Convert, **returned: bool) -> dict[str, Any]:
    """Call `packed_attention`."""
    from conformance.adapters.ours import call

    arguments = {name: value for name, value in call(case, inputs, asarray).items() if name != "layout"}
    arrays = (inputs[name] for name in ("query", "key", "value"))
    result = library.packed_attention(*arrays, *_offsets(case, asarray), **arguments, **returned)
    return {name: array for name, array in result._asdict().items() if array is not None}


def as_one_call(library: ModuleType, case: Case, inputs: Arrays, asarray: Convert) -> dict[str, Any]:
    """Return the arguments of the call that packing is documented to be: segments, and positions that restart."""
    from attention_core import masks
    from conformance.adapters.ours import call

    arguments = call(case, inputs, asarray)
    mask = arguments["mask"]
    totals = [inputs[name].shape[0] for name in ("query", "key")]
    ids = [library.segment_ids(x, total) for x, total in zip(_offsets(case, asarray), totals, strict=True)]
    own = masks.segments(*ids)
    within = masks.causal() if _aligned(case) else mask
    arguments |= {"mask": own if within is None else own & within}
    for name, places in zip(("query_positions", "key_positions"), _positions(case, totals), strict=True):
        arguments[name] = asarray(places)
    return arguments


def _offsets(case: Case, asarray: Convert) -> tuple[Any, Any]:
    query, key = (asarray(np.asarray(case.parameters[f"{name}_offsets"])) for name in ("query", "key"))
    return query, key


def _aligned(case: Case) -> bool:
    return (case.parameters["mask"] or {}).get("rule") == "causal_lower_right"


def _positions(case: Case, totals: list[int]) -> tuple[np.ndarray, np.ndarray]:
    queries, keys = (np.asarray(case.parameters[f"{name}_offsets"]) for name in ("query", "key"))
    first = np.asarray(case.parameters["query_positions"])
    firsts = np.diff(keys) - np.diff(queries) if _aligned(case) else np.broadcast_to(first, (len(queries) - 1,))
    places = [np.arange(total) for total in totals]
    for begin, end, start in zip(queries[:-1], queries[1:], firsts, strict=True):
        places[0][begin:end] = np.arange(end - begin) + start
    for begin, end in itertools.pairwise(keys):
        places[1][begin:end] = np.arange(end - begin)
    return places[0], places[1]
