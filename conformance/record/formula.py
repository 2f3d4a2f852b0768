"""Attention in PyTorch, written out: scores, cap, bias, mask, softmax with sinks, dropout, in this order.

16-bit inputs are taken to float32 first and `out` is rounded once, as the conventions say. `switch` names one wrong
convention that cannot be said by another call; `conformance.record.departures` explains them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conformance.record.kept import kept
from conformance.record.visible import Places, places, visible

Tensor = Any
Tensors = Mapping[str, Tensor]
Parameters = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores after each stage, the visible pairs (None: all) and the sinks `(Hq, 1)` (None: none)."""

    scaled: Tensor
    capped: Tensor
    biased: Tensor
    masked: Tensor
    seen: Tensor | None
    sink: Tensor | None


def attention(inputs: Tensors, parameters: Parameters, switch: str = "") -> dict[str, Tensor]:
    """Return `out`, `lse`, `weights` and the stages of one case."""
    import torch

    kind = inputs["query"].dtype
    for name in ("key", "value"):
        kind = torch.promote_types(kind, inputs[name].dtype)
    given = _in_compute_dtype(inputs, torch.promote_types(kind, torch.float32), switch)
    query, key, value = _heads(given, parameters, switch)
    at = places(given, parameters, query.shape[-2], key.shape[-2])
    s = _scores(query, key, at, given, parameters, switch)
    lse, p = _softmax(s, key.shape[-2], switch)
    kept = _dropped(p, given, parameters, switch)
    out = kept @ value if switch == "masked=value_leaks" else _weighted(kept, value, s.seen)
    if parameters["layout"] == "BLHD" and query.ndim > 2:
        out = out.movedim(-3, -2)
    stages = {"scaled": s.scaled}
    stages |= {"capped": s.capped} if parameters["softcap"] is not None else {}
    stages |= {"biased": s.biased} if parameters["bias"] is not None else {}
    stages |= {"masked": s.masked} if s.seen is not None else {}
    found = {f"stage.{name}": tensor for name, tensor in stages.items()}
    weights = kept if switch == "weights=after_dropout" else p
    return {"out": out.to(kind), "lse": lse, "weights": weights, **found}


def _in_compute_dtype(inputs: Tensors, kind: Any, switch: str) -> dict[str, Tensor]:
    import torch

    kind = torch.float32 if switch == "dtype=float32" else kind
    real = {name: tensor for name, tensor in inputs.items() if tensor.is_floating_point()}
    return {**inputs, **{name: tensor.to(kind) for name, tensor in real.items()}}


