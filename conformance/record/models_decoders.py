"""The decoders of grouped heads with rotation whose attention is recorded."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from conformance.record.models import Model, Run, Wrong
from conformance.record.models_tools import (
    additive,
    causal_mask,
    other_rotation,
    reorder,
    roll_heads,
    scaled_by,
)

LENGTH, WIDTH, HEADS, GROUPS, DEPTH = 9, 12, 4, 2, 6
SHAPE = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": DEPTH}
OPTIONS: dict[str, Any] = {"num_heads": HEADS, "num_kv_heads": GROUPS}
EAGER = {"attn_implementation": "eager"}

SCALED = Wrong("the scores are not scaled", lambda module: scaled_by(module, 1.0))
PERMUTED = Wrong("the queries' heads in another order", roll_heads("q_proj", HEADS))
INTERLEAVED = Wrong("neighbouring features turn", reorder(("q_proj", "k_proj"), other_rotation(DEPTH)))


def decoders() -> Iterator[Model]:
    """Return every decoder."""
    yield from _llama()
    yield from _windows()
    yield from _norms()
    yield _gpt_oss()


def run_with(
    embedding: Callable[[], Any], window: int | None = None, layer_type: str | None = None, first: int = 0
) -> Run:
    """Run a module as its decoder layer does: tables of cosines and sines, and a mask that is added."""

    def run(module: Any, x: dict[str, Any]) -> Any:
        states = x["x"]
        positions = torch.arange(first, first + LENGTH)[None]
        typed = {} if layer_type is None else {"layer_type": layer_type}
        tables = embedding()(states, positions, **typed)
        mask = additive(causal_mask(LENGTH, window), states)
        return module(states, position_embeddings=tables, attention_mask=mask)[0]

    return run


def _llama() -> Iterator[Model]:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    llama3 = {
        "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    scaling = {"llama3": {"args": [8.0, 1.0, 4.0], "original_length": 64}}
    for name, rope, rotary in (
        ("llama", plain, {"base": 10000.0}),
        ("llama3", llama3, {"base": 100.0, "scaling": scaling}),
    ):
        config = LlamaConfig(**SHAPE, rope_parameters=rope, **EAGER)
        bare = LlamaConfig(**SHAPE, rope_parameters={"rope_type": "default", "rope_theta": rope["rope_theta"]}, **EAGER)
        wrong = {"scale=1": SCALED, "query=heads-permuted": PERMUTED, "rotation=interleaved": INTERLEAVED}
        if name == "llama3":
            wrong = {
                "rope=unscaled": Wrong("plain rotation", run=run_with(partial(LlamaRotaryEmbedding, bare), first=40))
            }
        yield Model(
            name,
            f"transformers: LlamaAttention, rope_parameters {rope}",
            "GroupedQueryAttention",
            OPTIONS | {"rotary": rotary},
            {"x": (2, LENGTH, WIDTH)},
            partial(LlamaAttention, config, layer_idx=0),
            run_with(partial(LlamaRotaryEmbedding, config), first=40 if name == "llama3" else 0),
            {"positions": 40} if name == "llama3" else {},
            wrong,
        )


def _windows() -> Iterator[Model]:
    from transformers import Gemma2Config, MistralConfig
    from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention, Gemma2RotaryEmbedding
    from transformers.models.mistral.modeling_mistral import MistralAttention, MistralRotaryEmbedding

    mistral = MistralConfig(**SHAPE, sliding_window=4, **EAGER)
    table = partial(MistralRotaryEmbedding, mistral)
    yield Model(
        "mistral",
        "transformers: MistralAttention, sliding_window 4",
        "GroupedQueryAttention",
        OPTIONS | {"window": 4, "rotary": {"base": 10000.0}},
        {"x": (2, LENGTH, WIDTH)},
        partial(MistralAttention, mistral, layer_idx=0),
        run_with(table, window=4),
        {},
        {
            "window=off-by-one": Wrong("one key more in the window", run=run_with(table, window=5)),
            "window=none": Wrong("every key before", run=run_with(table)),
            "rotation=interleaved": INTERLEAVED,
        },
    )

    gemma = Gemma2Config(**SHAPE, query_pre_attn_scalar=9, attn_logit_softcapping=2.0, sliding_window=4, **EAGER)
    table = partial(Gemma2RotaryEmbedding, gemma)

    def uncapped(module: Any) -> None:
        module.attn_logit_softcapping = None

    yield Model(
        "gemma2",
        "transformers: Gemma2Attention, query_pre_attn_scalar 9, attn_logit_softcapping 2, sliding_window 4",
        "GroupedQueryAttention",
        OPTIONS | {"window": 4, "softcap": 2.0, "scale": 9**-0.5, "rotary": {"base": 10000.0}},
        {"x": (2, LENGTH, WIDTH)},
        partial(Gemma2Attention, gemma, layer_idx=0),
        run_with(table, window=4),
        {},
        {
            "softcap=none": Wrong("the scores are not capped", uncapped),
            "scale=1/sqrt(d)": Wrong("the usual scale", lambda module: scaled_by(module, DEPTH**-0.5)),
            "window=off-by-one": Wrong("one key more in the window", run=run_with(table, window=5)),
        },
    )


def _norms() -> Iterator[Model]:
    from transformers import Gemma3TextConfig, Qwen3Config
    from transformers.models.gemma3.modeling_gemma3 import Gemma3Attention, Gemma3RotaryEmbedding
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

    def unnormed(module: Any) -> None:
        module.q_norm = module.k_norm = torch.nn.Identity()

    def without_offset(module: Any) -> None:
        for norm in (module.q_norm, module.k_norm):
            norm.weight.data = norm.weight.data - 1

    gemma = Gemma3TextConfig(**SHAPE, query_pre_attn_scalar=9, sliding_window=4, num_hidden_layers=6, **EAGER)
    table = partial(Gemma3RotaryEmbedding, gemma)
    local = run_with(table, window=4, layer_type="sliding_attention")
    yield Model(
        "gemma3",
        "transformers: Gemma3Attention of a layer with a window of 4, query_pre_attn_scalar 9",
        "GroupedQueryAttention",
        OPTIONS | {"window": 4, "scale": 9**-0.5, "norm_offset": 1.0, "rotary": {"base": 10000.0}},
        {"x": (2, LENGTH, WIDTH)},
        partial(Gemma3Attention, gemma, layer_idx=0),
        local,
        {},
        {
            "norm=none": Wrong("queries and keys are not normalised", unnormed),
            "norm=offset-0": Wrong("the norm's weight is not the difference from 1", without_offset),
            "rotation=global": Wrong(
                "the base of the global layers", run=run_with(table, window=4, layer_type="full_attention")
            ),
        },
    )

    qwen = Qwen3Config(**SHAPE, **EAGER)
    table = partial(Qwen3RotaryEmbedding, qwen)
    yield Model(
        "qwen3",
        "transformers: Qwen3Attention",
        "GroupedQueryAttention",
        OPTIONS | {"rotary": {"base": 10000.0}},
        {"x": (2, LENGTH, WIDTH)},
        partial(Qwen3Attention, qwen, layer_idx=0),
        run_with(table),
        {},
        {
            "norm=none": Wrong("queries and keys are not normalised", unnormed),
            "scale=1": SCALED,
            "query=heads-permuted": PERMUTED,
        },
    )


def _gpt_oss() -> Model:
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding

    yarn = {
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 8.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    config = GptOssConfig(**SHAPE, rope_parameters=yarn, sliding_window=4, num_hidden_layers=2, **EAGER)
    table = partial(GptOssRotaryEmbedding, config)

    def sinkless(module: Any) -> None:
        module.sinks.data = torch.full_like(module.sinks, -torch.inf)

    scaling = {"yarn": {"args": [4.0, 32], "beta_fast": 8.0, "beta_slow": 1.0, "truncate": False}}
    return Model(
        "gpt-oss",
        "transformers: GptOssAttention of a layer with a window of 4, YaRN 4 of 32, beta_fast 8",
        "GroupedQueryAttention",
        OPTIONS | {"window": 4, "rotary": {"base": 100.0, "scaling": scaling}},
        {"x": (2, LENGTH, WIDTH)},
        partial(GptOssAttention, config, layer_idx=0),
        run_with(table, window=4),
        {},
        {
            "sinks=none": Wrong("no sinks", sinkless),
            "window=off-by-one": Wrong("one key more in the window", run=run_with(table, window=5)),
            "scale=1": SCALED,
        },
    )
