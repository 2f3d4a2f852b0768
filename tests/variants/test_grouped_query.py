"""Grouped-query attention is what the loops say, with each model's options, on every library."""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import attention_np
from attention_core import GroupedQueryAttention, Rotary, biases, masks, segment_ids, segment_positions
from attention_core.variants import RMSNorm
from tests.variants.decoder_loops import Spec, grouped
from tests.variants.samples import DTYPES, EPS, LIBRARIES, LIGHT, Library, has_bfloat16

D_IN, D_HEAD, LENGTH = 12, 8, 7
SHARED = {"d_in": D_IN, "d_head": D_HEAD}
SLOW = {each: [pytest.mark.slow] for each in ("jax-float32", "jax-bfloat16", "jax-jit-float32", "jax-jit-bfloat16")}
MODELS = {
    "llama": (Spec(), {}),
    "multi-query": (Spec(kv_heads=1, base=None), {"bias": True}),
    "mistral": (Spec(window=3), {}),
    "gemma 2": (Spec(softcap=1.5, scale=0.7, interleaved=True), {}),
    "gemma 3": (Spec(window=2, offset=1.0, eps=1e-3), {"qk_norm": True}),
    "gpt-oss": (Spec(dim=4, window=4), {"bias": True, "sinks": True}),
    "qwen 3-next": (Spec(dim=2, query_gate=True), {"qk_norm": True}),
    "gated": (Spec(), {"gate": True, "bias": True, "out_bias": False}),
    "encoder": (Spec(causal=False, window=3), {}),
}
LOW_PRECISION = [
    pytest.param(*each.values, dtype, id=f"{each.id}-{dtype}", marks=[*each.marks, *SLOW.get(f"{each.id}-{dtype}", [])])
    for each in LIBRARIES
    for dtype in ("float32", "bfloat16")
]
every_model = pytest.mark.parametrize("model", MODELS)


def options(spec: Spec) -> dict[str, Any]:
    rotary = None if spec.base is None else Rotary(spec.base, dim=spec.dim, interleaved=spec.interleaved)
    names = ("window", "softcap", "scale", "causal", "query_gate")
    return {"num_heads": spec.heads, "num_kv_heads": spec.kv_heads, "rotary": rotary} | {
        name: getattr(spec, name) for name in names
    }


