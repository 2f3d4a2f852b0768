"""The models whose attention is recorded: encoders, decoders with their own kinds of position, and cross-attention."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from conformance.record.models import Model, Wrong
from conformance.record.models_decoders import decoders
from conformance.record.models_latent import differential, latent
from conformance.record.models_rotations import rotations
from conformance.record.models_tools import (
    additive,
    by_head_as_thirds,
    causal_mask,
    length_mask,
    roll_columns,
    roll_heads,
    scaled_by,
    thirds_as_by_head,
)
from conformance.record.portable import portable_torch

LENGTHS = [4, 6]  # of keys, in a batch of two


def models() -> Iterator[Model]:
    """Return every case."""
    portable_torch()
    yield from _torch_modules()
    yield from _encoders()
    yield from _gpt2()
    yield from _bloom()
    yield from _t5()
    yield from _cross()
    yield from decoders()
    yield from rotations()
    yield from latent()
    yield differential()


def _torch_modules() -> Iterator[Model]:
    import torch

    def run(module: Any, x: dict[str, Any]) -> Any:
        padding = torch.arange(x["key"].shape[1]) >= torch.tensor(LENGTHS)[:, None]
        return module(x["query"], x["key"], x["value"], key_padding_mask=padding, need_weights=False)[0]

    def shown(module: Any, x: dict[str, Any]) -> Any:
        return module(x["query"], x["key"], x["value"], need_weights=False)[0]

    for name, options, depths in (
        ("torch-mha", {}, (12, 12)),
        ("torch-mha-every-option", {"kdim": 10, "vdim": 8, "add_bias_kv": True, "add_zero_attn": True}, (10, 8)),
    ):
        yield Model(
            name,
            "torch.nn.MultiheadAttention",
            "MultiHeadAttention",
            {"num_heads": 4, "add_zero_attn": "add_zero_attn" in options},
            {"query": (2, 5, 12), "key": (2, 6, depths[0]), "value": (2, 6, depths[1])},
            partial(torch.nn.MultiheadAttention, 12, 4, batch_first=True, **options),
            run,
            {"mask": {"key_lengths": LENGTHS}},
            {
                "padding=seen": Wrong("the padding is attended to", run=shown),
                "out=heads-permuted": Wrong("the output's heads in another order", roll_columns("out_proj.weight", 4)),
            },
        )


def _encoders() -> Iterator[Model]:
    import torch
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertSelfAttention

    def build() -> Any:
        config = BertConfig(hidden_size=12, num_attention_heads=3, attn_implementation="eager")
        module = torch.nn.Module()
        module.self = BertSelfAttention(config)
        module.output = torch.nn.Module()
        module.output.dense = torch.nn.Linear(12, 12)
        return module

    def run(module: Any, x: dict[str, Any], seen: bool = False) -> Any:
        mask = None if seen else additive(length_mask(6, LENGTHS), x["x"])
        return module.output.dense(module.self(x["x"], attention_mask=mask)[0])

    yield Model(
        "bert",
        "transformers: BertSelfAttention, then BertSelfOutput's dense",
        "ProjectedAttention",
        {"num_heads": 3, "names": ["self.query", "self.key", "self.value", "output.dense"]},
        {"x": (2, 6, 12)},
        build,
        run,
        {"mask": {"key_lengths": LENGTHS}},
        {
            "scale=1": Wrong("the scores are not scaled", lambda module: scaled_by(module.self, 1.0)),
            "padding=seen": Wrong("the padding is attended to", run=partial(run, seen=True)),
            "query=heads-permuted": Wrong("the queries' heads in another order", roll_heads("self.query", 3)),
        },
    )


def _gpt2() -> Iterator[Model]:
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    config = GPT2Config(n_embd=12, n_head=3, attn_implementation="eager")

    def run(module: Any, x: dict[str, Any], future: bool = False) -> Any:
        return module(x["x"], attention_mask=None if future else additive(causal_mask(5), x["x"]))[0]

    def untransposed(module: Any) -> None:
        module.c_proj.weight.data = module.c_proj.weight.data.T.contiguous()

    yield Model(
        "gpt2",
        "transformers: GPT2Attention",
        "GPT2Attention",
        {"num_heads": 3},
        {"x": (2, 5, 12)},
        lambda: GPT2Attention(config, layer_idx=0),
        run,
        {},
        {
            "scale=1": Wrong("the scores are not scaled", lambda module: scaled_by(module, 1.0)),
            "mask=none": Wrong("the future is seen", run=partial(run, future=True)),
            "weight=(out, in)": Wrong("c_proj is read as a Linear", untransposed),
            "fused=by-head": Wrong("c_attn is read head by head", by_head_as_thirds("c_attn", 3)),
        },
    )

    def across(module: Any, x: dict[str, Any]) -> Any:
        return module(x["x"], encoder_hidden_states=x["x_2"])[0]

    yield Model(
        "gpt2-cross",
        "transformers: GPT2Attention(is_cross_attention=True)",
        "GPT2Attention",
        {"num_heads": 3},
        {"x": (2, 5, 12), "x_2": (2, 7, 12)},
        lambda: GPT2Attention(config, is_cross_attention=True, layer_idx=0),
        across,
        {},
        {"scale=1": Wrong("the scores are not scaled", lambda module: scaled_by(module, 1.0))},
    )


def _bloom() -> Iterator[Model]:
    import torch
    from transformers import BloomConfig
    from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor

    config = BloomConfig(hidden_size=12, n_head=6, attn_implementation="eager")

    def run(module: Any, x: dict[str, Any], heads: int = 6, factor: float = 1.0) -> Any:
        states = x["x"]
        slopes = build_alibi_tensor(torch.ones(2, 5), heads, states.dtype).reshape(2, heads, 1, 5)
        slopes = factor * slopes[:, :6].reshape(12, 1, 5)
        mask = additive(causal_mask(5), states)
        return module(states, torch.zeros_like(states), alibi=slopes, attention_mask=mask)[0]

    yield Model(
        "bloom",
        "transformers: BloomAttention, without its residual connection",
        "BloomAttention",
        {"num_heads": 6},
        {"x": (2, 5, 12)},
        lambda: BloomAttention(config, layer_idx=0),
        run,
        {},
        {
            "alibi=none": Wrong("no bias by distance", run=partial(run, factor=0.0)),
            "alibi=next-power": Wrong("the first slopes of eight heads for six", run=partial(run, heads=8)),
            "fused=thirds": Wrong("all queries come first in query_key_value", thirds_as_by_head("query_key_value", 6)),
        },
    )


def _t5() -> Iterator[Model]:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    def build(decoder: bool) -> Any:
        config = T5Config(
            d_model=10, d_kv=4, num_heads=3, relative_attention_num_buckets=8, relative_attention_max_distance=12,
            is_decoder=decoder, attn_implementation="eager",
        )  # fmt: skip
        return T5Attention(config, has_relative_attention_bias=True, layer_idx=0)

    def run(module: Any, x: dict[str, Any], causal: bool = False) -> Any:
        return module(x["x"], mask=additive(causal_mask(9), x["x"]) if causal else None)[0]

    for name, decoder in (("t5-encoder", False), ("t5-decoder", True)):
        other = "bidirectional" if decoder else "one side"

        def turned(module: Any) -> None:
            module.is_decoder = not module.is_decoder

        yield Model(
            name,
            f"transformers: T5Attention, {'decoder' if decoder else 'encoder'}",
            "T5Attention",
            {"num_heads": 3, "max_distance": 12, "causal": decoder},
            {"x": (2, 9, 10)},
            partial(build, decoder),
            partial(run, causal=decoder),
            {},
            {
                "scale=1/sqrt(d)": Wrong("the scores are scaled", lambda module: scaled_by(module, 0.5)),
                "buckets=other": Wrong(f"the buckets count {other}", turned),
                "table=heads-permuted": Wrong(
                    "the table's heads in another order", roll_columns("relative_attention_bias.weight", 3)
                ),
            },
        )


def _cross() -> Iterator[Model]:
    from diffusers.models.attention_processor import Attention, AttnProcessor
    from transformers import BartConfig, WhisperConfig
    from transformers.models.bart.modeling_bart import BartAttention
    from transformers.models.whisper.modeling_whisper import WhisperAttention

    def diffusion(module: Any, x: dict[str, Any]) -> Any:
        return module(x["x"], encoder_hidden_states=x["x_2"])

    yield Model(
        "stable-diffusion-cross",
        "diffusers: Attention(query_dim, cross_attention_dim, heads, dim_head), attn2 of a UNet's block",
        "ProjectedAttention",
        {"num_heads": 3, "names": ["to_q", "to_k", "to_v", "to_out.0"]},
        {"x": (2, 9, 10), "x_2": (2, 7, 8)},
        lambda: Attention(query_dim=10, cross_attention_dim=8, heads=3, dim_head=4, processor=AttnProcessor()),
        diffusion,
        {},
        {
            "scale=1": Wrong("the scores are not scaled", lambda module: setattr(module, "scale", 1.0)),
            "query=heads-permuted": Wrong("the queries' heads in another order", roll_heads("to_q", 3)),
        },
    )

    def across(module: Any, x: dict[str, Any], seen: bool = False) -> Any:
        mask = None if seen else additive(length_mask(6, LENGTHS), x["x"])
        return module(x["x"], key_value_states=x["x_2"], attention_mask=mask)[0]

    whisper = WhisperConfig(attn_implementation="eager")
    yield Model(
        "whisper-cross",
        "transformers: WhisperAttention, the decoder's encoder_attn",
        "ProjectedAttention",
        {"num_heads": 3},
        {"x": (2, 5, 12), "x_2": (2, 6, 12)},
        lambda: WhisperAttention(12, 3, config=whisper, layer_idx=0),
        across,
        {"mask": {"key_lengths": LENGTHS}},
        {
            "scale=1": Wrong("the queries are not scaled", lambda module: scaled_by(module, 1.0)),
            "padding=seen": Wrong("the padding is attended to", run=partial(across, seen=True)),
            "key=heads-permuted": Wrong("the keys' heads in another order", roll_heads("k_proj", 3)),
        },
    )

    def backwards(module: Any, x: dict[str, Any], future: bool = False) -> Any:
        return module(x["x"], attention_mask=None if future else additive(causal_mask(5), x["x"]))[0]

    bart = BartConfig(attn_implementation="eager")
    yield Model(
        "bart-decoder",
        "transformers: BartAttention, the decoder's self_attn",
        "ProjectedAttention",
        {"num_heads": 4, "causal": True},
        {"x": (2, 5, 12)},
        lambda: BartAttention(12, 4, config=bart, layer_idx=0),
        backwards,
        {},
        {
            "scale=1": Wrong("the scores are not scaled", lambda module: scaled_by(module, 1.0)),
            "mask=none": Wrong("the future is seen", run=partial(backwards, future=True)),
        },
    )
