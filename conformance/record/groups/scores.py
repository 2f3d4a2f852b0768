"""Scale, soft cap, biases."""

from collections.abc import Iterator
from typing import Any

from conformance.record.ask import Ask, Size
from conformance.record.groups.rules import CAUSAL, window
from conformance.record.groups.theme import DENSE, Theme, Themed

Arrays = dict[str, Any]
INF = float("inf")


def groups() -> Iterator[Themed]:
    """Yield the groups."""
    yield _SCALE, [*_scale()]
    yield _CAP, [*_cap()]
    yield _BIAS, [*_bias()]
    yield _ALIBI, [*_alibi()]
    yield _RELATIVE, [*_relative()]


_SCALE = Theme(
    "scale",
    "Scale",
    "The scores are multiplied by the scale, which is 1/sqrt(D) by default; 0 and negative numbers are scales too.",
    "Attention is too sharp or too flat everywhere: the model works, a little worse.",
    "pytorch/pytorch/pull/105202 tenstorrent/tt-metal/issues/33304 "
    "aladdinpersson/Machine-Learning-Collection/issues/65",
    "scale=1 scale=1/D scale=default scale=by_value_depth scale=by_all_heads scale=absolute scale=squared "
    "softmax=base_2",
)


def _scale() -> Iterator[Ask]:
    ask, over = _SCALE.ask, _SCALE.over
    yield from over(
        "wide square grouped batch plain blhd biased capped tangent", None, "default-", "the default, 1/sqrt(D)"
    )
    yield from over("wide multi-query plain", None, "given-", "1/8, not the default", scale=0.125)
    yield ask("negative", "a negative scale", Size(3, 5, 4, 2, 2, 2), scale=-0.5, kills="scale=absolute")
    yield ask(
        "negative-causal",
        "a negative scale under a causal mask",
        Size(4, 4, 5, 3, 4, 2),
        scale=-0.25,
        mask=CAUSAL,
        kills="scale=absolute",
    )
    yield ask(
        "zero",
        "a scale of 0: the mean",
        Size(3, 5, 4, 2, 2, 2),
        flags=("narrow",),
        scale=0.0,
        kills="scale=default",
        same={"out=mean_of_v": "all scores are 0"},
        outputs="out weights",
    )
    yield ask(
        "zero-masked",
        "a scale of 0 under a window: the mean of what is seen",
        Size(4, 6, 4, 3, 2, 2),
        scale=0.0,
        mask=window(1, 1),
        kills="scale=default",
    )
    yield ask("one", "a scale of 1", Size(3, 5, 4, 3, 2, 1), scale=1.0, kills="scale=default", outputs="out")
    yield ask(
        "bias",
        "the scale does not multiply the bias",
        Size(3, 5, 4, 3, 2, 2),
        scale=0.125,
        bias=DENSE,
        reports="tenstorrent/tt-metal/pull/42891",
        kills="bias=scaled scale=default",
    )


_CAP = Theme(
    "softcap",
    "Soft cap",
    "s = softcap * tanh(s / softcap) comes after the scale, before bias and mask.",
    "Gemma-like models drift: far keys get weight from a capped mask, biases are flattened.",
    "vllm-project/vllm/pull/56579 ggml-org/llama.cpp/pull/29034 onnx/onnx/issues/7865",
    "cap=none cap=after_bias cap=after_mask cap=before_scale cap=softsign cap=not_multiplied cap=clipped "
    "gradient=cap_forgotten",
)


