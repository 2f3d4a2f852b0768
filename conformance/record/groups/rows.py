"""Rows that see nothing, what stands in masked places, what is seen and is no number."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.record.ask import Ask, Size
from conformance.record.groups.rules import CAUSAL, LOWER_RIGHT, both, window
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


def groups() -> Iterator[Themed]:
    """Yield the groups."""
    yield _EMPTY, [*_empty()]
    yield _POISON, [*_poison()]
    yield _VISIBLE, [*_visible()]


_EMPTY = Theme(
    "empty-row",
    "Rows that see nothing",
    "A row without a visible key gives out 0, weights 0, gradients 0 and lse -inf (its sink, with one).",
    "Padding rows become NaN and spoil the whole gradient, or carry the mean of the values into later layers.",
    "pytorch/pytorch/issues/103749 ml-explore/mlx/issues/2395 NVIDIA/TensorRT-LLM/issues/17477 "
    "onnx/onnx/pull/8068 Xilinx/brevitas/pull/1591",
    "empty=mean_of_value empty=nan empty=sum_of_value lse=empty_is_plus_inf lse=empty_is_zero",
)


def _dead(*rows: int) -> Any:
    def edit(arrays: Arrays) -> None:
        mask = arrays["given" if "given" in arrays else "mask"]
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
        options: list[Arrays] = [{}, {"bias": DENSE}, {"softcap": 2.0}, {"sinks": True}, {}, {"dropout": 0.5}]
        more = options[n]
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
