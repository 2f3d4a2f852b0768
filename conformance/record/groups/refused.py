"""Calls of attention that must raise."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.record.ask import Ask, Size
from conformance.record.groups.rules import CAUSAL, LOWER_RIGHT, both, window
from conformance.record.groups.theme import DENSE, Theme, Themed

Arrays = dict[str, Any]


def groups() -> Iterator[Themed]:
    """Yield the group of calls that must raise."""
    yield INVALID, [*_invalid(), *_kinds(), *_sizes(), *_dropouts()]


INVALID = Theme(
    "invalid",
    "Calls that must raise",
    "A wrong call raises at once and names the argument; nothing is guessed, broadcast by chance or computed in "
    "integers.",
    "A mistake in a model's code runs on with numbers that look like results.",
    "pytorch/pytorch/pull/191325 keras-team/keras/pull/21558 ml-explore/mlx/issues/2626",
)
SIZE = Size(3, 5, 4, 2, 2, 2)


def _integers(name: str) -> Any:
    def edit(arrays: Arrays) -> None:
        arrays[name] = np.round(arrays[name]).astype(np.int32)

    return edit


def _cut(name: str, where: Any) -> Any:
    def edit(arrays: Arrays) -> None:
        arrays[name] = arrays[name][where]

    return edit


def ask(suffix: str, words: str, size: Size = SIZE, **more: Any) -> Ask:
    """Return one call that must raise."""
    shared: Arrays = {"valid": False, "gradients": False, "dtypes": ("float32",), "outputs": ""}
    return INVALID.ask(suffix, words, size, **{**shared, **more})


def _invalid() -> Iterator[Ask]:
    for name in ("query", "key", "value"):
        yield ask(f"integer-{name}", f"an integer {name}", edit=_integers(name))
    yield ask(
        "two-halves", "float16 beside bfloat16", fixed={"query": "float16", "key": "bfloat16", "value": "float16"}
    )
    yield ask("two-halves-value", "a bfloat16 value beside float16", fixed={"value": "bfloat16"}, dtypes=("float16",))
    yield ask("depths", "key is narrower than query", edit=_cut("key", (..., slice(0, 3))))
    yield ask("lengths", "value is shorter than key", edit=_cut("value", (..., slice(0, 4), slice(None))))
    yield ask("value-heads", "value has fewer heads than key", edit=_cut("value", (slice(0, 1),)))
    yield ask("head-groups", "4 query heads, 3 key heads", Size(3, 5, 4, 2, 4, 3))
    yield ask("no-kv-heads", "2 query heads, no key heads", Size(3, 5, 4, 2, 2, 0))
    yield ask("more-kv-heads", "2 query heads, 4 key heads", Size(3, 5, 4, 2, 2, 4))
    yield ask("batches", "leading axes of 3 and 2", Size(3, 5, 4, 2, 2, 2, (3,), (2,)))
    yield ask(
        "plain-beside-heads",
        "plain query beside key and value with heads",
        Size(3, 5, 4, 2, 1, 1),
        edit=_cut("query", 0),
    )
    yield ask("layout", "an unknown layout", layout="LBHD")
    yield ask("mask-float", "a float array as mask", mask=DENSE, edit=_float_mask)
    yield ask("mask-integer", "an integer array as mask", mask=DENSE, edit=_integer("mask"))
    yield ask("mask-shape", "a mask for 4 keys beside 5", mask=DENSE, shapes={"mask": (3, 4)})
    yield ask("mask-transposed", "a mask of shape (Lk, Lq)", mask=DENSE, shapes={"mask": (5, 3)})
    yield ask("bias-shape", "a bias for 4 heads beside 2", bias=DENSE, shapes={"bias": (4, 3, 5)})
    yield ask("bias-integer", "an integer bias", bias=DENSE, edit=_integers("bias"))
    yield ask("softcap-zero", "a soft cap of 0 is not `off`", softcap=0.0)
    yield ask("softcap-negative", "a negative soft cap", softcap=-5.0)
    yield ask("window-negative", "a negative window", mask=window(-1, 0))
    yield ask("chunk-zero", "chunks of 0", mask={"rule": "chunked", "size": 0})
    yield ask("dilation-zero", "a dilation of 0", mask={"rule": "dilated", "step": 0})
    yield ask("sinks-shape", "a sink a key head", Size(3, 5, 4, 2, 4, 2), sinks=True, shapes={"sinks": (2,)})
    yield ask("sinks-integer", "integer sinks", sinks=True, edit=_integers("sinks"))
    yield ask("positions-length", "positions for 4 queries beside 3", mask=CAUSAL, query_positions=[0, 1, 2, 3])
    yield ask(
        "positions-twice",
        "causal_lower_right() beside query positions",
        mask=LOWER_RIGHT,
        query_positions=1,
    )
    yield ask(
        "segments-shape",
        "ids for 4 keys beside 5",
        mask={"rule": "segments", "query_ids": [0, 0, 1], "key_ids": [0, 0, 1, 1]},
    )
    yield ask("alibi-heads", "slopes for 3 heads beside 2", bias={"rule": "alibi", "slopes": 3})
    yield ask("dropout-all", "a dropout rate of 1", dropout=1.0)
    yield ask(
        "several",
        "two masks, one of another length",
        mask=both(CAUSAL, {"rule": "dense", "input": "given"}),
        shapes={"given": (3, 6)},
    )


def _kinds() -> Iterator[Ask]:
    yield ask("boolean-query", "a boolean query", edit=_signs("query"))
    yield ask("bias-boolean", "a boolean bias: booleans are a mask", bias=DENSE, edit=_signs("bias"))
    yield ask("key-lengths-float", "a length of 2.5", mask={"rule": "key_lengths", "lengths": 2.5})
    yield ask("positions-float", "positions between integers", mask=CAUSAL, query_positions=[0.5, 1.5, 2.5])
    yield ask(
        "segments-float",
        "ids that are no integers",
        mask={"rule": "segments", "query_ids": [0.0, 0.5, 1.0], "key_ids": [0, 0, 1, 1, 1]},
    )
    yield ask("window-right-negative", "a negative bound to the right", mask=window(None, -1))
    yield ask("global-negative", "-1 global tokens", mask={"rule": "global_tokens", "count": -1})


def _sizes() -> Iterator[Ask]:
    pair = Size(3, 5, 4, 2, 2, 2, (2,))
    for name in ("key_lengths", "query_lengths"):
        words = name.replace("_", " ")
        yield ask(f"{name.replace('_', '-')}-items", f"three {words}, two items", pair, mask=_rule(name, [3, 2, 1]))
    yield ask("prefix-items", "three prefixes, two items", pair, mask={"rule": "prefix", "length": [3, 2, 1]})
    yield ask("key-positions-length", "positions for 6 keys beside 5", mask=CAUSAL, key_positions=[0, 1, 2, 3, 4, 5])
    yield ask(
        "positions-items",
        "positions for three items beside two",
        pair,
        mask=CAUSAL,
        query_positions=[[0, 1, 2], [1, 2, 3], [2, 3, 4]],
    )
    yield ask(
        "key-positions-twice",
        "causal_lower_right() beside key positions",
        mask=LOWER_RIGHT,
        key_positions=[4, 3, 2, 1, 0],
    )
    yield ask("sinks-axes", "a sink a batch item and head", pair, sinks=True, shapes={"sinks": (2, 2)})
    yield ask("bias-items", "a bias for three items beside two", pair, bias=DENSE, shapes={"bias": (3, 1, 3, 5)})
    yield ask("alibi-slopes", "three slopes, two heads", bias={"rule": "alibi", "slopes": [1.0, 0.5, 0.25]})
    table = {"rule": "relative", "table": "bias_table", "bidirectional": True, "max_distance": 8}
    yield ask("relative-heads", "a table for three heads beside two", bias=table, shapes={"bias_table": (8, 3)})
    yield ask("relative-buckets", "seven buckets in two directions", bias=table, shapes={"bias_table": (7, 2)})
    yield ask(
        "relative-distance",
        "no distance is left to the logarithmic buckets",
        bias={**table, "max_distance": 2},
        shapes={"bias_table": (8, 2)},
    )


def _dropouts() -> Iterator[Ask]:
    half: Arrays = {"dropout": 0.5}
    yield ask("dropout-negative", "a negative dropout rate", dropout=-0.25)
    yield ask("dropout-percent", "a dropout rate in percent", dropout=25.0)
    yield ask("keep-shape", "a keep mask for 6 keys beside 5", shapes={"keep": (2, 3, 6)}, **half)
    yield ask("keep-integer", "an integer keep mask", edit=_integer("keep"), **half)
    yield ask("seed-negative", "a negative seed", seed=-1, **half)
    yield ask("seed-float", "a seed that is no integer", seed=1.5, **half)
    yield ask("seed-items", "three seeds, two items", Size(3, 5, 4, 2, 2, 2, (2,)), seed=[3, 8, 5], **half)
    yield ask("seed-rate", "a rate that rounds to 65536/65536: nothing is kept", dropout=0.999999, seed=3)
    yield ask("origin-negative", "an origin before the first key", seed=3, origin=(0, 0, 0, -1), **half)
    yield ask("origin-three", "an origin of three indices", seed=3, origin=(0, 0, 0), **half)


def _rule(name: str, lengths: list[int]) -> Arrays:
    return {"rule": name, "lengths": lengths}


def _float_mask(arrays: Arrays) -> None:
    arrays["mask"] = arrays["mask"].astype(np.float32)


def _integer(name: str) -> Any:
    def edit(arrays: Arrays) -> None:
        arrays[name] = arrays[name].astype(np.int32)

    return edit


def _signs(name: str) -> Any:
    def edit(arrays: Arrays) -> None:
        arrays[name] = arrays[name] > 0

    return edit
