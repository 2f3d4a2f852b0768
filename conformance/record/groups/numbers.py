"""Extreme scores, scores beyond float16, precision."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.record.ask import Ask, Size
from conformance.record.groups.rules import CAUSAL, window
from conformance.record.groups.theme import DENSE, Theme, Themed

Arrays = dict[str, Any]
NAN, INF = float("nan"), float("inf")
WIDE, NARROW = ("float64", "float32"), ("float32", "float16", "bfloat16")


def groups() -> Iterator[Themed]:
    """Yield the groups."""
    yield _EXTREME, [*_extreme()]
    yield _OVERFLOW, [*_overflow()]
    yield _PRECISION, [*_precision()]


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
        more: Arrays = {"scale": 0.5} if abs(number) < 10000 else {"mask": window(1, 1)} if number > 0 else {}
        yield ask(
            f"shift-{number:g}".replace("--", "-minus-"),
            f"all scores near {number:g}",
            size,
            edit=_shifted(number),
            outputs="out weights",
            dtypes=("float64",),
            **more,
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

    options: dict[str, Arrays] = {
        "plain": {},
        "causal": {"mask": CAUSAL},
        "sinks": {"sinks": True},
        "grouped": {},
        "masked": {"mask": DENSE},
    }
    for name, more in options.items():
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
    "dtype=float32",
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
