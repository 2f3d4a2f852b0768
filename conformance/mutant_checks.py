"""What the mutants refuse, each check left out by one of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.cases import Case
from conformance.mutant_refusals import OTHERS

Arrays = Mapping[str, np.ndarray]


def refuse(case: Case, inputs: Arrays, w: str) -> None:
    """Raise for a wrong call, unless `w` is the mutant that does not look."""
    for name, check in OF_OPS[case.op].items():
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


def _below(least: int, *names: str) -> Any:
    def check(p: Mapping[str, Any], inputs: Arrays) -> bool:
        numbers = [rule[name] for rule in _parts(p["mask"]) for name in names if rule.get(name) is not None]
        return any(number < least for number in numbers)

    return check


def _positions(p: Mapping[str, Any], inputs: Arrays) -> bool:
    q, k, _ = _sizes(p, inputs)
    given = ((p["query_positions"], q.shape[-2]), (p["key_positions"], k.shape[-2]))
    return any(isinstance(n, list) and np.asarray(n).shape[-1] != size for n, size in given)


def _positions_twice(p: Mapping[str, Any], inputs: Arrays) -> bool:
    moved = any(rule["rule"] == "causal_lower_right" for rule in _parts(p["mask"]))
    return moved and any(p[name] != 0 for name in ("query_positions", "key_positions"))


def _not_integers(given: Any) -> bool:
    return given is not None and not isinstance(given, str) and np.asarray(given).dtype.kind not in "iu"


def _kinds(p: Mapping[str, Any], inputs: Arrays) -> bool:
    rules = [r.get(name) for r in _parts(p["mask"]) for name in ("lengths", "length", "query_ids", "key_ids")]
    return any(_not_integers(given) for given in (*rules, p["query_positions"], p["key_positions"]))


def _misfit(p: Mapping[str, Any], inputs: Arrays, given: Any, own: int = 0) -> bool:
    shape = np.asarray(given).shape
    if isinstance(given, str) or not shape:
        return False
    return not _fits(shape[: len(shape) - own], _scores(p, inputs)[:-3])


def _items(p: Mapping[str, Any], inputs: Arrays) -> bool:
    given = [rule[name] for rule in _parts(p["mask"]) for name in ("lengths", "length") if name in rule]
    return any(_misfit(p, inputs, each) for each in given)


def _position_items(p: Mapping[str, Any], inputs: Arrays) -> bool:
    return any(_misfit(p, inputs, p[name], own=1) for name in ("query_positions", "key_positions"))


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
    given = [r["slopes"] for r in _parts(p["bias"]) if isinstance(r.get("slopes"), int | list)]
    return any((len(slopes) if isinstance(slopes, list) else slopes) != q.shape[-3] for slopes in given)


def _table(p: Mapping[str, Any], inputs: Arrays) -> bool:
    q, _, _ = _sizes(p, inputs)
    for rule in _parts(p["bias"]):
        if rule["rule"] == "relative":
            buckets, heads = inputs[rule["table"]].shape
            ways = 2 if rule["bidirectional"] else 1
            if heads != q.shape[-3] or buckets % ways or rule["max_distance"] <= buckets // (2 * ways):
                return True
    return False


def _keep(p: Mapping[str, Any], inputs: Arrays) -> np.ndarray | None:
    dropped = p["dropout"]
    return None if dropped is None or "seed" in dropped else inputs[dropped["keep"]]


def _keep_kind(p: Mapping[str, Any], inputs: Arrays) -> bool:
    keep = _keep(p, inputs)
    return keep is not None and keep.dtype != bool


def _keep_shape(p: Mapping[str, Any], inputs: Arrays) -> bool:
    keep = _keep(p, inputs)
    return keep is not None and not _fits(keep.shape, _scores(p, inputs))


def _seed(p: Mapping[str, Any], inputs: Arrays) -> bool:
    seed = (p["dropout"] or {}).get("seed", 0)
    negative = isinstance(seed, int) and seed < 0
    return negative or _not_integers(seed) or _misfit(p, inputs, seed)


def _seed_rate(p: Mapping[str, Any], inputs: Arrays) -> bool:
    dropped = p["dropout"] or {}
    return "seed" in dropped and dropped["rate"] < 1 and round(65536 * dropped["rate"]) == 65536


def _origin(p: Mapping[str, Any], inputs: Arrays) -> bool:
    origin = (p["dropout"] or {}).get("origin", [0] * 4)
    return len(origin) != 4 or min(origin) < 0


CHECKS: Mapping[str, Any] = {
    "check=layout": lambda p, x: p["layout"] not in ("BHLD", "BLHD"),
    "check=plain": lambda p, x: len({x[n].ndim == 2 for n in ("query", "key", "value")}) > 1,
    "check=integers": lambda p, x: any(x[n].dtype.kind in "iu" for n in ("query", "key", "value")),
    "check=booleans": lambda p, x: any(x[n].dtype == bool for n in ("query", "key", "value")),
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
    "check=window": _below(0, "left", "right"),
    "check=global": _below(0, "count"),
    "check=chunks": _below(1, "size", "step"),
    "check=sinks": lambda p, x: (
        p["sinks"] is not None and (x["sinks"].dtype.kind in "biu" or x["sinks"].shape != (_sizes(p, x)[0].shape[-3],))
    ),
    "check=kinds": _kinds,
    "check=items": _items,
    "check=positions": _positions,
    "check=position_items": _position_items,
    "check=positions_twice": _positions_twice,
    "check=segments": _segments,
    "check=slopes": _slopes,
    "check=table": _table,
    "check=dropout": lambda p, x: p["dropout"] is not None and not 0 <= p["dropout"]["rate"] < 1,
    "check=keep_kind": _keep_kind,
    "check=keep_shape": _keep_shape,
    "check=seed": _seed,
    "check=seed_rate": _seed_rate,
    "check=origin": _origin,
}
OF_OPS = {"attention": CHECKS, **OTHERS}
NAMES = tuple(name for checks in OF_OPS.values() for name in checks)