def _heads(given: Tensors, parameters: Parameters, switch: str) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with heads before lengths, key and value repeated for the query heads that share them."""
    import torch

    query, key, value = given["query"], given["key"], given["value"]
    if query.ndim == 2:
        return query, key, value
    if parameters["layout"] == "BLHD":
        query, key, value = (x.movedim(-2, -3) for x in (query, key, value))
    group = query.shape[-3] // key.shape[-3] if key.shape[-3] else 1
    if group == 1:
        return query, key, value
    if switch != "gradient=first_of_group":
        return query, key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
    first = torch.arange(query.shape[-3]) % group == 0
    return query, *(
        torch.where(first[:, None, None], x.repeat_interleave(group, -3), x.detach().repeat_interleave(group, -3))
        for x in (key, value)
    )


def _scores(query: Tensor, key: Tensor, at: Places, given: Tensors, parameters: Parameters, switch: str) -> Scores:
    import torch

    bias = bias_values(parameters["bias"], given, at, query.dtype)
    seen = None if parameters["mask"] is None else visible(parameters["mask"], at)
    if parameters["bias"] is not None and bool(torch.isneginf(bias).any()) and switch != "bias=inf_is_finite":
        seen = bias != -torch.inf if seen is None else seen & (bias != -torch.inf)
        bias = bias.masked_fill(torch.isneginf(bias), 0.0)
    if switch == "bias=inf_is_finite":
        bias = bias.masked_fill(torch.isneginf(bias), 0.0)
    raw = _products(query, key, seen, switch)
    if switch == "cap=before_scale":
        raw, switch = _capped(raw, parameters["softcap"], switch), "cap=none"
    scaled = _scaled(raw, parameters["scale"], query.shape[-1])
    if switch == "gradient=scale_forgotten":
        scaled = raw + (scaled - raw).detach()
    capped = scaled if parameters["softcap"] is None else _capped(scaled, parameters["softcap"], switch)
    biased = capped + bias if parameters["bias"] is not None else capped
    if switch == "cap=after_bias":
        biased = _capped(scaled + bias, parameters["softcap"], "")
    masked = _masked(biased, seen, switch, parameters)
    sink = given[parameters["sinks"]][:, None] if parameters["sinks"] is not None else None
    return Scores(scaled, capped, biased, masked, seen, _sink(sink, parameters, switch))


def _products(query: Tensor, key: Tensor, seen: Tensor | None, switch: str) -> Tensor:
    """`query @ key^T`; of pairs that do not see each other nothing is read, where they may hold NaN."""
    import torch

    if switch == "dtype=scores_in_float16":
        return (query @ key.mT).half().to(query.dtype)
    if seen is None or switch == "masked=key_leaks" or bool(torch.isfinite(query).all() and torch.isfinite(key).all()):
        return query @ key.mT
    pair = seen[..., None]
    rows = torch.where(pair, query[..., :, None, :], torch.zeros((), dtype=query.dtype))
    columns = torch.where(pair, key[..., None, :, :], torch.zeros((), dtype=key.dtype))
    return (rows * columns).sum(-1)


def _scaled(scores: Tensor, scale: float, depth: int) -> Tensor:
    # The article divides by sqrt(D); a product with 1 / sqrt(D) rounds differently.
    return scores / depth**0.5 if depth and scale == depth**-0.5 else scores * scale


def _capped(s: Tensor, cap: float, switch: str) -> Tensor:
    if switch in ("cap=none", "cap=after_bias", "cap=after_mask"):
        return s
    if switch == "cap=softsign":
        return s / (1 + s.abs() / cap)
    if switch == "cap=not_multiplied":
        return (s / cap).tanh()
    if switch == "cap=clipped":
        return s.clip(-cap, cap)
    capped = cap * (s / cap).tanh()
    return s + (capped - s).detach() if switch == "gradient=cap_forgotten" else capped


def _masked(s: Tensor, seen: Tensor | None, switch: str, parameters: Parameters) -> Tensor:
    import torch

    if seen is None:
        return s if switch != "cap=after_mask" else _capped(s, parameters["softcap"], "")
    if switch == "cap=after_mask":
        return _capped(s.masked_fill(~seen, -torch.inf), parameters["softcap"], "")
    if switch == "masked=key_leaks":
        return s + torch.zeros((), dtype=s.dtype).masked_fill(~seen, -torch.inf)
    if switch == "masked=zero_fill":
        return s.masked_fill(~seen, 0.0)
    if switch == "masked=minus_100":
        return s.masked_fill(~seen, -100.0)
    if switch == "masked=without_renormalising":
        return s
    return s.masked_fill(~seen, -torch.inf)


def _sink(sink: Tensor | None, parameters: Parameters, switch: str) -> Tensor | None:
    if sink is None:
        return None
    if switch == "sink=scaled":
        return parameters["scale"] * sink
    if switch == "sink=capped":
        return parameters["softcap"] * (sink / parameters["softcap"]).tanh()
    return sink.detach() if switch == "gradient=sink_forgotten" else sink


def _softmax(s: Scores, keys: int, switch: str) -> tuple[Tensor, Tensor]:
    """Return lse and weights; a row that sees nothing has -inf (or its sink) and 0."""
    import torch

    if switch in ODD_SOFTMAX:
        return torch.logsumexp(s.masked, -1), ODD_SOFTMAX[switch](s.masked.nan_to_num(neginf=0.0), s.seen)
    if s.sink is None:
        lse, p = torch.logsumexp(s.masked, -1), torch.softmax(s.masked, -1)
    else:
        joined = torch.cat([s.masked, s.sink[..., None].expand(*s.masked.shape[:-1], 1)], -1)
        lse, p = torch.logsumexp(joined, -1), _with_sink(joined, s, switch)
    lse, p = _empty(lse, p, s, keys, switch)
    if switch == "masked=without_renormalising" and s.seen is not None:
        p = p * s.seen
    if switch == "gradient=row_term_forgotten":
        p = (s.masked - lse.detach()[..., None]).exp()
        p = p.masked_fill(~s.seen, 0.0) if s.seen is not None else p
    return _other_lse(lse, s, switch), p


def _with_sink(joined: Tensor, s: Scores, switch: str) -> Tensor:
    import torch

    if switch == "sink=one_after_shift":
        top = s.masked.amax(-1, keepdim=True)
        powers = (s.masked - top).exp()
        return powers / (1 + powers.sum(-1, keepdim=True))
    if switch == "sink=gate" and s.sink is not None:
        return torch.softmax(s.masked, -1) * torch.sigmoid(s.sink)[..., None]
    if switch == "sink=lse_only":
        return torch.softmax(s.masked, -1)
    return torch.softmax(joined, -1)[..., :-1]


def _empty(lse: Tensor, p: Tensor, s: Scores, keys: int, switch: str) -> tuple[Tensor, Tensor]:
    import torch

    if s.seen is None or switch.startswith(("masked=zero", "masked=minus", "masked=without", "cap=after_mask")):
        return lse, p
    dead = ~s.seen.expand(s.masked.shape).any(-1, keepdim=True)
    if s.sink is not None or not bool(dead.any()):
        p = p.masked_fill(~s.seen, 0.0)
        return lse, p.masked_fill(dead, 1.0 / max(keys, 1)) if switch == "empty=mean_of_value" else p
    safe = torch.softmax(s.masked.masked_fill(dead, 0.0), -1)
    fill = {"empty=mean_of_value": 1.0 / max(keys, 1), "empty=nan": math.nan, "empty=sum_of_value": 1.0}.get(
        switch, 0.0
    )
    # A visible NaN or infinity spoils its row, and no masked pair of it.
    p = torch.where(s.seen, safe, torch.zeros((), dtype=safe.dtype)).masked_fill(dead, fill)
    finite = torch.logsumexp(s.masked.masked_fill(dead, 0.0), -1)
    no_key = {"lse=empty_is_plus_inf": math.inf, "lse=empty_is_zero": 0.0}.get(switch, -math.inf)
    return finite.masked_fill(dead[..., 0], no_key), p


def _other_lse(lse: Tensor, s: Scores, switch: str) -> Tensor:
    import torch

    if switch == "lse=base_2":
        return lse / math.log(2.0)
    if switch == "lse=maximum_forgotten":
        return lse - s.masked.amax(-1).nan_to_num(neginf=0.0)
    if switch == "lse=of_scaled_scores":
        return torch.logsumexp(s.scaled, -1)
    if switch == "lse=without_sink":
        return torch.logsumexp(s.masked, -1)
    return lse.detach() if switch == "gradient=lse_stopped" else lse


def _over_queries(s: Tensor, seen: Tensor | None) -> Tensor:
    import torch

    return torch.softmax(s if seen is None else s.masked_fill(~seen, -torch.inf), -2).nan_to_num(0.0)


def _over_heads(s: Tensor, seen: Tensor | None) -> Tensor:
    import torch

    return torch.softmax(s if seen is None else s.masked_fill(~seen, -torch.inf), -3).nan_to_num(0.0)


ODD_SOFTMAX: dict[str, Any] = {
    "softmax=over_queries": _over_queries,
    "softmax=over_heads": _over_heads,
    "softmax=none": lambda s, seen: s if seen is None else s * seen,
    "softmax=sigmoid": lambda s, seen: s.sigmoid() if seen is None else s.sigmoid() * seen,
}


def _dropped(p: Tensor, given: Tensors, parameters: Parameters, switch: str) -> Tensor:
    if parameters["dropout"] is None:
        return p
    rule = parameters["dropout"]
    keep, rate = given[rule["keep"]], rule["rate"]
    if "seed" in rule:
        # A drawn rate is what 16 bits can say.
        keep, rate = kept(rule, tuple(p.shape)), round(65536 * rate) / 65536
    if switch == "dropout=inverted":
        keep = ~keep
    if switch == "dropout=renormalised":
        return (p * keep) / (p * keep).sum(-1, keepdim=True).clip(1e-300)
    return p * keep / (1.0 if switch == "dropout=not_divided" else 1.0 - rate)


def _weighted(p: Tensor, value: Tensor, seen: Tensor | None) -> Tensor:
    import torch

    if seen is None or bool(torch.isfinite(value).all()):
        return p @ value
    each = torch.where(seen[..., None], value[..., None, :, :], torch.zeros((), dtype=value.dtype))
    return (p[..., None] * each).sum(-2)


def bias_values(rule: Any, given: Tensors, at: Places, kind: Any) -> Tensor:
    """Return the bias of a case, which broadcasts to (..., H, Lq, Lk)."""
    import torch

    if rule is None:
        return torch.zeros((), dtype=kind)
    if rule["rule"] == "sum":
        return sum(bias_values(part, given, at, kind) for part in rule["of"])
    if rule["rule"] == "dense":
        return given[rule.get("input", "bias")].to(kind)
    query, key = at.of(rule)
    if rule["rule"] == "alibi":
        slopes = alibi_slopes(rule["slopes"]) if isinstance(rule["slopes"], int) else rule["slopes"]
        slopes = given[slopes] if isinstance(slopes, str) else torch.tensor(slopes, dtype=torch.float64)
        distance = query - key if rule.get("signed") else (query - key).abs()
        return -slopes.to(kind)[:, None, None] * distance.to(kind)
    distance = query - key if rule.get("swapped") else key - query
    return _by_bucket(given[rule["table"]].to(kind), distance, rule)


def alibi_slopes(heads: int) -> list[float]:
    """Return the ALiBi paper's slopes: of the next lower power of two, then every other one of the next higher."""
    power = 1 << (heads.bit_length() - 1)
    return [2 ** (-8 * h / power) for h in range(1, power + 1)] + [
        2 ** (-4 * h / power) for h in range(1, 2 * (heads - power), 2)
    ]


def _by_bucket(table: Tensor, distance: Tensor, rule: Mapping[str, Any]) -> Tensor:
    """T5's bias, as its authors write the buckets."""
    import torch

    side, first, far = table.shape[0], torch.zeros_like(distance), -distance.clip(max=0)
    if rule["bidirectional"]:
        side = side // 2
        first, far = (distance > 0) * side, distance.abs()
    exact = side // 2
    steps = (far.double().clip(min=1) / exact).log() / math.log(rule["max_distance"] / exact) * (side - exact)
    # The logarithm of an exact power is off by the last bit, either way.
    large = (exact + (steps + 1e-9).floor().long()).clip(max=side - 1)
    bucket = first + torch.where(far < exact, far, large)
    return table[bucket].movedim(-1, -3) if bucket.ndim == 2 else table[bucket[..., 0, :, :]].movedim(-1, -3)
