"""Heads, layouts, depths, sizes of 0 and 1, memory layouts."""

from collections.abc import Iterator
from typing import Any

from conformance.record.ask import Ask, Size
from conformance.record.groups.rules import CAUSAL
from conformance.record.groups.theme import DENSE, Theme, Themed

Arrays = dict[str, Any]
NOTHING = {"out=mean_of_v": "there is nothing to tell apart", "out=zeros": "there is nothing to tell apart"}
LONG = "pytorch/pytorch/issues/159247 labmlai/annotated_deep_learning_paper_implementations/issues/146"
NO_KEYS = {"out=mean_of_v": "without keys out is 0", "out=zeros": "without keys out is 0"}


def groups() -> Iterator[Themed]:
    """Yield the groups."""
    yield _HEADS, [*_heads()]
    yield _BATCH, [*_batch()]
    yield _DEPTH, [*_depth()]
    yield _SIZES, [*_sizes()]
    yield _STRIDES, [*_strides()]


_HEADS = Theme(
    "heads",
    "Grouped heads",
    "Query head h reads key and value head h // G: they are repeated (0 0 1 1), never tiled (0 1 0 1).",
    "Every grouped-query model (Llama, Mistral) reads other heads' keys.",
    "onnx/onnx/pull/7274 ml-explore/mlx/issues/3383",
    "heads=tiled heads=first heads=value_reversed heads=key_reversed softmax=over_heads gradient=first_of_group",
)


def _heads() -> Iterator[Ask]:
    ask = _HEADS.ask
    yield ask("4-2", "4 query heads, 2 key heads", Size(3, 5, 4, 3, 4, 2), kills="heads=tiled")
    yield ask("6-2", "6 query heads, 2 key heads", Size(3, 4, 5, 2, 6, 2), kills="heads=tiled", outputs="out weights")
    yield ask("6-3", "6 query heads, 3 key heads", Size(2, 5, 4, 3, 6, 3), kills="heads=tiled", outputs="out")
    yield ask(
        "6-3-batch",
        "6 query heads, 3 key heads, a batch",
        Size(2, 5, 4, 3, 6, 3, (2,)),
        kills="heads=tiled",
        outputs="out",
        gradients=False,
    )
    yield ask("5-1", "5 query heads, 1 key head", Size(3, 4, 4, 3, 5, 1))
    yield ask("4-2-causal", "grouped and causal", Size(4, 4, 5, 3, 4, 2), mask=CAUSAL, kills="heads=tiled")
    yield ask(
        "4-2-mask",
        "grouped, a mask a query head",
        Size(3, 5, 4, 2, 4, 2),
        mask=DENSE,
        kills="heads=tiled mask=first_head",
    )
    yield ask(
        "4-2-bias",
        "grouped, a bias a query head",
        Size(3, 5, 4, 2, 4, 2),
        bias=DENSE,
        kills="heads=tiled bias=first_head",
    )
    yield ask(
        "6-2-sinks",
        "grouped, a sink a query head",
        Size(3, 5, 4, 2, 6, 2),
        sinks=True,
        kills="heads=tiled sink=reversed_heads",
    )
    yield ask(
        "4-2-blhd",
        "grouped, layout (..., L, H, D)",
        Size(3, 5, 4, 2, 4, 2),
        layout="BLHD",
        reports="jax-ml/jax/issues/35916",
        kills="heads=tiled",
    )
    yield ask(
        "4-2-lse", "grouped, a gradient through lse", Size(3, 5, 4, 2, 4, 2), lse_cotangent=True, kills="heads=tiled"
    )
    yield ask(
        "4-2-tangent",
        "grouped, with tangents and a soft cap",
        Size(3, 5, 4, 2, 4, 2),
        softcap=2.0,
        tangents=True,
        kills="heads=tiled",
    )
    yield ask(
        "index",
        "each head's value is its number, equal scores",
        Size(2, 3, 2, 2, 4, 2),
        edit=_numbered,
        scale=0.0,
        kills="heads=tiled",
        same={"out=mean_of_v": "all scores are 0"},
    )


def _numbered(arrays: Arrays) -> None:
    for head in range(2):
        arrays["value"][..., head, :, :] = 2 * head - 1


