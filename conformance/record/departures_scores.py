"""Departures in heads, scale, cap, bias, sinks, softmax, lse, dropout, dtypes, gradients."""

from typing import Any

from conformance.cases import in_memory, laid_out
from conformance.record.departures import Call, Rule, departure, switch
from conformance.record.formula import alibi_slopes


def _asks(name: str) -> Any:
    return lambda c: c.parameters[name] is not None


def _heads(c: Call, order: Any) -> Call | None:
    """Read key and value heads in another order, given for each query head."""
    import torch

    heads, shared = c.axis("Hq"), c.axis("Hkv")
    if c["query"].ndim == 2 or heads == shared or not shared:
        return None
    axis = -2 if c.parameters["layout"] == "BLHD" else -3
    picked = torch.tensor([order(h, heads, shared) for h in range(heads)])
    return c.tensor(key=c["key"].index_select(axis, picked), value=c["value"].index_select(axis, picked))


def _flipped(c: Call, name: str) -> Call | None:
    if c["query"].ndim == 2 or c.axis("Hkv") < 2:
        return None
    return c.tensor(**{name: c[name].flip(-2 if c.parameters["layout"] == "BLHD" else -3)})


def _scale(c: Call, scale: float) -> Call | None:
    return None if scale == c.parameters["scale"] else c.given(scale=scale)


def _bias(c: Call, change: Any) -> Call | None:
    return (
        c.tensor(bias=change(c["bias"]))
        if "bias" in c.inputs and (c.parameters["bias"] or {}).get("rule") == "dense"
        else None
    )


def _mean_of_value(c: Call) -> Call:
    call = c.given(scale=1.0, mask=None, bias=None, sinks=None, dropout=None)
    return call.tensor(query=0.0 * c["query"].nan_to_num(), key=0.0 * c["key"].nan_to_num())


def _slopes(c: Call, change: Any) -> Call | None:
    def other(rule: Rule) -> Rule:
        given = rule["slopes"]
        if isinstance(given, str):
            return rule
        return {**rule, "slopes": change(alibi_slopes(given) if isinstance(given, int) else given)}

    return c.biases("alibi", other)


def _one_ratio(rule: Rule) -> Rule:
    heads = rule["slopes"]
    return (
        {**rule, "slopes": [2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)]} if isinstance(heads, int) else rule
    )


def _as_it_lies(c: Call) -> Call | None:
    import numpy as np
    import torch

    def read(name: str) -> Any:
        view = laid_out(c[name].numpy(), c.memory[name])
        return torch.from_numpy(np.array(in_memory(view)))

    return c.tensor(**{name: read(name) for name in c.memory}) if c.memory else None


def _swapped(c: Call) -> Call | None:
    same = c.axis("Lq") == c.axis("Lk") and c.axis("Hq") == c.axis("Hkv") and c["query"].shape == c["key"].shape
    return c.tensor(query=c["key"], key=c["query"]) if same else None


def enter() -> None:
    """Enter all of them."""
    _of_heads()
    _of_scale_and_cap()
    _of_bias()
    _of_sinks()
    _of_softmax()
    _of_gradients()


def _of_heads() -> None:
    departure(
        "heads=tiled",
        "Key and value heads are tiled (0 1 0 1), not repeated (0 0 1 1).",
        lambda c: _heads(c, lambda h, heads, shared: h % shared),
    )
    departure(
        "heads=first",
        "All query heads read the first key and value head.",
        lambda c: _heads(c, lambda h, heads, shared: 0),
    )
    departure("heads=value_reversed", "The heads of value are read in reverse.", lambda c: _flipped(c, "value"))
    departure("heads=key_reversed", "The heads of key are read in reverse.", lambda c: _flipped(c, "key"))
    departure("roles=query_key_swapped", "Query and key have exchanged roles.", _swapped)
    departure(
        "batch=first_item",
        "All batch items take the key of the first.",
        lambda c: (
            c.tensor(key=c["key"][:1].expand(c["key"].shape)) if c["key"].ndim > 3 and c["key"].shape[0] > 1 else None
        ),
    )


