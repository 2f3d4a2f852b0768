"""The decoders whose attention is recorded: grouped heads with rotation, latents, and the difference of two maps."""

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
UNROTATED = {"rope_theta": 1e30, "rope_type": "default"}

SCALED = Wrong("the scores are not scaled", lambda module: scaled_by(module, 1.0))
PERMUTED = Wrong("the queries' heads in another order", roll_heads("q_proj", HEADS))
INTERLEAVED = Wrong("neighbouring features turn", reorder(("q_proj", "k_proj"), other_rotation(DEPTH)))


def decoders() -> Iterator[Model]:
    """Return every decoder."""
    yield from _llama()
    yield from _windows()
    yield from _norms()
    yield _gpt_oss()
    yield from _latent()
    yield _differential()


def _run(embedding: Callable[[], Any], window: int | None = None, layer_type: str | None = None, first: int = 0) -> Run:
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
            wrong = {"rope=unscaled": Wrong("plain rotation", run=_run(partial(LlamaRotaryEmbedding, bare), first=40))}
        yield Model(
            name,
            f"transformers: LlamaAttention, rope_parameters {rope}",
            "GroupedQueryAttention",
            OPTIONS | {"rotary": rotary},
            {"x": (2, LENGTH, WIDTH)},
            partial(LlamaAttention, config, layer_idx=0),
            _run(partial(LlamaRotaryEmbedding, config), first=40 if name == "llama3" else 0),
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
        _run(table, window=4),
        {},
        {
            "window=off-by-one": Wrong("one key more in the window", run=_run(table, window=5)),
            "window=none": Wrong("every key before", run=_run(table)),
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
        _run(table, window=4),
        {},
        {
            "softcap=none": Wrong("the scores are not capped", uncapped),
            "scale=1/sqrt(d)": Wrong("the usual scale", lambda module: scaled_by(module, DEPTH**-0.5)),
            "window=off-by-one": Wrong("one key more in the window", run=_run(table, window=5)),
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
    local = _run(table, window=4, layer_type="sliding_attention")
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
                "the base of the global layers", run=_run(table, window=4, layer_type="full_attention")
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
        _run(table),
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
        _run(table, window=4),
        {},
        {
            "sinks=none": Wrong("no sinks", sinkless),
            "window=off-by-one": Wrong("one key more in the window", run=_run(table, window=5)),
            "scale=1": SCALED,
        },
    )


def _latent() -> Iterator[Model]:
    from transformers import DeepseekV2Config, DeepseekV3Config
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention, DeepseekV2RotaryEmbedding
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

    sizes = {
        "hidden_size": WIDTH, "num_attention_heads": 3, "num_key_value_heads": 3, "kv_lora_rank": 8,
        "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
    }  # fmt: skip
    for name, module, table, config in (
        (
            "deepseek-v2-lite",
            DeepseekV2Attention,
            DeepseekV2RotaryEmbedding,
            DeepseekV2Config(**sizes, q_lora_rank=None, **EAGER),
        ),
        (
            "deepseek-v3",
            DeepseekV3Attention,
            DeepseekV3RotaryEmbedding,
            DeepseekV3Config(**sizes, q_lora_rank=7, **EAGER),
        ),
    ):
        last = "q_proj" if config.q_lora_rank is None else "q_b_proj"

        def half_split(module: Any, last: str = last) -> None:
            order = _inverse(other_rotation(10, 4))
            reorder((last,), order)(module)
            reorder(("kv_a_proj_with_mqa",), _inverse(other_rotation(12, 4)))(module)

        yield Model(
            name,
            f"transformers: {module.__name__}, q_lora_rank {config.q_lora_rank}",
            "LatentAttention",
            {"num_heads": 3},
            {"x": (2, LENGTH, WIDTH)},
            partial(module, config, layer_idx=0),
            _run(partial(table, config)),
            {},
            {
                "scale=1/sqrt(d_nope)": Wrong(
                    "the scale of the part that does not turn", lambda m: scaled_by(m, 6**-0.5)
                ),
                "rotation=half-split": Wrong("features i and i + d/2 turn together", half_split),
                "query=heads-permuted": Wrong("the queries' heads in another order", roll_heads(last, 3)),
            },
        )


def _inverse(order: Callable[[int], list[int]]) -> Callable[[int], list[int]]:
    return lambda rows: [order(rows).index(row) for row in range(rows)]


def _heads_in_order(heads: list[int]) -> Callable[[int], list[int]]:
    return lambda _: [h * DEPTH + feature for h in heads for feature in range(DEPTH)]


def _differential() -> Model:
    from transformers import DiffLlamaConfig
    from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, DiffLlamaRotaryEmbedding

    heads, groups = 8, 4
    shape = SHAPE | {"num_attention_heads": heads, "num_key_value_heads": groups}
    config = DiffLlamaConfig(**shape, rms_norm_eps=1e-5, **EAGER)
    table = partial(DiffLlamaRotaryEmbedding, config)
    pairs = [*range(0, 8, 2), *range(1, 8, 2)]

    def neighbours(module: Any) -> None:
        for name, count in (("q_proj", heads), ("k_proj", groups), ("v_proj", groups)):
            reorder((name,), _heads_in_order([h for h in pairs if h < count]))(module)

    def plain(module: Any) -> None:
        module.lambda_init = 0.0

    return Model(
        "diffllama",
        "transformers: DiffLlamaAttention of layer 2",
        "DifferentialAttention",
        {
            "num_heads": heads // 2, "num_kv_heads": groups // 2, "pairing": "halves", "norm_eps": 1e-5,
            "lambda_init_of": 2, "rotary": {"base": 10000.0},
        },
        {"x": (2, LENGTH, WIDTH)},
        partial(DiffLlamaAttention, config, layer_idx=2),
        _run(table),
        {},
        {
            "pairing=neighbours": Wrong("heads 2 h and 2 h + 1 are a pair", neighbours),
            "lambda_init=0": Wrong("lambda without its constant", plain),
            "scale=1": SCALED,
        },
    )  # fmt: skip
