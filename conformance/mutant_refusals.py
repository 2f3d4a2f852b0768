"""What the mutants refuse of packed, rotary and merging calls, each check left out by one of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Parameters = Mapping[str, Any]


def _offsets(p: Parameters) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(p["query_offsets"]), np.asarray(p["key_offsets"])


def _order(p: Parameters, x: Arrays) -> bool:
    rows = (x["query"].shape[-3], x["key"].shape[-3])
    return any(
        each.ndim == 1 and (each[0] != 0 or np.any(np.diff(each) < 0) or each[-1] > total)
        for each, total in zip(_offsets(p), rows, strict=True)
    )


def _mask_shape(p: Parameters, x: Arrays) -> bool:
    if p["mask"] is None or p["mask"]["rule"] != "dense":
        return False
    scores = (x["query"].shape[-2], x["query"].shape[0], x["key"].shape[0])
    return any(given not in (1, size) for given, size in zip(x["mask"].shape, scores, strict=True))


def _rule(p: Parameters) -> str:
    return (p["mask"] or {}).get("rule", "")


def _count(given: Any) -> int | None:
    return len(given) if isinstance(given, list) else None


PACKED: Mapping[str, Any] = {
    "check=packed_axes": lambda p, x: any(x[n].ndim != 3 for n in ("query", "key", "value")),
    "check=packed_rows": lambda p, x: x["key"].shape[0] != x["value"].shape[0],
    "check=packed_heads": lambda p, x: x["query"].shape[-2] % x["key"].shape[-2] != 0,
    "check=packed_mask": _mask_shape,
    "check=offsets_kind": lambda p, x: any(each.dtype.kind not in "iu" for each in _offsets(p)),
    "check=offsets_axes": lambda p, x: any(each.ndim != 1 for each in _offsets(p)),
    "check=offsets_order": _order,
    "check=sequences": lambda p, x: _offsets(p)[0].shape != _offsets(p)[1].shape,
    "check=packed_lengths": lambda p, x: _rule(p).endswith("lengths"),
    "check=first_positions": lambda p, x: _count(p["query_positions"]) not in (None, len(p["query_offsets"]) - 1),
    "check=packed_twice": lambda p, x: _rule(p) == "causal_lower_right" and p["query_positions"] != 0,
}


def _dim(p: Parameters, x: Arrays) -> bool:
    dim = x["x"].shape[-1] if p["dim"] is None else p["dim"]
    return dim % 2 != 0 or dim > x["x"].shape[-1]


def _positions(p: Parameters, x: Arrays) -> bool:
    places = np.asarray(p["positions"])
    *batch, length = np.moveaxis(x["x"], -3, -2).shape[:-2] if _heads_last(p, x) else _of_rows(x)
    if places.dtype.kind not in "iu":
        return True
    try:
        return places.ndim > 0 and np.broadcast_shapes(places.shape, (*batch, length)) != (*batch, length)
    except ValueError:
        return True


def _heads_last(p: Parameters, x: Arrays) -> bool:
    return bool(p["layout"] == "BLHD" and x["x"].ndim > 2)


def _of_rows(x: Arrays) -> tuple[int, ...]:
    shape = x["x"].shape
    return (*shape[:-3], shape[-2]) if len(shape) > 1 else (1,)


def _scaling(p: Parameters, x: Arrays) -> bool:
    rule = p["scaling"] or {}
    low, high = rule.get("low_frequency_factor", 0), rule.get("high_frequency_factor", 1)
    pairs = (p["dim"] or x["x"].shape[-1]) // 2
    return rule.get("factor", 1) <= 0 or low >= high or len(rule.get("factors", [0] * pairs)) != pairs


ROTARY: Mapping[str, Any] = {
    "check=rotary_axes": lambda p, x: x["x"].ndim < 2,
    "check=rotary_kind": lambda p, x: x["x"].dtype.kind in "biu",
    "check=rotary_layout": lambda p, x: p["layout"] not in ("BHLD", "BLHD"),
    "check=rotary_dim": _dim,
    "check=rotary_base": lambda p, x: p["base"] <= 0 or p["base"] == 1,
    "check=rotary_positions": _positions,
    "check=rotary_scaling": _scaling,
}


def _parts(x: Arrays, name: str) -> list[np.ndarray]:
    return [x[f"{name}.{n}"] for n in range(len(x) // 2)]


def _out_shapes(p: Parameters, x: Arrays) -> bool:
    return len({out.shape for out in _parts(x, "outs")}) > 1


def _lse_shapes(p: Parameters, x: Arrays) -> bool:
    return any(lse.ndim != out.ndim - 1 for out, lse in zip(_parts(x, "outs"), _parts(x, "lses"), strict=True)) or any(
        lse.shape != _parts(x, "lses")[0].shape for lse in _parts(x, "lses")
    )


MERGE: Mapping[str, Any] = {
    "check=merge_outs": _out_shapes,
    "check=merge_lses": lambda p, x: not _out_shapes(p, x) and _lse_shapes(p, x),
    "check=merge_layout": lambda p, x: p["layout"] not in ("BHLD", "BLHD"),
    "check=merge_kinds": lambda p, x: any(out.dtype.kind in "biu" for out in _parts(x, "outs")),
}
OTHERS = {"packed": PACKED, "rotary": ROTARY, "merge": MERGE}
