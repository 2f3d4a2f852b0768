"""The recorded decoders whose rotation, norms or biases are others than Llama's, each an option of one layer."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from conformance.record.models import Model, Wrong
from conformance.record.models_decoders import DEPTH, EAGER, HEADS, LENGTH, OPTIONS, PERMUTED, SHAPE, WIDTH, run_with
from conformance.record.models_tools import other_rotation, reorder

ROTATED = ("q_proj", "k_proj")


class Family(NamedTuple):
    """A model of transformers by the names of its module and classes, and our options for it."""

    name: str
    module: str
    prefix: str
    config: dict[str, Any]
    options: dict[str, Any]
    wrong: dict[str, Wrong]


def rotations() -> Iterator[Model]:
    """Return every family."""
    for family in _families():
        transformers = import_module("transformers")
        module = import_module(f"transformers.models.{family.module}.modeling_{family.module}")
        config = getattr(transformers, f"{family.prefix}Config")(**(SHAPE | EAGER | family.config))
        attention, table = (getattr(module, family.prefix + name) for name in ("Attention", "RotaryEmbedding"))
        yield Model(
            family.name,
            f"transformers: {family.prefix}Attention",
            "GroupedQueryAttention",
            OPTIONS | family.options,
            {"x": (2, LENGTH, WIDTH)},
            partial(attention, config, layer_idx=0),
            run_with(partial(table, config)),
            {},
            family.wrong,
        )


def _families() -> Iterator[Family]:
    half_split = Wrong("features i and i + d/2 turn", reorder(ROTATED, _split(DEPTH)))
    yield Family(
        "command-r",
        "cohere",
        "Cohere",
        {"rope_parameters": _rope(8e6)},
        {"rotary": {"base": 8e6, "interleaved": True}},
        {"rotation=half-split": half_split},
    )
    yield Family(
        "glm4",
        "glm4",
        "Glm4",
        {"rope_parameters": _rope(1e4, partial_rotary_factor=0.67), "attention_bias": True, "pad_token_id": 0},
        {"rotary": {"base": 1e4, "dim": 4, "interleaved": True}},
        {
            "rotation=half-split": Wrong("features i and i + d/2 turn", reorder(ROTATED, _split(DEPTH, 4))),
            "bias=none": Wrong("the projections without their biases", _without_biases),
        },
    )
    yield Family(
        "olmo2",
        "olmo2",
        "Olmo2",
        {"rope_parameters": _rope(5e5), "rms_norm_eps": 1e-6},
        {"rotary": {"base": 5e5}, "norm_eps": 1e-6},
        {"norm=a-head": Wrong("each head is normalised by itself", _normed_by_head), "query=heads-permuted": PERMUTED},
    )
    yield Family(
        "qwen2",
        "qwen2",
        "Qwen2",
        {"rope_parameters": _rope(1e6)},
        {"rotary": {"base": 1e6}},
        {"bias=none": Wrong("the projections without their biases", _without_biases)},
    )
    yield Family(
        "qwen3-next",
        "qwen3_next",
        "Qwen3Next",
        {"rope_parameters": _rope(1e7, partial_rotary_factor=0.67), "head_dim": DEPTH},
        {"rotary": {"base": 1e7, "dim": 4}, "query_gate": True, "norm_offset": 1.0},
        {"gate=thirds": Wrong("all queries come before all gates in q_proj", _queries_then_gates)},
    )


def _rope(base: float, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": base, **more}


def _split(depth: int, turning: int | None = None) -> Callable[[int], list[int]]:
    """The order of rows under which interleaved rotation pairs what half-split rotation pairs; the first ones turn."""
    count = depth if turning is None else turning
    pairs = other_rotation(count)(count)
    head = [pairs.index(feature) for feature in range(count)] + list(range(count, depth))
    return lambda rows: [start + feature for start in range(0, rows, depth) for feature in head]


def _without_biases(module: Any) -> None:
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            parameter.data = parameter.data * 0


def _normed_by_head(module: Any) -> None:
    for name in ("q_norm", "k_norm"):
        norm = getattr(module, name)

        def by_head(x: Any, norm: Any = norm) -> Any:
            heads = x.unflatten(-1, (-1, DEPTH))
            size = (heads.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()
            return (heads * size).flatten(-2) * norm.weight

        norm.forward = by_head


def _queries_then_gates(module: Any) -> None:
    order = [part * HEADS * DEPTH + h * DEPTH + j for h in range(HEADS) for part in range(2) for j in range(DEPTH)]
    reorder(("q_proj",), lambda _: order)(module)