def _cap() -> Iterator[Ask]:
    over, ask = _CAP.over, _CAP.ask
    yield from over("wide square grouped batch plain blhd tangent", None, softcap=1.0)
    yield from over(
        "wide biased multi-query", None, "bias-", "the bias comes after it", softcap=0.75, bias=DENSE, scale=1.0
    )
    yield from over(
        "wide tall grouped", lambda size: CAUSAL, "causal-", "the mask comes after it", softcap=0.5, scale=1.0
    )
    yield from over("batch plain", lambda size: DENSE, "mask-", "a boolean mask comes after it", softcap=1.25)
    yield ask(
        "order",
        "cap, bias, mask, in this order",
        Size(4, 6, 4, 3, 2, 2),
        softcap=0.5,
        scale=1.0,
        bias=DENSE,
        mask=window(2, 0),
        kills="cap=after_mask",
        dtypes=("float64", "float32", "float16"),
    )
    yield ask(
        "sink",
        "the sink is not capped",
        Size(3, 5, 4, 3, 2, 2),
        softcap=0.5,
        sinks=True,
        kills="sink=capped",
        dtypes=("float64", "float32", "float16"),
    )
    yield ask(
        "tile",
        "65 equal scores: what fills up a tile must not be capped",
        Size(2, 65, 1, 1, 2, 2),
        softcap=1.0,
        edit=_equal,
        same={"out=mean_of_v": "all scores are equal"},
        gradients=False,
    )


def _equal(arrays: Arrays) -> None:
    arrays["query"][...] = 1.0
    arrays["key"][...] = 0.5


_BIAS = Theme(
    "bias",
    "Bias",
    "Real numbers added after scale and cap, broadcast to (..., Hq, Lq, Lk); -inf masks its pair, any finite "
    "number is only a bias.",
    "Relative positions, pair representations or float masks act at the wrong places, or not at all.",
    "mlverse/torch/issues/1205 pytorch/pytorch/issues/92554 ml-explore/mlx/issues/2626 pytorch/pytorch/issues/136816",
    "bias=none bias=scaled bias=subtracted bias=first_head bias=first_item bias=transposed bias=zero_is_masked "
    "bias=inf_is_finite",
    loud=1.7,
)


def _some_inf(arrays: Arrays) -> None:
    arrays["bias"][..., 1::2] = -INF
    arrays["bias"][..., 0, -1] = 1.0


def _bias() -> Iterator[Ask]:
    ask, size = _BIAS.ask, Size(3, 5, 4, 3, 4, 2, (2,))
    yield from _BIAS.over("wide tall square grouped multi-query batch plain blhd capped sunk tangent", None, bias=DENSE)
    shapes = {
        "keys": (5,),
        "queries-keys": (3, 5),
        "heads": (4, 1, 1),
        "heads-keys": (4, 1, 5),
        "items": (2, 1, 1, 5),
        "items-queries": (2, 1, 3, 1),
    }
    for name, shape in shapes.items():
        alike = {"bias=none": "the same number for every key of a row changes nothing"} if shape[-1] == 1 else {}
        yield ask(f"shape-{name}", f"a bias of shape {shape}", size, bias=DENSE, shapes={"bias": shape}, same=alike)
    yield from _BIAS.over("wide batch plain", lambda size: DENSE, "mask-", "with a boolean mask", bias=DENSE)
    yield from _BIAS.over(
        "wide grouped plain",
        None,
        "inf-",
        "-inf masks its pair",
        bias=DENSE,
        edit=_some_inf,
        kills="bias=inf_is_finite",
    )
    yield ask(
        "keep-as-bias",
        "a float of ones and zeros is a bias, not a mask",
        Size(2, 3, 2, 2, 2, 2),
        bias=DENSE,
        edit=_ones_and_zeros,
        kills="bias=zero_is_masked",
        outputs="out weights",
    )
    yield ask(
        "sum",
        "two biases are added",
        Size(3, 5, 4, 3, 2, 2),
        bias={"rule": "sum", "of": [DENSE, {"rule": "alibi", "slopes": [0.5, 0.25]}]},
        kills="bias=none",
    )


def _ones_and_zeros(arrays: Arrays) -> None:
    arrays["bias"][...] = (arrays["bias"] > 0).astype("float32")


_ALIBI = Theme(
    "alibi",
    "ALiBi",
    "-slope_h * abs(query position - key position), with the paper's slopes for any number of heads.",
    "Heads look too far or too near; a model with 12 heads has the slopes of another.",
    "ml-explore/mlx/issues/343 NVIDIA/TensorRT-LLM/pull/1611",
    "alibi=rewarded alibi=signed alibi=one_ratio alibi=reversed_heads alibi=by_index alibi=scaled bias=none",
)


