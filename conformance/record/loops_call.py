"""Outputs, gradients and tangents of a case from its rows; see `conformance.record.loops`."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.record.loops import Arrays, Index, Loops, Row, total
from conformance.record.threefry import threshold


def run(op: str, inputs: Arrays, parameters: Any, cotangents: Arrays, wrt: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return all outputs of a case, and its gradients."""
    if op == "merge":
        return merged(inputs)
    if op == "packed":
        from conformance.record import loops_packed

        return loops_packed.run(inputs, parameters, cotangents, wrt)
    if op == "rotary":
        from conformance.record import loops_rotary

        return loops_rotary.run(inputs, parameters, cotangents)
    case = Loops(inputs, parameters)
    return {**outputs(case), **(gradients(case, cotangents, wrt) if wrt else {})}


def run_tangents(op: str, inputs: Arrays, parameters: Any, directions: Arrays) -> dict[str, np.ndarray]:
    """Return the tangents of a case, where it asks for some."""
    return tangents(Loops(inputs, parameters), directions) if directions else {}


def merged(inputs: Arrays) -> dict[str, np.ndarray]:
    """Merge parts, number by number: outputs weighted by exp(lse)."""
    parts = [(inputs[f"outs.{n}"], inputs[f"lses.{n}"]) for n in range(len(inputs) // 2)]
    out, lse = np.zeros(parts[0][0].shape), np.zeros(parts[0][1].shape)
    place: Index
    for place in np.ndindex(lse.shape):
        tops = [float(part[place]) for _, part in parts]
        top = max(tops)
        powers = [0.0 if x == -math.inf else math.exp(x - top) for x in tops]
        norm = total(powers)
        lse[place] = -math.inf if norm == 0.0 else top + math.log(norm)
        for d in range(parts[0][0].shape[-1]):
            terms = [x * float(o[(*place, d)]) for x, (o, _) in zip(powers, parts, strict=True) if x > 0.0]
            out[(*place, d)] = total(terms) / norm if norm else 0.0
    return {"out": out, "lse": lse}


def outputs(case: Loops) -> dict[str, np.ndarray]:
    """Return `out`, `lse`, `weights` and the stages."""
    out = np.zeros((*case.query.shape[:-1], case.value.shape[-1]))
    lse = np.zeros(out.shape[:-1])
    weights = np.zeros((*lse.shape, case.keys))
    for item, head, i in case.rows():
        row = case.row(item, head, i)
        lse[(*item, head, i)] = row.lse
        kept = _kept(case, item, head, i)
        for d in range(out.shape[-1]):
            terms = [
                p * kept[j] * float(_value(case, item, head, j)[d]) for j, p in zip(row.keys, row.weights, strict=True)
            ]
            out[(*item, head, i, d)] = total(terms)
        for j, p in zip(row.keys, row.weights, strict=True):
            weights[(*item, head, i, j)] = p
    finite = all(np.isfinite(x).all() for x in (case.query, case.key))
    found = {"out": case.back(out), "lse": lse, "weights": weights, **(_stages(case) if finite else {})}
    return found if not case.plain else {**found, **{name: found[name][0] for name in found if name != "out"}}


def _stages(case: Loops) -> dict[str, np.ndarray]:
    cap, bias = case.parameters["softcap"], case.parameters["bias"]
    shape = (*case.batch, case.heads, case.queries, case.keys)
    found = {f"stage.{name}": np.zeros(shape) for name in ("scaled", "capped", "biased", "masked")}
    for item, head, i in case.rows():
        for j in range(case.keys):
            place = (*item, head, i, j)
            s = case.parameters["scale"] * case.dot(item, head, i, j)
            found["stage.scaled"][place] = s
            s = s if cap is None else cap * math.tanh(s / cap)
            found["stage.capped"][place] = s
            s = s + case.bias(bias, item, head, i, j)
            found["stage.biased"][place] = s
            found["stage.masked"][place] = s if case.sees(item, head, i, j) else -math.inf
    return found


def gradients(case: Loops, cotangents: Arrays, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return `gradient.NAME`, in closed form."""
    sums = {name: np.zeros(getattr(case, name).shape) for name in ("query", "key", "value")}
    slopes = np.zeros((*case.batch, case.heads, case.queries, case.keys))
    sinks = np.zeros(case.heads)
    dout = case.heads_first(np.asarray(cotangents["out"], np.float64))
    for item, head, i in case.rows():
        row, kept = case.row(item, head, i), _kept(case, item, head, i)
        up = dout[(*item, head, i)].tolist()
        dlse = _lse_cotangent(case, cotangents, item, head, i)
        dp = [kept[j] * total(a * b for a, b in zip(up, _value(case, item, head, j), strict=True)) for j in row.keys]
        delta = total(p * d for p, d in zip(row.weights, dp, strict=True))
        sinks[head] += row.sink * (dlse - delta)
        for n, j in enumerate(row.keys):
            p, pair, shared = row.weights[n], (*item, head, i, j), (*item, head // case.group, j)
            slopes[pair] = p * (dp[n] + dlse - delta)
            slope = slopes[pair] * (1.0 - row.tanh[n] ** 2) * case.parameters["scale"]
            sums["query"][(*item, head, i)] += slope * case.key[shared]
            sums["key"][shared] += slope * case.query[(*item, head, i)]
            sums["value"][shared] += p * kept[j] * np.array(up)
    found = {name: _like(case.back(array), case.inputs[name]) for name, array in sums.items()}
    return {f"gradient.{name}": {**found, **_others(case, slopes, sinks, names)}[name] for name in names}


def tangents(case: Loops, directions: Arrays) -> dict[str, np.ndarray]:
    """Return `tangent.out` and `tangent.lse`."""
    moved = {name: np.zeros(getattr(case, name).shape) for name in ("query", "key", "value")}
    moved |= {
        n: np.broadcast_to(case.heads_first(np.asarray(directions[n], np.float64)), moved[n].shape)
        for n in moved
        if n in directions
    }
    out, lse = np.zeros((*case.query.shape[:-1], case.value.shape[-1])), np.zeros(case.query.shape[:-1])
    for item, head, i in case.rows():
        row, kept = case.row(item, head, i), _kept(case, item, head, i)
        ds = [_moved_score(case, row, n, moved, directions, (item, head, i)) for n in range(len(row.keys))]
        dsink = float(directions["sinks"][head]) if "sinks" in directions else 0.0
        dlse = total([p * s for p, s in zip(row.weights, ds, strict=True)]) + row.sink * dsink
        lse[(*item, head, i)] = dlse
        for n, j in enumerate(row.keys):
            p, shared = row.weights[n] * kept[j], (*item, head // case.group, j)
            out[(*item, head, i)] += p * (ds[n] - dlse) * case.value[shared] + p * moved["value"][shared]
    return {"tangent.out": case.back(out), "tangent.lse": lse[0] if case.plain else lse}


def _moved_score(case: Loops, row: Row, n: int, moved: Arrays, directions: Arrays, at: tuple[Index, int, int]) -> float:
    item, head, i = at
    j = row.keys[n]
    change = case.dot(item, head, i, j, query=moved["query"]) + case.dot(item, head, i, j, key=moved["key"])
    added = (
        np.broadcast_to(directions["bias"], (*case.batch, case.heads, case.queries, case.keys))
        if "bias" in directions
        else None
    )
    more = 0.0 if added is None else float(added[(*item, head, i, j)])
    return float(case.parameters["scale"] * change * (1.0 - row.tanh[n] ** 2) + more)


def _value(case: Loops, item: Index, head: int, j: int) -> list[float]:
    row: list[float] = case.value[(*item, head // case.group, j)].tolist()
    return row


def _kept(case: Loops, item: Index, head: int, i: int) -> list[float]:
    dropout = case.parameters["dropout"]
    if dropout is None:
        return [1.0] * case.keys
    seeded = "seed" in dropout
    rate = threshold(dropout["rate"]) / 65536 if seeded else dropout["rate"]
    # Of a seeded case the table is that of `conformance.record.threefry`.
    return [float(case.tables[dropout["keep"]][(*item, head, i, j)]) / (1.0 - rate) for j in range(case.keys)]


def _lse_cotangent(case: Loops, cotangents: Arrays, item: Index, head: int, i: int) -> float:
    if "lse" not in cotangents:
        return 0.0
    return float(cotangents["lse"][i] if case.plain else cotangents["lse"][(*item, head, i)])


def _others(case: Loops, slopes: np.ndarray, sinks: np.ndarray, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The gradients of bias, slopes, table and sinks, each by walking over all pairs."""
    found = {name: np.zeros(case.inputs[name].shape) for name in names if name in ("slopes", "bias_table")}
    for item, head, i in case.rows():
        for j in range(case.keys):
            distance = case.place("key", item, j) - case.place("query", item, i)
            if "slopes" in found:
                found["slopes"][head] -= abs(distance) * slopes[(*item, head, i, j)]
            if "bias_table" in found:
                bucket = case.bucket(_relative(case.parameters["bias"]), distance)
                found["bias_table"][bucket, head] += slopes[(*item, head, i, j)]
    dense = {name: _like(slopes, case.inputs[name]) for name in names if name == "bias"}
    return {**found, **dense, "sinks": sinks}


def _relative(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(part for part in rule.get("of", [rule]) if part["rule"] == "relative")


def _like(array: np.ndarray, argument: np.ndarray) -> np.ndarray:
    """Sum over the axes along which an argument was repeated."""
    array = array.sum(axis=tuple(range(array.ndim - argument.ndim)))
    axes = tuple(n for n, size in enumerate(argument.shape) if size == 1 and array.shape[n] != 1)
    return array.sum(axis=axes, keepdims=True) if axes else array
