"""Packed sequences in PyTorch: a call a sequence, put one after the other; and the wrong ways, as one masked call."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.record.departures import Call
from conformance.record.formula import attention

Tensor = Any
Tensors = Mapping[str, Tensor]
Parameters = Mapping[str, Any]
MEANS = {
    "packed=boundaries_ignored": "The offsets are ignored: all sequences are one.",
    "packed=positions_run_on": "Positions do not restart with each sequence.",
    "packed=one_more": "The row at an offset belongs to the sequence before it.",
    "packed=padding_attends": "Rows beyond the last offset attend to each other.",
    "packed=key_offsets_ignored": "The queries' offsets are taken for the keys too.",
    "packed=upper_left": "causal_lower_right() aligns each sequence's first query with its first key.",
    "packed=lower_right": "causal() aligns each sequence's last query with its last key.",
    "packed=lower_right_of_all": "causal_lower_right() aligns the last query of all with the last key of all.",
    "packed=first_position": "All sequences take the position of the first one's first query.",
}


@dataclass(frozen=True)
class Piece:
    """One sequence: its rows of query and key, and the position of its first query."""

    queries: slice
    keys: slice
    position: int


def pieces(parameters: Parameters) -> list[Piece]:
    """Return the sequences of a case."""
    queries, keys = parameters["query_offsets"], parameters["key_offsets"]
    first = parameters["query_positions"]
    firsts = [first] * (len(queries) - 1) if isinstance(first, int) else first
    return [Piece(slice(*queries[n : n + 2]), slice(*keys[n : n + 2]), firsts[n]) for n in range(len(queries) - 1)]


def packed(inputs: Tensors, parameters: Parameters) -> dict[str, Tensor]:
    """Return `out`, `lse` and `weights`; rows beyond the last sequence see nothing."""
    import torch

    rows, columns = inputs["query"].shape[0], inputs["key"].shape[0]
    outs, lses, weights = [], [], []
    for piece in [*pieces(parameters), *_padding(parameters, rows, columns)]:
        found = attention(cut(inputs, piece), _one(parameters, piece))
        outs.append(found["out"])
        lses.append(found["lse"])
        before, after = piece.keys.start, columns - piece.keys.stop
        weights.append(torch.nn.functional.pad(found["weights"], (before, after)))
    return {"out": torch.cat(outs, 0), "lse": torch.cat(lses, -1), "weights": torch.cat(weights, -2)}


def cut(inputs: Tensors, piece: Piece) -> dict[str, Tensor]:
    """Return the inputs of one sequence; `mask`, `bias` and `keep` are `(..., total_q, total_k)`."""
    rows = {"query": piece.queries, "key": piece.keys, "value": piece.keys}
    found = {name: inputs[name][part] for name, part in rows.items()}
    tables = {name: inputs[name] for name in ("mask", "bias", "keep") if name in inputs}
    found |= {name: table[..., piece.queries, piece.keys] for name, table in tables.items()}
    return {**inputs, **found}


def _padding(parameters: Parameters, rows: int, columns: int) -> Iterator[Piece]:
    end = parameters["query_offsets"][-1]
    if end < rows:
        yield Piece(slice(end, rows), slice(columns, columns), 0)


def _one(parameters: Parameters, piece: Piece) -> dict[str, Any]:
    dropout = parameters["dropout"]
    if dropout is not None and "seed" in dropout:
        # The seed counts packed rows: each sequence is a part of the whole.
        dropout = {**dropout, "origin": [0, 0, piece.queries.start, piece.keys.start]}
    lower = (parameters["mask"] or {}).get("rule") == "causal_lower_right"
    return {**parameters, "dropout": dropout, "query_positions": 0 if lower else piece.position}


def as_one_call(inputs: Tensors, parameters: Parameters, wrong: str = "") -> Call:
    """Return the call with segments and positions that packing amounts to, right or wrong."""
    queries = parameters["query_offsets"]
    keys = queries if wrong == "packed=key_offsets_ignored" else parameters["key_offsets"]
    total_q, total_k = inputs["query"].shape[0], inputs["key"].shape[0]
    rule = parameters["mask"]
    ids = {"query_ids": _ids(queries, total_q, wrong), "key_ids": _ids(keys, total_k, wrong)}
    own: dict[str, Any] = {"rule": "segments", **ids}
    within = {"rule": "causal"} if rule is not None and rule["rule"] == "causal_lower_right" else rule
    places = [p - p0 for p, p0 in zip(range(total_k), _starts(keys, total_k, wrong), strict=True)]
    first = [*_firsts(parameters, wrong, total_q, total_k), 0]
    starts = _starts(queries, total_q, wrong)
    numbers = _ids(queries, total_q, wrong if wrong == "packed=one_more" else "")
    return Call(
        inputs,
        {
            **parameters,
            "mask": own if within is None else {"rule": "and", "of": [own, within]},
            "query_positions": [row - starts[row] + first[numbers[row]] for row in range(total_q)],
            "key_positions": places,
        },
    )


def _ids(offsets: Sequence[int], total: int, wrong: str) -> list[int]:
    late = 1 if wrong == "packed=one_more" else 0
    found = [sum(row - late >= start for start in offsets[1:]) for row in range(total)]
    last = len(offsets) - 1
    padding = last if wrong == "packed=padding_attends" else -1
    ids = [padding if row >= offsets[-1] else number for row, number in enumerate(found)]
    return [min(number, 0) for number in ids] if wrong == "packed=boundaries_ignored" else ids


def _starts(offsets: Sequence[int], total: int, wrong: str) -> list[int]:
    if wrong in ("packed=positions_run_on", "packed=boundaries_ignored"):
        return [0] * total
    return [max(start for start in offsets if start <= row) for row in range(total)]


def _firsts(parameters: Parameters, wrong: str, total_q: int, total_k: int) -> list[int]:
    rule, parts = parameters["mask"] or {}, pieces(parameters)
    shifts = [(p.keys.stop - p.keys.start) - (p.queries.stop - p.queries.start) for p in parts]
    if rule.get("rule") == "causal_lower_right":
        other = {"packed=upper_left": [0] * len(parts), "packed=lower_right_of_all": [total_k - total_q] * len(parts)}
        return other.get(wrong, shifts)
    firsts = [p.position for p in parts]
    if wrong == "packed=lower_right" and rule.get("rule") == "causal":
        return shifts
    return [firsts[0]] * len(parts) if wrong == "packed=first_position" else firsts