_BATCH = Theme(
    "batch",
    "Leading axes",
    "Any number of leading axes, which broadcast together.",
    "A shared cache, beam search or vmapped call fails, or mixes the items of a batch.",
    "pytorch/pytorch/pull/189631 tensorflow/tensorflow/issues/60626 pytorch/pytorch/pull/188764",
    "batch=first_item mask=first_item bias=first_item",
)


def _batch() -> Iterator[Ask]:
    ask = _BATCH.ask
    yield ask("two-axes", "two leading axes", Size(3, 4, 3, 2, 2, 1, (2, 3)))
    yield ask("shared-key", "one key and value for all items", Size(3, 4, 3, 2, 2, 2, (3,), (1,)), outputs="out")
    yield ask(
        "missing-axis", "key and value lack the leading axis", Size(3, 4, 3, 2, 2, 2, (3,), ()), outputs="out lse"
    )
    yield ask(
        "crossed",
        "leading axes that broadcast against each other's 1",
        Size(2, 4, 3, 2, 2, 2, (1, 3), (1, 1)),
        mask=CAUSAL,
    )
    yield ask(
        "mask-items",
        "a mask an item",
        Size(3, 5, 3, 2, 2, 2, (3,)),
        mask=DENSE,
        shapes={"mask": (3, 1, 1, 5)},
        kills="mask=first_item",
    )
    yield ask(
        "bias-items",
        "a bias an item",
        Size(3, 5, 3, 2, 2, 2, (3,)),
        bias=DENSE,
        shapes={"bias": (3, 1, 3, 5)},
        kills="bias=first_item",
    )
    yield ask(
        "layout",
        "two leading axes, layout (..., L, H, D)",
        Size(2, 4, 3, 5, 2, 2, (2, 3)),
        layout="BLHD",
        gradients=False,
    )


_DEPTH = Theme(
    "depth",
    "Depths",
    "Value may have another depth than query and key; the default scale is 1/sqrt(D) of query, 1 where D is 0.",
    "Latent attention (MLA) and padded heads give other widths or another temperature.",
    "pytorch/pytorch/issues/176767 pytorch/pytorch/issues/127523 pytorch/pytorch/pull/175000",
    "scale=by_value_depth scale=1/D scale=1",
)


def _depth() -> Iterator[Ask]:
    ask = _DEPTH.ask
    yield ask(
        "value-wider", "value is wider than query", Size(3, 5, 2, 7, 2, 2), outputs="out", kills="scale=by_value_depth"
    )
    yield ask("value-narrower", "value is narrower than query", Size(3, 5, 7, 2, 2, 2), outputs="out lse")
    yield ask("value-one", "value has one column", Size(4, 5, 3, 1, 2, 1))
    yield ask("one", "depth 1, where the scale is 1", Size(3, 5, 1, 3, 2, 2), outputs="out weights")
    yield ask("odd", "depth 9", Size(3, 5, 9, 3, 2, 2), outputs="out", gradients=False)
    yield ask(
        "zero",
        "depth 0: all scores are 0, the mean",
        Size(3, 5, 0, 3, 2, 2),
        flags=("narrow",),
        same={"out=mean_of_v": "all scores are 0"},
        outputs="out lse weights",
    )
    yield ask(
        "zero-causal",
        "depth 0 and causal: running means",
        Size(4, 4, 0, 3, 2, 2),
        mask=CAUSAL,
        kills="causal=without_self",
    )
    yield ask(
        "value-zero",
        "value without columns",
        Size(3, 5, 4, 0, 2, 2),
        same=NOTHING,
        flags=("narrow",),
        outputs="out lse weights",
        gradients=False,
    )


_SIZES = Theme(
    "sizes",
    "Sizes of 0 and 1",
    "Any of Lq, Lk, batch, D, Dv may be 0: the result has its shape; without keys out is 0 and lse -inf.",
    "The last, empty or one-token batch of an epoch crashes the run.",
    "Dao-AILab/flash-attention/pull/2470 pytorch/pytorch/pull/175000 pytorch/pytorch/issues/81077 "
    "jax-ml/jax/issues/24491",
)


