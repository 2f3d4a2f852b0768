"""The recorded decoders whose attention is no plain softmax of heads: latents, and the difference of two maps."""

from collections.abc import Callable, Iterator
from functools import partial
from math import log, sqrt
from typing import Any

from conformance.record.models import Model, Wrong
from conformance.record.models_decoders import DEPTH, EAGER, LENGTH, SCALED, SHAPE, WIDTH, run_with
from conformance.record.models_tools import other_rotation, reorder, roll_heads, scaled_by


def latent() -> Iterator[Model]:
    """Return DeepSeek's, whose queries are projected at once, or by way of a small vector."""
    from transformers import DeepseekV2Config, DeepseekV3Config
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention, DeepseekV2RotaryEmbedding
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

    sizes = {
        "hidden_size": WIDTH, "num_attention_heads": 3, "num_key_value_heads": 3, "kv_lora_rank": 8,
        "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
    }  # fmt: skip
    yarn = {
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 8.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 32, "mscale": 1.0, "mscale_all_dim": 1.0,
    }  # fmt: skip
    scaling = {"yarn": {"args": [4.0, 32], "beta_fast": 8.0, "mscale": 1.0, "mscale_all_dim": 1.0}}
    stretched = {
        "rotary": {"base": 100.0, "interleaved": True, "scaling": scaling},
        "scale": (0.1 * log(4.0) + 1) ** 2 / sqrt(10),
    }
    for name, module, table, config, options in (
        (
            "deepseek-v2-lite",
            DeepseekV2Attention,
            DeepseekV2RotaryEmbedding,
            DeepseekV2Config(**sizes, q_lora_rank=None, **EAGER),
            {},
        ),
        (
            "deepseek-v3",
            DeepseekV3Attention,
            DeepseekV3RotaryEmbedding,
            DeepseekV3Config(**sizes, q_lora_rank=7, **EAGER),
            {},
        ),
        (
            "deepseek-v3-yarn",
            DeepseekV3Attention,
            DeepseekV3RotaryEmbedding,
            DeepseekV3Config(**sizes, q_lora_rank=7, rope_parameters=yarn, **EAGER),
            stretched,
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
            {"num_heads": 3} | options,
            {"x": (2, LENGTH, WIDTH)},
            partial(module, config, layer_idx=0),
            run_with(partial(table, config)),
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


def differential() -> Model:
    """Return DiffLlama's."""
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
        run_with(table),
        {},
        {
            "pairing=neighbours": Wrong("heads 2 h and 2 h + 1 are a pair", neighbours),
            "lambda_init=0": Wrong("lambda without its constant", plain),
            "scale=1": SCALED,
        },
    )  # fmt: skip
