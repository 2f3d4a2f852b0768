"""What the mutants refuse, each check left out by one of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.cases import Case

Arrays = Mapping[str, np.ndarray]


def refuse(case: Case, inputs: Arrays, w: str) -> None:
    """Raise for a wrong call, unless `w` is the mutant that does not look."""
    for name, check in CHECKS.items():
        if w != name and check(case.parameters, inputs):
            raise ValueError(name)


def _sizes(p: Mapping[str, Any], inputs: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    arrays = [inputs[name] for name in ("query", "key", "value")]
    arrays = [x[None] if x.ndim == 2 else x for x in arrays]
    q, k, v = (np.swapaxes(x, -2, -3) if p["layout"] == "BLHD" and inputs["query"].ndim > 2 else x for x in arrays)
    return q, k, v


def _scores(p: Mapping[str, Any], inputs: Arrays) -> tuple[int, ...]:
    q, k, v = _sizes(p, inputs)
    return (*np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3]), q.shape[-3], q.shape[-2], k.shape[-2])


def _fits(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _batches(p: Mapping[str, Any], inputs: Arrays) -> bool:
    try:
        _scores(p, inputs)
    except ValueError:
        return True
    return False


def _groups(p: Mapping[str, Any], inputs: Arrays) -> bool:
    q, k, _ = _sizes(p, inputs)
    heads, shared = q.shape[-3], k.shape[-3]
    return heads % shared != 0 if shared else heads > 0


def _parts(rule: Any) -> list[Any]:
    return [] if rule is None else [rule, *(deeper for part in rule.get("of", ()) for deeper in _parts(part))]


def _tables(p: Mapping[str, Any], inputs: Arrays, which: str) -> list[np.ndarray]:
    return [inputs[rule.get("input", which)] for rule in _parts(p[which]) if rule["rule"] == "dense"]


def _bounds(p: Mapping[str, Any], inputs: Arrays) -> bool:
    numbers = [rule.get(name) for rule in _parts(p["mask"]) for name in ("left", "right")]
    least = [rule.get(name, 1) for rule in _parts(p["mask"]) for name in ("size", "step")]
    return any(n is not None and n < 0 for n in numbers) or any(n < 1 for n in least)


def _positions(p: Mapping[str, Any], inputs: Arrays) -> bool:
    q, k, _ = _sizes(p, inputs)
    given = ((p["query_positions"], q.shape[-2]), (p["key_positions"], k.shape[-2]))
    twice = any(r["rule"] == "causal_lower_right" for r in _parts(p["mask"])) and p["query_positions"] != 0
    return twice or any(isinstance(n, list) and np.asarray(n).shape[-1] != size for n, size in given)


def _segments(p: Mapping[str, Any], inputs: Arrays) -> bool:
    q, k, _ = _sizes(p, inputs)
    ids = [rule for rule in _parts(p["mask"]) if rule["rule"] == "segments"]
    return any(
        (np.asarray(r["query_ids"]).shape[-1], np.asarray(r["key_ids"]).shape[-1]) != (q.shape[-2], k.shape[-2])
        for r in ids
    )


def _halves(p: Mapping[str, Any], inputs: Arrays) -> bool:
    names = {inputs[name].dtype.name for name in ("query", "key", "value")}
    return {"float16", "bfloat16"} <= names


def _slopes(p: Mapping[str, Any], inputs: Arrays) -> bool:
    q, _, _ = _sizes(p, inputs)
    return any(isinstance(r.get("slopes"), int) and r["slopes"] != q.shape[-3] for r in _parts(p["bias"]))


CHECKS: Mapping[str, Any] = {
    "check=layout": lambda p, x: p["layout"] not in ("BHLD", "BLHD"),
    "check=plain": lambda p, x: len({x[n].ndim == 2 for n in ("query", "key", "value")}) > 1,
    "check=integers": lambda p, x: any(x[n].dtype.kind in "biu" for n in ("query", "key", "value")),
    "check=halves": _halves,
    "check=depths": lambda p, x: x["query"].shape[-1] != x["key"].shape[-1],
    "check=groups": _groups,
    "check=value_heads": lambda p, x: _sizes(p, x)[1].shape[-3] != _sizes(p, x)[2].shape[-3],
    "check=lengths": lambda p, x: _sizes(p, x)[1].shape[-2] != _sizes(p, x)[2].shape[-2],
    "check=batches": _batches,
    "check=mask_dtype": lambda p, x: any(table.dtype != bool for table in _tables(p, x, "mask")),
    "check=mask_shape": lambda p, x: any(not _fits(table.shape, _scores(p, x)) for table in _tables(p, x, "mask")),
    "check=bias_dtype": lambda p, x: any(table.dtype.kind in "biu" for table in _tables(p, x, "bias")),
    "check=bias_shape": lambda p, x: any(not _fits(table.shape, _scores(p, x)) for table in _tables(p, x, "bias")),
    "check=softcap": lambda p, x: p["softcap"] is not None and p["softcap"] <= 0,
    "check=bounds": _bounds,
    "check=sinks": lambda p, x: (
        p["sinks"] is not None and (x["sinks"].dtype.kind in "biu" or x["sinks"].shape != (_sizes(p, x)[0].shape[-3],))
    ),
    "check=positions": _positions,
    "check=segments": _segments,
    "check=slopes": _slopes,
    "check=dropout": lambda p, x: p["dropout"] is not None and not 0 <= p["dropout"]["rate"] < 1,
}
