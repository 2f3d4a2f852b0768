"""Packed sequences of the mutants: one call with segments and positions, each sequence's rows counted in a loop."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conformance.cases import Case

Rows = tuple[list[int], list[int]]


def as_attention(case: Case, w: str) -> Case:
    """Return the `attention` case that a packed one amounts to, wrong by `w`."""
    p = case.parameters
    queries = p["query_offsets"]
    keys = queries if w == "packed=key_offsets_ignored" else p["key_offsets"]
    firsts = _firsts(p, case, w)
    query_ids, query_places = _rows(queries, case.inputs["query"].shape[0], firsts, w)
    key_ids, key_places = _rows(keys, case.inputs["key"].shape[0], [0] * (len(keys) - 1), w)
    rule = p["mask"]
    own = {"rule": "segments", "query_ids": query_ids, "key_ids": key_ids}
    within = {"rule": "causal"} if rule is not None and rule["rule"] == "causal_lower_right" else rule
    mask = own if within is None else {"rule": "and", "of": [own, within]}
    return replace(case, parameters={**p, "mask": mask, "query_positions": query_places, "key_positions": key_places})


def _rows(offsets: list[int], total: int, firsts: list[int], w: str) -> Rows:
    """Return the sequence of each row, -1 for padding, and its position."""
    ids, places = [], []
    for row in range(total):
        sequence, start = -1, 0
        for n, (begin, end) in enumerate(itertools.pairwise(offsets)):
            late = 1 if w == "packed=one_more" else 0
            if begin + (late if n else 0) <= row < end + late:
                sequence, start = n, begin
        if row >= offsets[-1]:
            sequence = len(offsets) if w == "packed=padding_attends" else -1
        whole = w in ("packed=boundaries_ignored", "packed=positions_run_on")
        first = firsts[sequence] if 0 <= sequence < len(firsts) else 0
        ids.append(0 if w == "packed=boundaries_ignored" and sequence >= 0 else sequence)
        # Of a row whose boundary is misplaced only the sequence is.
        own = max(begin for begin in offsets if begin <= row) if w == "packed=one_more" else start
        places.append(row - (0 if whole else own) + first)
    return ids, places


def _firsts(p: Mapping[str, Any], case: Case, w: str) -> list[int]:
    """Return the position of the first query of each sequence."""
    queries, keys, rule = p["query_offsets"], p["key_offsets"], (p["mask"] or {}).get("rule")
    count = len(queries) - 1
    more_keys = [keys[n + 1] - keys[n] - queries[n + 1] + queries[n] for n in range(count)]
    of_all = case.inputs["key"].shape[0] - case.inputs["query"].shape[0]
    if rule == "causal_lower_right":
        return {"packed=upper_left": [0] * count, "packed=lower_right_of_all": [of_all] * count}.get(w, more_keys)
    if rule == "causal" and w == "packed=lower_right":
        return more_keys
    given = p["query_positions"]
    firsts = [given] * count if isinstance(given, int) else list(given)
    return [firsts[0]] * count if w == "packed=first_position" else firsts
