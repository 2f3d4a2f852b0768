"""Rows that see nothing, what stands in masked places, extreme scores, precision."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.record.ask import Ask, Size
from conformance.record.groups.masks import CAUSAL, LOWER_RIGHT, both, window
from conformance.record.groups.theme import DENSE, Theme, Themed

Arrays = dict[str, Any]
NAN, INF = float("nan"), float("inf")
READ = "both read the poison in every row"
KEY_READ = {"masked=key_leaks mask=inverted": READ}
INF_READ = {"out=mean_of_v mask=inverted": READ}
EVERYWHERE = {
    "masked=value_leaks out=mean_of_v": READ,
    "masked=value_leaks mask=inverted": READ,
    "out=mean_of_v mask=inverted": READ,
}
WIDE, NARROW = ("float64", "float32"), ("float32", "float16", "bfloat16")


def groups() -> Iterator[Themed]:
    """Yield the groups."""
    yield _EMPTY, [*_empty()]
    yield _POISON, [*_poison()]
    yield _VISIBLE, [*_visible()]
    yield _EXTREME, [*_extreme()]
    yield _OVERFLOW, [*_overflow()]
    yield _PRECISION, [*_precision()]


_EMPTY = Theme(
    "empty-row",
    "Rows that see nothing",
    "A row without a visible key gives out 0, weights 0, gradients 0 and lse -inf (its sink, with one).",
    "Padding rows become NaN and spoil the whole gradient, or carry the mean of the values into later layers.",
    "pytorch/pytorch/issues/103749 ml-explore/mlx/issues/2395 NVIDIA/TensorRT-LLM/issues/17477 onnx/onnx/pull/8068 Xilinx/brevitas/pull/1591",
    "empty=mean_of_value empty=nan empty=sum_of_value lse=empty_is_plus_inf lse=empty_is_zero",
)


def _dead(*rows: int) -> Any:
    def edit(arrays: Arrays) -> None:
        mask = arrays.get("mask", arrays.get("given"))
        mask[..., 0] = True
        for row in rows:
            mask[..., row, :] = False

    return edit


def _empty() -> Iterator[Ask]:
    ask = _EMPTY.ask
    yield from _EMPTY.over(
        "wide square grouped multi-query batch plain biased tangent forward",
        lambda size: DENSE,
        edit=_dead(1),
        kills="empty=mean_of_value empty=nan",
    )
    yield from _EMPTY.over(
        "capped sunk",
        lambda size: DENSE,
        "sink-",
        "a row with its sink alone",
        edit=_dead(0, 2),
        kills="sink=none",
        prefer="empty=mean_of_value",
    )
    yield from _EMPTY.over(
        "tall blhd",
        lambda size: both({"rule": "dense", "input": "given"}, CAUSAL),
        "causal-",
        "a mask and causal leave nothing",
        edit=_causal_leaves_nothing,
    )
    yield ask(
        "lower-right",
        "more queries than keys, lower right: the first rows are empty",
        Size(5, 2, 4, 3, 2, 2),
        mask=LOWER_RIGHT,
        reports="Dao-AILab/flash-attention/issues/1778",
        kills="causal=upper_left empty=nan",
    )
    yield ask(
        "minus-inf",
        "a row of biases of -inf",
        Size(3, 4, 3, 5, 2, 2),
        bias=DENSE,
        edit=_minus_inf_row,
        reports="pytorch/pytorch/issues/110213 pytorch/pytorch/issues/92554",
        kills="bias=inf_is_finite",
    )
    yield ask(
        "all",
        "no row sees anything",
        Size(3, 4, 3, 2, 2, 2),
        flags=("narrow",),
        mask=DENSE,
        edit=_dead(0, 1, 2),
        same={"out=zeros": "no row sees anything", "empty=mean_of_value out=mean_of_v": "no row sees anything"},
        kills="empty=nan",
        outputs="out lse weights",
    )
    yield ask(
        "lowest-bias",
        "a row of the lowest finite biases is no empty row: it is the mean",
        Size(3, 4, 3, 5, 2, 2),
        bias=DENSE,
        edit=_lowest_row,
        reports="pytorch/pytorch/issues/110213",
        kills="bias=large_is_masked",
        outputs="out weights",
        gradients=False,
    )


def _causal_leaves_nothing(arrays: Arrays) -> None:
    given = arrays["given"]
    given[...] = True
    given[..., 0] = False


def _minus_inf_row(arrays: Arrays) -> None:
    arrays["bias"][..., 1, :] = -INF
    arrays["bias"][..., 2, 2] = -INF


def _lowest_row(arrays: Arrays) -> None:
    # As low as float16 goes: no score is seen beside it.
    arrays["bias"][..., 1, :] = -32768.0
    arrays["query"][..., 1, :] = 0.0


_POISON = Theme(
    "poison",
    "What stands in masked places",
    "A masked pair contributes exactly nothing, whatever key or value hold there: NaN, infinities, 1e4.",
    "Uninitialised cache slots or padding turn a batch into NaN.",
    "pytorch/pytorch/issues/101967 vllm-project/vllm/pull/39148",
    "masked=key_leaks masked=zero_fill mask=none empty=nan",
    loud=1.7,
)


def _put(name: str, number: float, where: Any) -> Any:
    def edit(arrays: Arrays) -> None:
        arrays[name][(..., *where, slice(None))] = number

    return edit


def _poison() -> Iterator[Ask]:
    ask = _POISON.ask
    lengths = {"rule": "key_lengths", "lengths": 4}
    for n, (name, number) in enumerate(
        [("key", NAN), ("value", NAN), ("key", INF), ("value", -INF), ("key", 16384.0), ("value", 16384.0)]
    ):
        said = f"{number:g} in a {name} that nobody sees"
        kills = "" if np.isfinite(number) else f"masked={name}_leaks"
        same = {
            "key": KEY_READ if np.isnan(number) else {},
            "value": INF_READ if number == -INF else EVERYWHERE if np.isnan(number) else {},
        }[name]
        more: Arrays = [{}, {"bias": DENSE}, {"softcap": 2.0}, {"sinks": True}, {}, {"dropout": 0.5}][n]
        size = [Size(3, 5, 4, 3, 2, 2), Size(4, 5, 3, 4, 2, 1), Size(3, 5, 4, 6, 3, 3)][n % 3]
        yield ask(
            f"lengths-{name}-{'nan' if np.isnan(number) else f'{number:g}'.replace('-', 'minus-')}",
            said,
            size,
            mask=lengths,
            edit=_put(name, number, (4,)),
            kills=kills,
            same=same,
            **more,
        )
    causal = both(CAUSAL)
    yield ask(
        "causal-value",
        "NaN in the value of a future key, which later queries do not reach",
        Size(3, 5, 4, 3, 2, 2),
        mask=CAUSAL,
        edit=_put("value", NAN, (4,)),
        kills="masked=value_leaks",
        same=EVERYWHERE,
    )
    yield ask(
        "causal-key",
        "NaN in a future key",
        Size(3, 5, 4, 3, 4, 2),
        mask=causal["of"][0],
        edit=_put("key", NAN, (3,)),
        kills="masked=key_leaks",
        same=KEY_READ,
    )
    yield ask(
        "window-value",
        "inf left behind by a window",
        Size(3, 6, 4, 3, 2, 2),
        mask=window(1, 0),
        query_positions=3,
        edit=_put("value", INF, (0,)),
        kills="masked=value_leaks",
        same=INF_READ,
    )
    yield ask(
        "dense-both",
        "NaN in key and value under a boolean mask",
        Size(4, 5, 3, 2, 2, 2, (2,)),
        mask=DENSE,
        edit=_nan_and_hidden,
        kills="masked=key_leaks",
        same={name.replace("value_leaks", "key_leaks"): READ for name in EVERYWHERE},
        outputs="out lse weights",
    )
    yield ask(
        "query",
        "NaN in a query that sees nothing",
        Size(4, 5, 3, 2, 2, 2),
        mask={"rule": "query_lengths", "lengths": 3},
        edit=_put("query", NAN, (3,)),
    )
    yield ask(
        "minus-inf",
        "NaN in a value that a bias of -inf hides",
        Size(3, 4, 4, 3, 2, 2),
        bias=DENSE,
        edit=_nan_behind_bias,
    )
    yield ask(
        "tangent",
        "NaN in a masked key, with tangents",
        Size(3, 4, 4, 3, 2, 2),
        mask={"rule": "key_lengths", "lengths": 3},
        edit=_put("key", NAN, (3,)),
        tangents=True,
    )


def _nan_and_hidden(arrays: Arrays) -> None:
    arrays["key"][..., 2, :] = arrays["value"][..., 2, :] = NAN
    arrays["mask"][..., 2] = False
    arrays["mask"][..., 0] = True


def _nan_behind_bias(arrays: Arrays) -> None:
    arrays["value"][..., 1, :] = NAN
    arrays["bias"][..., 1] = -INF


_VISIBLE = Theme(
    "visible-nan",
    "A NaN or an infinity that is seen",
    "A visible NaN or +inf makes its row NaN, and no other row.",
    "One bad token spoils every sequence of a batch; or the fault is hidden, and nobody finds it.",
)


def _visible() -> Iterator[Ask]:
    ask = _VISIBLE.ask
    yield ask("query", "a NaN in one query", Size(4, 5, 3, 2, 2, 2), edit=_put("query", NAN, (1,)), gradients=False)
    yield ask(
        "key-causal",
        "a NaN in a key that only later queries see",
        Size(4, 4, 3, 2, 2, 2),
        mask=CAUSAL,
        edit=_put("key", NAN, (2,)),
        gradients=False,
        kills="mask=none",
    )
    yield ask(
        "value-window",
        "a NaN in a value that some windows hold",
        Size(5, 5, 3, 2, 2, 2),
        mask=window(1, 0),
        edit=_put("value", NAN, (1,)),
        gradients=False,
        outputs="out lse",
    )


_EXTREME = Theme(
    "extreme",
    "Extreme scores",
    "Only differences of scores matter: the maximum is subtracted, whatever it is, before exponentiating.",
    "Long training runs end in NaN or in rows of zeros when scores grow.",
    "flashinfer-ai/flashinfer/issues/4267 jax-ml/jax/issues/17117 vllm-project/vllm/pull/56579",
    "masked=minus_100 masked=zero_fill",
)


def _shifted(number: float) -> Any:
    """Move all scores by a number: one more depth, in which query is 1 and key the number."""

    def edit(arrays: Arrays) -> None:
        arrays["query"][..., -1] = 1.0
        arrays["key"][..., -1] = number

    return edit


def _extreme() -> Iterator[Ask]:
    ask, size = _EXTREME.ask, Size(3, 5, 5, 3, 2, 2)
    for number in (-60000.0, -8192.0, 8192.0, 60000.0):
        far = {"dtypes": ("float64",)} if abs(number) > 10000 else {"dtypes": ("float64",), "scale": 0.5}
        yield ask(
            f"shift-{number:g}".replace("--", "-minus-"),
            f"all scores near {number:g}",
            size,
            edit=_shifted(number),
            outputs="out weights",
            **far,
        )
    yield ask(
        "shift-masked",
        "scores near -1024, and masked pairs: no finite fill is low enough",
        Size(3, 5, 4, 3, 2, 2),
        mask=DENSE,
        edit=_shifted(-1024.0),
        kills="masked=minus_100",
        outputs="out weights",
        dtypes=("float64", "float32"),
    )
    yield ask(
        "shift-window",
        "scores near -512 under a window",
        Size(4, 6, 4, 3, 4, 2),
        mask=window(1, 1),
        edit=_shifted(-512.0),
        kills="masked=minus_100",
        outputs="out",
        dtypes=("float64", "float32"),
    )
    yield ask(
        "masked-far-above",
        "a masked score far above the visible ones",
        Size(3, 4, 3, 4, 2, 2),
        mask={"rule": "key_lengths", "lengths": 3},
        edit=_far_above,
        same={"mask=none mask=inverted": "the masked key has all the weight, if it has some"},
    )
    yield ask(
        "one-hot",
        "scores so far apart that one key has all the weight",
        Size(3, 5, 4, 3, 2, 2),
        scale=64.0,
        spread=2.0,
        outputs="out weights",
        gradients=False,
    )
    yield ask(
        "cap-far",
        "scores of thousands under a soft cap of 2",
        Size(3, 5, 4, 3, 2, 2),
        scale=1024.0,
        softcap=2.0,
        kills="cap=none",
        outputs="out",
        gradients=False,
    )
    yield ask(
        "sink-far",
        "a sink far above all scores",
        Size(3, 5, 4, 3, 2, 2),
        sinks=True,
        edit=_far_sink,
        outputs="out weights",
        gradients=False,
        kills="sink=none",
        prefer="sink=one_after_shift",
    )
    yield ask(
        "sink-minus-inf",
        "a sink of -inf is no sink",
        Size(3, 5, 4, 3, 2, 2),
        sinks=True,
        edit=_no_sink,
        same={"sink=none": "a sink of -inf is no sink"},
        gradients=False,
        kills="sink=one_after_shift",
    )


def _far_above(arrays: Arrays) -> None:
    arrays["key"][..., 3, :] = 512.0
    arrays["query"][...] = abs(arrays["query"])


def _far_sink(arrays: Arrays) -> None:
    arrays["sinks"][...] = [200.0, -200.0]


def _no_sink(arrays: Arrays) -> None:
    arrays["sinks"][...] = -INF


_OVERFLOW = Theme(
    "overflow",
    "Scores beyond float16",
    "16-bit inputs are multiplied and summed in float32: a product beyond 65504 is an ordinary score.",
    "Half-precision inference gives NaN or uniform attention on layers with large activations.",
    "pytorch/pytorch/issues/60939 huggingface/transformers/pull/17306 google/flax/issues/982 unit8co/darts/issues/3081",
    "dtype=scores_in_float16",
)


def _overflow() -> Iterator[Ask]:
    def large(arrays: Arrays) -> None:
        arrays["query"][...] = 256.0 + 4 * arrays["query"]
        arrays["key"][...] = 256.0 + 0 * arrays["key"] + np.round(arrays["key"]) * 2

    for name, more in {
        "plain": {},
        "causal": {"mask": CAUSAL},
        "sinks": {"sinks": True},
        "grouped": {},
        "masked": {"mask": DENSE},
    }.items():
        size = Size(4, 6, 3, 2, 4, 2) if name == "grouped" else Size(3, 5, 4, 3, 2, 2)
        yield _OVERFLOW.ask(
            name,
            f"{name}, products of 65536",
            size,
            edit=large,
            scale=2.0**-9,
            dtypes=("float32", "float16"),
            kills="dtype=scores_in_float16",
            outputs="out" if name != "grouped" else "out weights",
            gradients=False,
            **more,
        )


_PRECISION = Theme(
    "precision",
    "Dtypes",
    "16 bits compute in float32, float64 stays float64, out is rounded once.",
    "Numbers that should agree to the last digits agree to three; sums over many keys drift.",
    "jax-ml/jax/issues/37422 jax-ml/ml_dtypes/issues/63 pytorch/executorch/pull/20090 antirez/h3.c/issues/3",
    "dtype=float32 dtype=bfloat16",
)


def _precision() -> Iterator[Ask]:
    ask = _PRECISION.ask
    only: Arrays = {"dtypes": ("float64",), "kills": "dtype=float32"}
    yield ask("float64", "float64 in, float64 accuracy out", Size(3, 5, 4, 3, 2, 2), outputs="out lse weights", **only)
    yield ask(
        "float64-masked", "float64 with a mask and a bias", Size(4, 5, 3, 4, 2, 2), mask=DENSE, bias=DENSE, **only
    )
    yield ask("float64-capped", "float64 with a cap and sinks", Size(4, 5, 3, 4, 3, 1), softcap=2.0, sinks=True, **only)
    yield ask(
        "many-keys",
        "300 equal scores: a running sum of ones sticks at 256 in bfloat16",
        Size(2, 300, 1, 1, 1, 1),
        edit=_equal,
        gradients=False,
        dtypes=("float64", "float32", "float16", "bfloat16"),
        same={"out=mean_of_v": "all scores are equal"},
        kills="softmax=none",
    )
    yield ask(
        "rounded-once", "out is rounded once: small weights of large values", Size(2, 65, 2, 2, 2, 2), gradients=False
    )
    for name, bias in {"bias": DENSE, "mask": None}.items():
        more: Arrays = (
            {"bias": bias, "fixed": {"bias": "float32"}, "dtypes": NARROW} if bias else {"mask": DENSE, "fixed": {}}
        )
        yield ask(
            f"other-{name}",
            f"a float32 {name} beside 16-bit inputs" if bias else "a boolean mask beside 16-bit inputs",
            Size(3, 5, 4, 3, 2, 2, (2,)),
            reports="jax-ml/jax/issues/32242",
            **more,
        )
    yield ask(
        "other-sinks",
        "float32 sinks beside 16-bit inputs",
        Size(3, 5, 4, 3, 4, 2),
        sinks=True,
        fixed={"sinks": "float32"},
        dtypes=NARROW,
    )
    yield ask(
        "wider-value",
        "a float32 value beside other queries and keys: out is the widest",
        Size(3, 5, 4, 3, 2, 2),
        fixed={"value": "float32"},
        reports="keras-team/keras/pull/21558",
        gradients=False,
    )


def _equal(arrays: Arrays) -> None:
    arrays["query"][...] = 0.5
    arrays["key"][...] = 1.0