def weights(model: str, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    spec, switches = MODELS[model]
    rng = np.random.default_rng(sum(map(ord, model)))
    named = GroupedQueryAttention.parameters(**SHARED, **options(spec), **switches)
    return {name: rng.normal(0.1, 0.5, each.shape).astype(dtype) for name, each in named.items()}


def make(state: dict[str, Any], spec: Spec, library: Library | None = None) -> GroupedQueryAttention:
    put = library.put if library else np.asarray
    return GroupedQueryAttention.from_state_dict(
        {name: put(x) for name, x in state.items()}, norm_eps=spec.eps, norm_offset=spec.offset, **options(spec)
    )


def tokens(batch: tuple[int, ...] = (), dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(len(batch)).normal(size=(*batch, LENGTH, D_IN)).astype(dtype)


@every_model
@pytest.mark.parametrize("library", LIGHT)
def test_each_model_is_what_the_loops_say(model: str, library: Library) -> None:
    spec, state = MODELS[model][0], weights(model)
    x = tokens()
    out = library.get(make(state, spec, library)(library.put(x)))
    np.testing.assert_allclose(out, grouped(x, state, spec), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("library", "dtype"), LOW_PRECISION)
def test_low_precision_and_a_batch(library: Library, dtype: str) -> None:
    if dtype == "bfloat16" and not has_bfloat16(library.name):
        pytest.skip("array_api_strict has no bfloat16")
    spec, state = MODELS["qwen 3-next"][0], weights("qwen 3-next", DTYPES[dtype])
    x = tokens((2,), DTYPES[dtype])
    with library.precision(dtype):
        out = library.call(make(state, spec, library), library.put(x))
        assert dtype in str(out.dtype)
        got = library.get(out)
    expected = np.stack([grouped(item, state, spec) for item in x])
    np.testing.assert_allclose(got, expected, rtol=0, atol=24 * EPS[dtype] * np.abs(expected).max())


def test_norms_as_long_as_all_heads_together_take_them_as_one_vector() -> None:
    spec, state = Spec(), weights("llama")
    rng = np.random.default_rng(3)
    state |= {"q_norm.weight": rng.normal(size=6 * D_HEAD), "k_norm.weight": rng.normal(size=2 * D_HEAD)}
    np.testing.assert_allclose(make(state, spec)(tokens()), grouped(tokens(), state, spec), rtol=0, atol=1e-12)


def test_a_gate_may_be_one_number_a_head_and_is_safe_at_both_ends() -> None:
    spec, state = Spec(), weights("llama")
    state["gate_proj.weight"] = 400 * np.random.default_rng(4).normal(size=(6, D_IN))
    with np.errstate(over="ignore"):
        expected = grouped(tokens(), state, spec)
    np.testing.assert_allclose(make(state, spec)(tokens()), expected, rtol=0, atol=1e-12)


def test_values_may_have_another_depth() -> None:
    spec, state = Spec(), weights("llama")
    rng = np.random.default_rng(5)
    state |= {"v_proj.weight": rng.normal(size=(2 * 3, D_IN)), "o_proj.weight": rng.normal(size=(5, 6 * 3))}
    out = make(state, spec)(tokens((2,)))
    assert out.shape == (2, LENGTH, 5)
    np.testing.assert_allclose(out[1], grouped(tokens((2,))[1], state, spec), rtol=0, atol=1e-12)


def test_masks_and_biases_go_by_the_positions() -> None:
    spec, state = MODELS["mistral"][0], weights("mistral")
    layer, x, places = make(state, spec), tokens(), np.array([3, 4, 5, 9, 10, 11, 12])
    expected = grouped(x, state, spec, places, lambda head, query, key: -(2.0 ** -(head + 1)) * abs(query - key))
    slopes = biases.alibi(np.array([2.0 ** -(head + 1) for head in range(6)]))
    np.testing.assert_allclose(layer(x, positions=places, bias=slopes), expected, rtol=0, atol=1e-12)
    later = grouped(x, state, spec, range(3, 3 + LENGTH))
    np.testing.assert_allclose(layer(x, positions=3), later, rtol=0, atol=1e-12)
    narrowed = grouped(x, state, replace(spec, window=1))
    np.testing.assert_allclose(layer(x, mask=np.eye(LENGTH, dtype=bool)), narrowed, rtol=0, atol=1e-12)
    np.testing.assert_allclose(layer(x, mask=masks.sliding_window(0, None)), narrowed, rtol=0, atol=1e-12)


def test_packed_sequences_are_separate_calls() -> None:
    spec, state, offsets = MODELS["gpt-oss"][0], weights("gpt-oss"), np.array([0, 3, 7])
    ids, places = segment_ids(offsets, LENGTH), segment_positions(offsets, LENGTH)
    out = make(state, spec)(tokens(), mask=masks.segments(ids), positions=places)
    expected = [grouped(part, state, spec) for part in (tokens()[:3], tokens()[3:])]
    np.testing.assert_allclose(out, np.concatenate(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("padding", ["right", "left"])
def test_a_padded_batch_is_each_sequence_alone(padding: str) -> None:
    spec, state, lengths = MODELS["gemma 3"][0], weights("gemma 3"), np.array([4, 0, LENGTH])
    layer, x = make(state, spec), tokens((3,))
    for n, length in enumerate(lengths):
        x[n, length if padding == "right" else 0 : None if padding == "right" else LENGTH - length] = np.nan
    out = layer(x, lengths=lengths, padding=padding)
    for n, length in enumerate(lengths):
        kept = slice(0, length) if padding == "right" else slice(LENGTH - length, None)
        np.testing.assert_allclose(out[n, kept], grouped(x[n, kept], state, spec).reshape(-1, D_IN), rtol=0, atol=1e-12)


@every_model
def test_weights_go_in_and_out_by_name(model: str) -> None:
    spec, state = MODELS[model][0], weights(model)
    saved = make(state, spec).state_dict()
    assert set(saved) == set(state)
    assert all(saved[name] is state[name] for name in state)


def test_init_draws_what_parameters_says() -> None:
    layer = attention_np.init(
        GroupedQueryAttention, np.random.default_rng(0), **SHARED, num_heads=6, qk_norm=True, sinks=True, window=3
    )
    assert (layer.num_kv_heads, layer.window, layer.causal) == (6, 3, True)
    np.testing.assert_array_equal(layer.q_norm.weight, np.ones(D_HEAD, np.float32))
    assert layer(tokens(dtype=np.float32)).dtype == np.float32


CHANGES: list[tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = [
    ({"k_proj.weight": None}, {}, ValueError, r"missing: \['k_proj.weight'\]"),
    ({"q_norm.weight": np.ones(4)}, {}, ValueError, r"missing: \['k_norm.weight'\]"),
    ({"rotary.inv_freq": np.ones(4)}, {}, ValueError, r"not expected: \['rotary.inv_freq'\]"),
    (
        {"q_proj.weight": np.ones((40, 12))},
        {},
        ValueError,
        r"`q_proj.weight` must have shape \(48, 12\); got \(40, 12\)",
    ),
    ({"o_proj.weight": np.ones((12, 40))}, {}, ValueError, r"`o_proj.weight` must have shape \(12, 48\)"),
    (
        {"q_norm.weight": np.ones(5), "k_norm.weight": np.ones(4)},
        {},
        ValueError,
        r"`q_norm.weight` must have shape \(8,\); got \(5,\)",
    ),
    ({"sinks": np.ones(2)}, {}, ValueError, r"`sinks` must have shape \(6,\)"),
    ({"k_proj.weight": np.ones(16)}, {}, ValueError, r"`k_proj.weight` must be a matrix"),
    ({"v_proj.weight": np.ones((16, 12), int)}, {}, TypeError, "`v_proj.weight` has dtype int64"),
    ({}, {"num_kv_heads": 4}, ValueError, "`num_kv_heads` is 4, which does not divide the 6 of `num_heads`"),
    ({}, {"num_heads": 9, "num_kv_heads": 3}, ValueError, "`num_kv_heads` is 3, which does not divide the 16 rows"),
    ({}, {"num_heads": 6.0}, TypeError, "`num_heads` must be a Python integer"),
    ({}, {"query_gate": True}, ValueError, r"`q_proj.weight` must have shape \(96, 12\)"),
]


@pytest.mark.parametrize(("change", "told", "kind", "words"), CHANGES)
def test_a_wrong_weight_is_said(change: Any, told: Any, kind: type[Exception], words: str) -> None:
    state = {name: x for name, x in (weights("llama") | change).items() if x is not None}
    with pytest.raises(kind, match=words):
        GroupedQueryAttention.from_state_dict(state, **({"num_heads": 6, "num_kv_heads": 2} | told))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda layer: layer(np.ones((5, 4))), ValueError, "`x` has depth 4, but the layer has d_in = 12"),
        (lambda layer: layer(np.ones(12)), ValueError, r"`x` must have at least the axes \(L, d_in\)"),
        (lambda layer: layer(tokens(), positions=1, lengths=2), ValueError, "`positions` was given, but a cache"),
        (lambda layer: layer(tokens(), lengths=np.ones(2, int)), ValueError, r"`lengths` has shape \(2,\)"),
        (lambda layer: layer(tokens(), lengths=2.0), TypeError, "`lengths` must be an integer or an integer array"),
        (lambda layer: layer(tokens(), padding="left"), ValueError, "give their `lengths` too"),
        (lambda layer: layer(tokens(), lengths=1, padding="both"), ValueError, '`padding` must be "right" or "left"'),
        (lambda layer: replace(layer, window=0)(tokens()), ValueError, "`window` must be at least 1"),
        (lambda layer: replace(layer, num_kv_heads=5)(tokens()), ValueError, "which does not divide the 6"),
        (lambda layer: GroupedQueryAttention.parameters(**SHARED), TypeError, "needs the size `num_heads`"),
        (lambda layer: GroupedQueryAttention.parameters(**SHARED, num_heads=2, depth=1), TypeError, "no size `depth`"),
        (lambda layer: RMSNorm(np.ones(3))(np.ones(4)), ValueError, "its last axis must be d = 3"),
        (lambda layer: RMSNorm.from_state_dict({}), ValueError, "`weights` must hold `weight`; it holds nothing"),
        (
            lambda layer: RMSNorm.from_state_dict({"weight": np.ones((2, 2))}),
            ValueError,
            "`weight` must have 1 axis; got shape",
        ),
    ],
)
def test_a_wrong_call_is_said(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call(make(weights("llama"), Spec()))


def test_under_jax_options_are_static_and_gradients_are_those_of_differences() -> None:
    jax = pytest.importorskip("jax", reason="pip install jax")
    library, spec = Library("jax"), MODELS["gpt-oss"][0]
    with library.precision("float64"):
        layer, x = make(weights("gpt-oss"), spec, library), library.put(tokens((3,)))
        cotangent = np.random.default_rng(1).normal(size=x.shape)

        @jax.jit
        def both(layer: Any, x: Any) -> Any:
            def loss(layer: Any, x: Any) -> Any:
                return (jax.vmap(layer)(x) * cotangent).sum()

            return jax.vmap(layer)(x), *jax.grad(loss, argnums=(0, 1))(layer, x)

        out, d_layer, dx = both(layer, x)
    assert type(d_layer) is GroupedQueryAttention
    assert d_layer.window == 4
    np.testing.assert_allclose(out, make(weights("gpt-oss"), spec)(tokens((3,))), rtol=0, atol=1e-12)
    state, step = weights("gpt-oss"), 1e-6
    rng = np.random.default_rng(2)
    direction = {name: rng.normal(size=w.shape) for name, w in state.items()}

    def loss(t: float) -> float:
        moved = {name: w + t * direction[name] for name, w in state.items()}
        return float((make(moved, spec)(tokens((3,)) * (1 + t)) * cotangent).sum())

    slope = sum(float((np.asarray(g) * direction[name]).sum()) for name, g in d_layer.state_dict().items())
    slope += float((np.asarray(dx) * tokens((3,))).sum())
    np.testing.assert_allclose((loss(step) - loss(-step)) / (2 * step), slope, rtol=1e-6)


@pytest.mark.slow
def test_llama_2_at_its_width_takes_the_memory_and_time_of_its_products() -> None:
    """32 heads at width 4096, 1024 tokens: less memory than the scores alone would take, twice the four products."""
    rng, width, length = np.random.default_rng(0), 4096, 1024
    names = [f"{name}_proj.weight" for name in "qkvo"]
    state = {name: rng.standard_normal((width, width), dtype=np.float32) / 64 for name in names}
    made = GroupedQueryAttention.from_state_dict(state, num_heads=32, rotary=Rotary())
    x = rng.standard_normal((length, width), dtype=np.float32)

    def seconds(work: Callable[[], Any]) -> float:
        times = []
        for _ in range(2):
            start = time.process_time()
            work()
            times.append(time.process_time() - start)
        return min(times)

    whole, products = seconds(lambda: made(x)), seconds(lambda: [x @ w.T for w in state.values()])
    assert whole < 2 * products
    tracemalloc.start()
    made(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * length**2 * 4