def _of_scale_and_cap() -> None:
    departure("scale=1", "The scores are not scaled.", lambda c: _scale(c, 1.0))
    departure(
        "scale=1/D",
        "The scores are divided by D, or twice by sqrt(D).",
        lambda c: _scale(c, 1.0 / c.axis("D")) if c.axis("D") else None,
    )
    departure(
        "scale=default",
        "The given scale is ignored.",
        lambda c: _scale(c, c.axis("D") ** -0.5) if c.axis("D") else None,
    )
    departure(
        "scale=by_value_depth",
        "The scale is 1/sqrt(Dv), not 1/sqrt(D).",
        lambda c: (
            _scale(c, c.axis("Dv") ** -0.5)
            if c.axis("D") and c.parameters["scale"] == c.axis("D") ** -0.5 and c.axis("Dv")
            else None
        ),
    )
    departure(
        "scale=by_all_heads",
        "The scores are divided by sqrt(H D), the model's width.",
        lambda c: _scale(c, (c.axis("D") * c.axis("Hq")) ** -0.5) if c.axis("D") and c.axis("Hq") > 1 else None,
    )
    departure("scale=absolute", "The sign of the scale is lost.", lambda c: _scale(c, abs(c.parameters["scale"])))
    departure(
        "scale=squared",
        "Query and key are both multiplied by the scale.",
        lambda c: _scale(c, c.parameters["scale"] ** 2),
    )
    departure(
        "cap=none", "The soft cap is ignored.", lambda c: c.given(softcap=None) if c.parameters["softcap"] else None
    )
    switch(
        "cap=after_bias",
        "The soft cap comes after the bias.",
        lambda c: c.parameters["softcap"] and c.parameters["bias"],
    )
    switch(
        "cap=after_mask",
        "The soft cap comes after the mask: masked pairs come back as -softcap.",
        lambda c: c.parameters["softcap"] and c.parameters["mask"],
    )
    switch("cap=before_scale", "The soft cap comes before the scale.", _asks("softcap"))
    switch("cap=softsign", "The soft cap is s / (1 + |s| / cap), not a tanh.", _asks("softcap"))
    switch("cap=not_multiplied", "tanh(s / cap) is not multiplied by the cap.", _asks("softcap"))
    switch("cap=clipped", "The scores are clipped at the cap.", _asks("softcap"))


def _of_bias() -> None:
    departure("bias=none", "The bias is ignored.", lambda c: c.given(bias=None) if c.parameters["bias"] else None)
    departure(
        "bias=scaled", "The bias is multiplied by the scale.", lambda c: _bias(c, lambda b: b * c.parameters["scale"])
    )
    departure("bias=subtracted", "The bias is subtracted.", lambda c: _bias(c, lambda b: -b))
    departure(
        "bias=first_head",
        "All heads take the bias of the first.",
        lambda c: _bias(c, lambda b: b[..., :1, :, :]) if "bias" in c.inputs and c["bias"].ndim > 2 else None,
    )
    departure(
        "bias=first_item",
        "All batch items take the bias of the first.",
        lambda c: _bias(c, lambda b: b[:1]) if "bias" in c.inputs and c["bias"].ndim > 3 else None,
    )
    departure(
        "bias=transposed",
        "The bias's axes are (key, query).",
        lambda c: (
            _bias(c, lambda b: b.mT)
            if c.axis("Lq") == c.axis("Lk") and "bias" in c.inputs and c["bias"].ndim > 1
            else None
        ),
    )
    departure(
        "bias=zero_is_masked",
        "The bias is taken for a mask: a pair with 0 is masked.",
        lambda c: _bias(c, lambda b: b.masked_fill(b == 0, float("-inf"))),
    )
    switch("bias=inf_is_finite", "A bias of -inf does not mask its pair.", _asks("bias"))
    departure(
        "bias=large_is_masked",
        "A very negative bias is taken for a mask.",
        lambda c: _bias(c, lambda b: b.masked_fill(b < -1000.0, float("-inf"))),
    )
    departure(
        "alibi=rewarded",
        "Distance is rewarded: the slope's sign is wrong.",
        lambda c: _slopes(c, lambda x: [-s for s in x]),
    )
    departure(
        "alibi=signed",
        "The distance keeps its sign: keys after the query are rewarded.",
        lambda c: c.biases("alibi", lambda rule: {**rule, "signed": True}),
    )
    departure(
        "alibi=one_ratio",
        "The slopes are one geometric series for every number of heads.",
        lambda c: c.biases("alibi", _one_ratio),
    )
    departure(
        "alibi=reversed_heads", "The slopes belong to the heads in reverse.", lambda c: _slopes(c, lambda x: x[::-1])
    )
    departure(
        "alibi=scaled",
        "The bias is multiplied by the scale.",
        lambda c: _slopes(c, lambda x: [c.parameters["scale"] * s for s in x]),
    )
    departure(
        "alibi=by_index",
        "The distance is that of indices, not of positions.",
        lambda c: (
            c.biases("alibi", lambda rule: {**rule, "by": "index"})
            if c.parameters["query_positions"] != 0 or c.parameters["key_positions"] != 0
            else None
        ),
    )
    departure(
        "relative=query_minus_key",
        "The distance is query minus key.",
        lambda c: c.biases("relative", lambda rule: {**rule, "swapped": True}),
    )
    departure(
        "relative=other_direction",
        "The buckets are those of the other kind: decoder's for encoder's.",
        lambda c: c.biases("relative", lambda rule: {**rule, "bidirectional": not rule["bidirectional"]}),
    )
    departure(
        "relative=by_index",
        "The distance is that of indices, not of positions.",
        lambda c: (
            c.biases("relative", lambda rule: {**rule, "by": "index"})
            if c.parameters["query_positions"] != 0 or c.parameters["key_positions"] != 0
            else None
        ),
    )
    departure(
        "relative=larger_distance",
        "The farthest distance is taken twice as large.",
        lambda c: c.biases("relative", lambda rule: {**rule, "max_distance": 2 * rule["max_distance"]}),
    )
    departure(
        "relative=heads_reversed",
        "The table's columns belong to the heads in reverse.",
        lambda c: c.tensor(bias_table=c["bias_table"].flip(-1)) if "bias_table" in c.inputs else None,
    )


