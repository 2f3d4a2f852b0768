"""Options are looked at where a layer is made; whatever goes through a pytree goes through its constructor."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_core import Rotary, variants
from attention_np import init

SIZES: dict[str, dict[str, Any]] = {
    "BloomAttention": {"hidden_size": 6, "num_heads": 3},
    "DifferentialAttention": {"d_in": 6, "num_heads": 3, "d_head": 2},
    "GPT2Attention": {"n_embd": 6, "num_heads": 3},
    "GroupedQueryAttention": {"d_in": 6, "num_heads": 3, "d_head": 2},
    "LatentAttention": {
        "hidden_size": 6, "num_heads": 3, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 4,
        "kv_lora_rank": 5,
    },
    "LinearAttention": {"d_in": 6, "num_heads": 3, "d_head": 2},
    "MultiHeadAttention": {"embed_dim": 6, "num_heads": 3},
    "ProjectedAttention": {"d_in": 6, "num_heads": 3, "d_head": 2},
    "RMSNorm": {"d_in": 6},
    "T5Attention": {"d_model": 6, "num_heads": 3, "d_kv": 2},
}  # fmt: skip


def made(name: str, **options: Any) -> Any:
    return init(getattr(variants, name), np.random.default_rng(0), **{**SIZES[name], **options})


COUNT = [(2.0, TypeError, "must be a Python integer; got a float"), (0, ValueError, "must be at least 1; got 0"),
         (True, TypeError, "must be a Python integer; got a bool"), ("2", TypeError, "got a str")]  # fmt: skip
FLAG = [("no", TypeError, "must be True or False; got a str"), (1, TypeError, "must be True or False; got an int"),
        (None, TypeError, "must be True or False; got None")]  # fmt: skip
NUMBER = [("1", TypeError, "must be a Python number; got a str"), (True, TypeError, "a Python number; got a bool"),
          (float("nan"), ValueError, "must be finite; got nan"), (10**400, ValueError, "must be finite; got inf"),
          (np.ones(3), TypeError, "must be a Python number; got an array of float64")]  # fmt: skip
EPS = [
    (None, TypeError, "must be a Python number; got None"),
    (-1e-6, ValueError, "must be at least 0; got -1e-06"),
    *NUMBER,
]
CAP = [(0, ValueError, "must be positive; got 0.0"), (-5.0, ValueError, "must be positive; got -5.0"), *NUMBER]
ROTARY = [(10000.0, TypeError, "must be a Rotary; got a float"), ("default", TypeError, "must be a Rotary; got a str"),
          (False, TypeError, "must be a Rotary; got a bool")]  # fmt: skip
PAIRING = [("odd", ValueError, "must be one of neighbours, halves; got 'odd'"), (None, ValueError, "got None")]
NAMES = [(("q", "k", "v"), ValueError, "must be four names"), (3, ValueError, "must be four names"),
         ((1, [], 2, 3), ValueError, "must be four names")]  # fmt: skip

RULES: dict[str, dict[str, list[Any]]] = {
    "BloomAttention": {"num_heads": COUNT, "scale": NUMBER, "causal": FLAG},
    "DifferentialAttention": {
        "num_heads": COUNT, "num_kv_heads": COUNT, "lambda_init": NUMBER, "pairing": PAIRING, "rotary": ROTARY,
        "out_name": [(3, TypeError, "must be a string; got an int")], "norm_eps": EPS, "causal": FLAG,
    },
    "GPT2Attention": {"num_heads": COUNT, "scale": NUMBER},
    "GroupedQueryAttention": {
        "num_heads": COUNT, "num_kv_heads": COUNT, "rotary": ROTARY, "window": [*COUNT, (-1, ValueError, "got -1")],
        "softcap": CAP, "scale": NUMBER, "causal": FLAG, "query_gate": FLAG,
    },
    "LatentAttention": {"num_heads": COUNT, "rotary": ROTARY, "scale": NUMBER, "causal": FLAG},
    "LinearAttention": {"num_heads": COUNT, "causal": FLAG},
    "MultiHeadAttention": {"num_heads": COUNT, "add_zero_attn": FLAG},
    "ProjectedAttention": {"num_heads": COUNT, "names": NAMES, "scale": NUMBER, "causal": FLAG},
    "RMSNorm": {"eps": EPS, "offset": NUMBER},
    "T5Attention": {"num_heads": COUNT, "causal": FLAG, "max_distance": COUNT},
}  # fmt: skip


@pytest.mark.parametrize(("layer", "name"), [(layer, name) for layer, each in RULES.items() for name in each])
def test_a_wrong_option_is_said_by_name(layer: str, name: str) -> None:
    right = made(layer)
    for value, kind, words in RULES[layer][name]:
        with pytest.raises(kind, match=f"`{name}` .*{words}"):
            replace(right, **{name: value})
        if name == "names":
            continue  # `init` draws shapes by them first, and says so in its own words
        with pytest.raises((TypeError, ValueError), match=f"`{name}`"):
            made(layer, **{name: value})


@pytest.mark.parametrize("layer", RULES)
def test_every_option_has_a_rule(layer: str) -> None:
    assert set(getattr(variants, layer).option_names()) == set(RULES[layer])


def test_options_of_norms_that_the_layer_passes_on() -> None:
    for layer, name in [("GroupedQueryAttention", "norm_eps"), ("GroupedQueryAttention", "norm_offset"),
                        ("LatentAttention", "norm_eps"), ("DifferentialAttention", "norm_eps")]:  # fmt: skip
        cls, right = getattr(variants, layer), made(layer)
        kept = {n: getattr(right, n) for n in right.option_names() if n != name}
        with pytest.raises(TypeError, match=f"`{name}` must be a Python number; got None"):
            cls.from_state_dict(right.state_dict(), **kept, **{name: None})


def test_numbers_of_numpy_become_pythons() -> None:
    layer = replace(made("GroupedQueryAttention"), window=np.int64(4), scale=np.float32(0.5), softcap=30)
    assert [type(x) for x in (layer.window, layer.scale, layer.softcap)] == [int, float, float]
    again = variants.ProjectedAttention.from_state_dict(made("ProjectedAttention").state_dict(), num_heads=np.int64(3))
    assert type(again.num_heads) is int
    assert type(replace(made("ProjectedAttention"), names=list("abcd")).names) is tuple


@pytest.mark.parametrize("layer", RULES)
def test_fields_of_arrays_hold_whatever_a_pytree_puts_there(layer: str) -> None:
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax  # noqa: F401  makes layers pytrees

    right = made(layer)
    leaves, structure = jax.tree.flatten(right)
    for leaf in (object(), None, "a", jax.ShapeDtypeStruct((2,), np.float32)):
        again = jax.tree.unflatten(structure, [leaf] * len(leaves))
        assert [getattr(again, name) for name in right.option_names()] == [
            getattr(right, name) for name in right.option_names()
        ]
        assert jax.tree.structure(jax.tree.map(lambda x: 0, right)) == structure
    jax.eval_shape(lambda layer: jax.tree.map(lambda x: x, layer), right)


def test_layers_caches_and_states_print_in_a_line() -> None:
    from attention_core import cache

    layer = init(variants.GroupedQueryAttention, np.random.default_rng(0), **SIZES["GroupedQueryAttention"], window=3)
    assert repr(layer) == (
        "GroupedQueryAttention(q_proj=Linear(weight=<float32 (6, 6)>), k_proj=Linear(weight=<float32 (6, 6)>), "
        "v_proj=Linear(weight=<float32 (6, 6)>), o_proj=Linear(weight=<float32 (6, 6)>), "
        "num_heads=3, num_kv_heads=3, window=3, causal=True, query_gate=False)"
    )
    assert "rotary=Rotary(base=500.0, dim=None, interleaved=False, scaling=None)" in repr(
        replace(layer, rotary=Rotary(500.0))
    )
    held = layer.new_cache(cache.SlidingCache, batch=(2,))
    assert repr(held) == (
        "SlidingCache(keys=<float32 (2, 3, 3, 2)>, values=<float32 (2, 3, 3, 2)>, lengths=<int64 (2,)>, "
        "start=<int64 ()>, first=<int64 (2,)>, spare=0)"
    )
    x = np.ones((2, 4, 6), np.float32)
    shared = cache.SharedPrefixCache.of(layer.new_cache(cache.GrowingCache), held)
    assert repr(shared) == f"SharedPrefixCache(prefix={shared.prefix!r}, own={shared.own!r})"
    wrapper = init(
        variants.MultiHeadAttentionWrapper, np.random.default_rng(0), d_in=3, d_out_kq=2, d_out_v=4, num_heads=5
    )
    assert repr(wrapper) == (
        "MultiHeadAttentionWrapper(W_query=<float32 (5, 3, 2)>, W_key=<float32 (5, 3, 2)>, W_value=<float32 (5, 3, 4)>)"
    )
    assert (
        repr(made("LatentAttention").latents(x))
        == "Latents(compressed=<float32 (2, 4, 5)>, rotated=<float32 (2, 4, 2)>)"
    )
    assert repr(made("ProjectedAttention").keys_values(x)) == (
        "KeysValues(keys=<float32 (2, 3, 4, 2)>, values=<float32 (2, 3, 4, 2)>)"
    )
    state = made("LinearAttention")(x, return_state=True).state
    assert repr(state) == "LinearState(products=<float32 (2, 3, 2, 2)>, keys=<float32 (2, 3, 2)>)"


def test_a_layer_of_ones_own_prints_as_it_says_or_in_a_line() -> None:
    from dataclasses import dataclass

    from attention_core.variants import Layer

    @dataclass(frozen=True, eq=False)
    class Plain(Layer):
        weight: Any

    @dataclass(frozen=True, eq=False)
    class Telling(Plain):
        def __repr__(self) -> str:
            return "mine"

    assert repr(Plain(np.ones(3))) == "Plain(weight=<float64 (3,)>)"
    assert repr(Plain(None)) == "Plain()"
    assert repr(Telling(np.ones(3))) == "mine"