def _sizes() -> Iterator[Ask]:
    ask = _SIZES.ask
    yield ask(
        "no-keys",
        "no keys",
        Size(3, 0, 4, 2, 2, 2),
        same=NO_KEYS,
        outputs="out lse weights",
    )
    yield ask(
        "no-keys-sinks",
        "no keys, and sinks",
        Size(3, 0, 4, 2, 2, 2),
        sinks=True,
        same=NO_KEYS,
        outputs="out lse",
    )
    yield ask("no-queries", "no queries", Size(0, 4, 3, 2, 2, 2), same=NOTHING, outputs="out lse weights")
    yield ask(
        "no-batch",
        "a batch without items",
        Size(2, 4, 3, 2, 2, 2, (0,)),
        same=NOTHING,
        outputs="out lse",
        flags=("narrow",),
    )
    yield ask(
        "no-queries-causal",
        "no queries, and causal",
        Size(0, 4, 3, 2, 2, 2),
        mask=CAUSAL,
        same={**NOTHING, "mask=inverted": "there is nothing to tell apart"},
        outputs="out",
    )
    yield ask("one-query", "one query", Size(1, 3, 4, 2, 2, 2), outputs="out lse")
    yield ask(
        "one-key",
        "one key, which has all the weight",
        Size(3, 1, 4, 2, 2, 2),
        flags=("narrow",),
        same={"out=mean_of_v": "one key has all the weight"},
        outputs="out weights",
    )
    yield ask("one-head", "one head on its own axis", Size(3, 5, 4, 2, 1, 1), outputs="out lse")
    yield ask(
        "one-of-all",
        "one query, one key, depth 1",
        Size(1, 1, 1, 1, 1, 1),
        same={"out=mean_of_v": "one key has all the weight"},
        outputs="out",
        flags=("narrow",),
    )
    yield ask(
        "long",
        "65 queries and 33 keys",
        Size(65, 33, 3, 2),
        kills="softmax=over_queries",
        reports=LONG,
        outputs="out",
        gradients=False,
    )


_STRIDES = Theme(
    "strides",
    "Memory layouts",
    "The result depends on values alone: transposed, stepped, reversed, repeated memory gives the same.",
    "A view, a slice of a fused projection or a flipped array gives garbage.",
    "pytorch/pytorch/issues/112577 pytorch/pytorch/pull/187506",
    "memory=ignored",
)


def _strides() -> Iterator[Ask]:
    ask, size = _STRIDES.ask, Size(3, 5, 4, 2, 2, 2)
    plain = {"order": [0, 1, 2], "steps": [1, 1, 1]}
    layouts = {
        "transposed": [{"order": [0, 2, 1], "steps": [1, 1, 1]}] * 3,
        "heads-inside": [{"order": [1, 0, 2], "steps": [1, 1, 1]}] * 3,
        "gaps": [{"order": [0, 1, 2], "steps": [1, 1, 2]}, {"order": [0, 1, 2], "steps": [1, 2, 1]}, plain],
        "backwards": [{"order": [0, 1, 2], "steps": [1, -1, 1]}, {"order": [0, 1, 2], "steps": [1, 1, -1]}, plain],
        "steps": [plain, {"order": [2, 1, 0], "steps": [2, -2, 1]}, {"order": [1, 0, 2], "steps": [1, 1, -2]}],
    }
    for n, (name, order) in enumerate(layouts.items()):
        memory = dict(zip(("query", "key", "value"), order, strict=True))
        options: list[Arrays] = [{}, {"mask": CAUSAL}, {"bias": DENSE}, {"sinks": True}, {"outputs": "out lse weights"}]
        more = options[n]
        yield ask(
            name, f"{name} memory", size, memory={key: value for key, value in memory.items() if value != plain}, **more
        )
    yield ask(
        "repeated",
        "one key place repeated for all heads",
        Size(3, 5, 4, 2, 4, 4),
        memory={"key": {"order": [0, 1, 2], "steps": [0, 1, 1]}},
        edit=_repeated,
    )
    yield ask(
        "blhd",
        "layout (..., L, H, D) stored as (..., H, L, D)",
        Size(3, 5, 4, 2, 2, 2, (2,)),
        layout="BLHD",
        memory={name: {"order": [0, 2, 1, 3], "steps": [1, 1, 1, 1]} for name in ("query", "key", "value")},
    )
    yield ask(
        "plain",
        "plain arrays stored in columns",
        Size(4, 6, 3, 2),
        memory={name: {"order": [1, 0], "steps": [1, 1]} for name in ("query", "key", "value")},
        outputs="out",
    )


def _repeated(arrays: Arrays) -> None:
    arrays["key"][...] = arrays["key"][:1]