def _alibi() -> Iterator[Ask]:
    ask, steep = _ALIBI.ask, {"rule": "alibi", "slopes": [1.0, 0.5]}
    yield from _ALIBI.over("wide tall biased tangent", lambda size: CAUSAL, "causal-", "slopes 1 and 1/2", bias=steep)
    yield ask("both-sides", "keys before and after", Size(5, 6, 4, 3, 2, 2), bias=steep, kills="alibi=signed")
    for heads in (2, 3, 6):
        yield ask(
            f"{heads}-heads",
            f"the paper's slopes for {heads} heads",
            Size(4, 7, 3, 2, heads, heads),
            bias={"rule": "alibi", "slopes": heads},
            dtypes=("float64", "float32"),
            query_positions=9,
            outputs="out weights",
            scale=0.25,
        )
    yield ask(
        "12-heads",
        "the paper's slopes for 12 heads, no power of two",
        Size(2, 5, 2, 2, 12, 4),
        bias={"rule": "alibi", "slopes": 12},
        dtypes=("float64", "float32"),
        kills="alibi=one_ratio",
    )
    yield ask(
        "decode",
        "one query after a cache",
        Size(1, 6, 4, 3, 2, 1),
        bias=steep,
        query_positions=5,
        kills="alibi=by_index",
    )
    yield ask(
        "gradient",
        "slopes as an array have a gradient",
        Size(4, 5, 3, 2, 2, 2),
        bias={"rule": "alibi", "slopes": "slopes"},
        shapes={"slopes": (2,)},
        edit=_positive_slopes,
    )


def _positive_slopes(arrays: Arrays) -> None:
    arrays["slopes"][...] = [0.75, 0.25]


_RELATIVE = Theme(
    "relative",
    "T5's relative bias",
    "table[bucket(key position - query position), h], half of a side's buckets exact, the rest logarithmic.",
    "A T5 model attends at mirrored distances, or forgets its cache's positions while decoding.",
    "huggingface/candle/pull/899",
    "relative=query_minus_key relative=other_direction relative=by_index relative=larger_distance "
    "relative=heads_reversed bias=none",
)


def _relative() -> Iterator[Ask]:
    def table(bidirectional: bool, buckets: int = 8, farthest: int = 16, heads: int = 2) -> Arrays:
        rule = {"rule": "relative", "table": "bias_table", "bidirectional": bidirectional, "max_distance": farthest}
        return {"bias": rule, "shapes": {"bias_table": (buckets, heads)}}

    ask = _RELATIVE.ask
    yield ask(
        "encoder", "keys before and after", Size(4, 6, 3, 2, 2, 2), kills="relative=query_minus_key", **table(True)
    )
    yield ask(
        "encoder-batch",
        "a batch, with weights",
        Size(5, 4, 3, 2, 2, 1, (2,)),
        outputs="out lse weights",
        **table(True, 6),
    )
    yield ask("encoder-masked", "with a boolean mask", Size(4, 5, 3, 2, 3, 3), mask=DENSE, **table(True, 8, 16, 3))
    yield ask(
        "decoder",
        "causal: keys after the query share bucket 0",
        Size(6, 6, 3, 2, 2, 2),
        mask=CAUSAL,
        kills="relative=other_direction",
        **table(False, 6),
    )
    yield ask(
        "decoder-open", "one direction without a mask", Size(4, 6, 3, 2, 2, 2), outputs="out", **table(False, 4, 8)
    )
    yield ask(
        "decode",
        "one query after a cache",
        Size(1, 6, 4, 3, 2, 2),
        query_positions=5,
        kills="relative=by_index",
        **table(False, 6),
    )
    yield ask(
        "far",
        "distances in the logarithmic buckets and beyond the last",
        Size(3, 9, 3, 2, 2, 2),
        query_positions=20,
        kills="relative=larger_distance",
        **table(False, 8, 17),
    )
    yield ask("capped", "with a soft cap", Size(4, 5, 4, 3, 2, 2), softcap=1.0, **table(True))
