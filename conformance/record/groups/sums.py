"""Sinks, lse, dropout."""

from collections.abc import Iterator
from typing import Any

from conformance.record.ask import Ask, Size
from conformance.record.groups.rules import CAUSAL, window
from conformance.record.groups.theme import Theme, Themed

Arrays = dict[str, Any]


def groups() -> Iterator[Themed]:
    """Yield the groups."""
    yield _SINKS, [*_sinks()]
    yield _LSE, [*_lse()]
    yield _DROPOUT, [*_dropout()]


_SINKS = Theme(
    "sinks",
    "Sinks",
    "One logit a query head, in the denominator only: not scaled, capped, biased, masked or dropped; it has a "
    "gradient.",
    "gpt-oss-like models put too much weight on every token, and their sinks do not train.",
    "kyegomez/AttentionIsOFFByOne/issues/5",
    "sink=none sink=reversed_heads sink=scaled sink=capped sink=one_after_shift sink=gate sink=lse_only "
    "lse=without_sink gradient=sink_forgotten",
)


def _sinks() -> Iterator[Ask]:
    over, ask = _SINKS.over, _SINKS.ask
    yield from over("wide tall square grouped multi-query batch blhd biased capped tangent forward", None, sinks=True)
    yield from over("wide batch", lambda size: CAUSAL, "causal-", "under a causal mask", sinks=True)
    yield from over("grouped", lambda size: window(1, 0), "window-", "under a window", sinks=True)
    yield ask(
        "scaled",
        "the sink is not scaled",
        Size(3, 5, 4, 3, 2, 2),
        sinks=True,
        scale=0.125,
        kills="sink=scaled",
        edit=_large,
        dtypes=("float64", "float32", "float16"),
    )
    yield ask(
        "low",
        "scores far below 0: the sink is shifted with them",
        Size(3, 4, 4, 3, 2, 2),
        flags=("narrow",),
        sinks=True,
        edit=_low,
        kills="sink=one_after_shift",
        outputs="out weights",
    )
    yield ask(
        "dropout",
        "the sink is not dropped",
        Size(3, 5, 4, 3, 2, 2),
        sinks=True,
        dropout=0.5,
        kills="dropout=not_divided",
    )


def _large(arrays: Arrays) -> None:
    arrays["sinks"][...] = [3.0, 2.0]


def _low(arrays: Arrays) -> None:
    arrays["query"][..., -1] = 4.0
    arrays["key"][..., -1] = -2.0


_LSE = Theme(
    "lse",
    "Logarithm of the sum",
    "lse is the natural logarithm of the denominator, with scale, cap, bias, mask and sink, and has a gradient.",
    "Merged parts, ring attention and z-losses are off by a factor, or do not train.",
    "sgl-project/sglang/issues/33064 pytorch/pytorch/issues/181645",
    "lse=base_2 lse=maximum_forgotten lse=of_scaled_scores lse=without_sink gradient=lse_stopped",
)


def _lse() -> Iterator[Ask]:
    over, ask = _LSE.over, _LSE.ask
    yield from over("wide grouped plain batch", None, outputs="out lse weights", lse_cotangent=True)
    yield from over(
        "wide batch",
        lambda size: CAUSAL,
        "causal-",
        "under a causal mask",
        lse_cotangent=True,
        kills="lse=of_scaled_scores",
    )
    yield from over("biased capped", None, "with-", "beside the rest", lse_cotangent=True, scale=1.0)
    yield ask(
        "base",
        "scores that make the base plain",
        Size(3, 6, 4, 2, 2, 2),
        scale=1.5,
        kills="lse=base_2",
        lse_cotangent=True,
    )
    yield ask(
        "layout", "lse is (..., H, L) in either layout", Size(3, 6, 4, 2, 2, 2, (2,)), layout="BLHD", lse_cotangent=True
    )


_DROPOUT = Theme(
    "dropout",
    "Dropout",
    "Kept weights are divided by 1 - rate; lse and the returned weights are those before dropout.",
    "Training sees weights of another size than inference.",
    "pytorch/pytorch/issues/27968 pytorch/pytorch/issues/124464",
    "dropout=ignored dropout=not_divided dropout=inverted dropout=renormalised weights=after_dropout",
    loud=1.7,
)


def _dropout() -> Iterator[Ask]:
    over, ask = _DROPOUT.over, _DROPOUT.ask
    yield from over("wide grouped batch plain blhd sunk", None, dropout=0.5)
    yield from over("wide batch", lambda size: CAUSAL, "causal-", "under a causal mask", dropout=0.25)
    yield ask(
        "weights",
        "the returned weights are those before dropout",
        Size(3, 5, 4, 3, 2, 2),
        dropout=0.5,
        outputs="out lse weights",
        kills="weights=after_dropout",
    )