def _of_sinks() -> None:
    departure("sink=none", "The sink is ignored.", lambda c: c.given(sinks=None) if c.parameters["sinks"] else None)
    departure(
        "sink=reversed_heads",
        "The sinks belong to the heads in reverse.",
        lambda c: c.tensor(sinks=c["sinks"].flip(0)) if c.parameters["sinks"] and c.axis("Hq") > 1 else None,
    )
    switch("sink=scaled", "The sink is multiplied by the scale.", _asks("sinks"))
    switch("sink=capped", "The sink is capped.", lambda c: c.parameters["sinks"] and c.parameters["softcap"])
    switch(
        "sink=one_after_shift",
        "The sink counts 1 after the row's maximum was subtracted.",
        lambda c: c.parameters["sinks"] and c.axis("Lk"),
    )
    switch("sink=gate", "The output is multiplied by the sigmoid of the sink.", _asks("sinks"))
    switch("sink=lse_only", "The sink enters lse, and not the weights.", _asks("sinks"))
    switch("lse=without_sink", "The lse lacks the sink.", _asks("sinks"))


def _of_softmax() -> None:
    departure(
        "softmax=base_2",
        "2 to the score is taken in place of e to the score.",
        lambda c: (
            _scale(c, c.parameters["scale"] * 0.6931471805599453)
            if not c.parameters["bias"] and not c.parameters["sinks"] and not c.parameters["softcap"]
            else None
        ),
    )
    switch("softmax=over_queries", "The softmax runs over the queries.", lambda c: c.axis("Lq") > 1)
    switch("softmax=over_heads", "The softmax runs over the heads.", lambda c: c.axis("Hq") > 1)
    switch("softmax=none", "The scores themselves weigh the values.", lambda c: c.axis("Lk"))
    switch("softmax=sigmoid", "A sigmoid of each score, no sum to one.", lambda c: c.axis("Lk"))
    departure(
        "out=mean_of_v",
        "Every row is the mean of all values.",
        _mean_of_value,
    )
    switch("lse=base_2", "The lse is a base-2 logarithm.", lambda c: c.axis("Lk"))
    switch(
        "lse=maximum_forgotten",
        "The row's maximum was subtracted from lse and not added again.",
        lambda c: c.axis("Lk") and not c.parameters["sinks"],
    )
    switch(
        "lse=of_scaled_scores",
        "The lse lacks cap, bias, mask and sink.",
        lambda c: c.axis("Lk") and any(c.parameters[n] for n in ("mask", "bias", "softcap", "sinks")),
    )
    switch("lse=empty_is_plus_inf", "A row that sees nothing has lse = +inf.", _asks("mask"))
    switch("lse=empty_is_zero", "A row that sees nothing has lse = 0.", _asks("mask"))
    departure(
        "dropout=ignored",
        "The dropout is ignored.",
        lambda c: c.given(dropout=None) if c.parameters["dropout"] else None,
    )
    switch("dropout=not_divided", "Kept weights are not divided by 1 - rate.", _asks("dropout"))
    switch("dropout=inverted", "True in the keep mask drops.", _asks("dropout"))
    switch("dropout=renormalised", "Kept weights are made to sum to one again.", _asks("dropout"))
    switch("weights=after_dropout", "The returned weights are those after dropout.", _asks("dropout"))
    departure("memory=ignored", "Strides are ignored: the numbers are read as they lie in memory.", _as_it_lies)
    switch("dtype=scores_in_float16", "The scores are computed in float16 and overflow.", lambda c: True)
    switch("dtype=float32", "Everything is computed in float32.", lambda c: True)
    switch(
        "masked=value_leaks",
        "A weight of 0 multiplies what stands in a masked value: NaN.",
        lambda c: c.parameters["mask"] or c.parameters["bias"],
    )
    switch("masked=key_leaks", "The mask is added as -inf: NaN or inf in a masked key stays NaN.", _asks("mask"))


def _of_gradients() -> None:
    switch(
        "gradient=scale_forgotten",
        "The gradients of query and key lack the scale.",
        lambda c: c.parameters["scale"] != 1.0,
    )
    switch(
        "gradient=row_term_forgotten",
        "The softmax's gradient lacks the term that its row sums to one.",
        lambda c: not c.parameters["sinks"],
    )
    switch("gradient=lse_stopped", "No gradient goes through lse.", lambda c: True)
    switch("gradient=cap_forgotten", "The gradient lacks the soft cap's factor 1 - tanh^2.", _asks("softcap"))
    switch("gradient=sink_forgotten", "The sink has no gradient.", _asks("sinks"))
    switch(
        "gradient=first_of_group",
        "Key and value get the gradient of the group's first query head only.",
        lambda c: c["query"].ndim > 2 and c.axis("Hq") != c.axis("Hkv"),
    )
