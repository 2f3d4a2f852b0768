"""Linear, additive, differential and latent attention beside loops over Python numbers, and the laws of their forms."""

from collections.abc import Callable
from math import exp, sqrt, tanh
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attention_np
from attention_core import Rotary, masks
from attention_core.variants import (
    AdditiveAttention,
    BloomAttention,
    DifferentialAttention,
    GPT2Attention,
    LatentAttention,
    Latents,
    Layer,
    LinearAttention,
    MultiHeadAttention,
    ProjectedAttention,
    T5Attention,
)

from .samples import LIBRARIES, Library

# JAX compiles each operation of an eager call: once traced is enough for every day
EACH_LIBRARY = [
    pytest.param(*each.values, id=each.id, marks=[*each.marks, pytest.mark.slow] if each.id == "jax" else each.marks)
    for each in LIBRARIES
]
UNCOMPILED = [each for each in EACH_LIBRARY if each.id != "jax-jit"]
every_library = pytest.mark.parametrize("library", EACH_LIBRARY)


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def made(layer: type[Layer], seed: int = 1, **sizes: Any) -> Any:
    """The layer in float64, its weights of some spread whatever its own laws are."""
    shapes = {name: p.shape for name, p in layer.parameters(**sizes).items()}
    weights = {name: 0.5 * drawn(*shape, seed=seed + n) for n, (name, shape) in enumerate(shapes.items())}
    return layer.from_state_dict(weights, **{name: sizes[name] for name in layer.option_names() if name in sizes})


def moved(layer: Layer, library: Library) -> Any:
    weights = {name: library.put(x) for name, x in layer.state_dict().items()}
    own = {name: getattr(layer, name) for name in layer.option_names()}
    return type(layer).from_state_dict(weights, **own)


def traced(library: Library, call: Callable[..., Any]) -> Callable[..., Any]:
    if library.name != "jax-jit":
        return call
    import jax

    return jax.jit(call)


def times(weight: np.ndarray, x: Any, bias: Any = None) -> list[float]:
    plus = [0.0] * len(weight) if bias is None else bias
    return [
        sum(float(w) * float(a) for w, a in zip(row, x, strict=True)) + float(b)
        for row, b in zip(weight, plus, strict=True)
    ]


def softmax(scores: list[float]) -> list[float]:
    powers = [exp(s - max(scores)) for s in scores]
    return [p / sum(powers) for p in powers]


def mix(weights: list[float], rows: list[list[float]]) -> list[float]:
    return [sum(w * row[c] for w, row in zip(weights, rows, strict=True)) for c in range(len(rows[0]))]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


# Linear


LINEAR = {"d_in": 6, "num_heads": 2, "d_head": 3}


def linear_by_loops(layer: Any, x: np.ndarray, causal: bool, seen: Any = None) -> np.ndarray:
    def feature(row: list[float]) -> list[float]:
        return [a + 1 if a > 0 else exp(a) for a in row]

    q, k, v = ([times(part.weight, row, part.bias) for row in x] for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    out = []
    for i in range(len(x)):
        keys = [j for j in range(len(x)) if (j <= i or not causal) and (seen is None or seen[j])]
        heads: list[float] = []
        for h in range(2):
            at = slice(3 * h, 3 * h + 3)
            weights = [dot(feature(q[i][at]), feature(k[j][at])) for j in keys]
            rows = [v[j][at] for j in keys]
            heads += mix([w / sum(weights) for w in weights], rows) if keys else [0.0] * 3
        out.append(times(layer.out_proj.weight, heads, layer.out_proj.bias))
    return np.array(out)


@every_library
def test_linear_attention_by_loops(library: Library) -> None:
    x = drawn(11, 6)
    for causal in (True, False) if library.name != "jax-jit" else (True,):
        layer = made(LinearAttention, **LINEAR, causal=causal)
        with library.precision("float64"):
            out = library.get(library.call(moved(layer, library), library.put(x)))
        np.testing.assert_allclose(out, linear_by_loops(layer, x, causal), rtol=1e-11, atol=1e-12)


def test_linear_attention_without_padding_and_without_any_key() -> None:
    layer, x = made(LinearAttention, **LINEAR), drawn(5, 6)
    seen = np.array([False, True, True, False, True])
    out = layer(x, key_mask=seen, chunk=2)
    np.testing.assert_allclose(out, linear_by_loops(layer, x, True, seen), rtol=1e-11)
    np.testing.assert_array_equal(out[0], layer.out_proj.bias)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 11, 64])
def test_chunked_full_and_recurrent_forms_are_one(chunk: int) -> None:
    layer, x = made(LinearAttention, **LINEAR), drawn(2, 11, 6)
    whole, state = layer(x, form="full", return_state=True)
    out, after = layer(x, chunk=chunk, return_state=True)
    np.testing.assert_allclose(out, whole, rtol=1e-11)
    for split in (1, 4, 10):
        first, half = layer(x[:, :split], chunk=chunk, return_state=True)
        rest, last = layer(x[:, split:], state=half, chunk=chunk, return_state=True)
        np.testing.assert_allclose(np.concatenate([first, rest], axis=1), whole, rtol=1e-11)
        for mine, theirs in zip(last, state, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-11)
    for mine, theirs in zip(after, state, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-11)


def test_linear_attention_a_token_at_a_time_in_one_scan() -> None:
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax  # noqa: F401  makes layers pytrees

    layer = attention_np.init(LinearAttention, np.random.default_rng(2), **LINEAR)
    x = drawn(7, 6).astype(np.float32)
    wanted = layer(x)

    @jax.jit
    def decode(layer: Any, x: Any) -> Any:
        start = layer(x[:0], return_state=True).state

        def step(state: Any, token: Any) -> Any:
            out, state = layer(token[None], state=state, return_state=True)
            return state, out[0]

        return jax.lax.scan(step, start, x)[1]

    np.testing.assert_allclose(decode(layer, x), wanted, rtol=1e-4, atol=1e-5)


# Additive


ADDITIVE = {"d_query": 3, "d_key": 4, "d_hidden": 5}


def additive_by_loops(layer: Any, query: np.ndarray, key: np.ndarray, value: np.ndarray, seen: Any) -> np.ndarray:
    out = []
    for i, q in enumerate(query):
        keys = [j for j in range(len(key)) if seen[i][j]]
        asked, (scorer,) = times(layer.W_q.weight, q), layer.w_v.weight
        scores = [
            dot(list(scorer), [tanh(a + b) for a, b in zip(asked, times(layer.W_k.weight, key[j]), strict=True)])
            for j in keys
        ]
        out.append(mix(softmax(scores), value[keys].tolist()) if keys else [0.0] * value.shape[1])
    return np.array(out)


@every_library
def test_additive_attention_by_loops(library: Library) -> None:
    layer = made(AdditiveAttention, **ADDITIVE)
    query, key, value = drawn(2, 3, 3), drawn(2, 6, 4), drawn(2, 6, 7)
    seen = drawn(3, 6) > -0.5
    seen[1] = False
    with library.precision("float64"):
        given = [library.put(x) for x in (query, key, value)]
        mask = masks.dense(library.put(seen))
        call = traced(library, lambda layer, mask, *given: layer(*given, mask=mask))
        out = library.get(call(moved(layer, library), mask, *given))
    for item in range(2):
        wanted = additive_by_loops(layer, query[item], key[item], value[item], seen)
        np.testing.assert_allclose(out[item], wanted, rtol=1e-11, atol=1e-12)


def test_additive_attention_has_weights_and_takes_a_mask_an_item() -> None:
    layer = made(AdditiveAttention, **ADDITIVE)
    query, key = drawn(2, 3, 3), drawn(2, 6, 4)
    lengths = np.array([4, 6])
    result = layer(query, key, mask=masks.key_lengths(lengths), return_weights=True)
    assert result.weights.shape == (2, 3, 6)
    assert np.all(result.weights[0, :, 4:] == 0)
    np.testing.assert_allclose(result.weights @ key, result.out, rtol=1e-12)
    np.testing.assert_allclose(layer(query[0], key[0, :4]), result.out[0], rtol=1e-12)
    halved = layer(query, key, bias=np.where(np.arange(6) < 3, -np.inf, 0.0))
    np.testing.assert_allclose(halved, layer(query, key[:, 3:]), rtol=1e-12)


def test_additive_attention_differentiates_in_jax() -> None:
    """By finite differences of the loops, through the softmax whose scores are its bias."""
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax  # noqa: F401  makes layers pytrees

    layer = made(AdditiveAttention, **ADDITIVE)
    query, key, value, cotangent = drawn(3, 3), drawn(4, 4), drawn(4, 2), drawn(3, 2)
    open_ = np.ones((3, 4), bool)

    def by_loops(weight: np.ndarray) -> float:
        changed = AdditiveAttention.from_state_dict({**layer.state_dict(), "W_q.weight": weight})
        return float((additive_by_loops(changed, query, key, value, open_) * cotangent).sum())

    with jax.enable_x64(True):
        in_jax = jax.tree.map(jax.numpy.asarray, layer)
        loss = jax.jit(jax.grad(lambda layer: (layer(query, key, value) * cotangent).sum()))
        gradient = np.asarray(loss(in_jax).W_q.weight)
    weight = layer.W_q.weight
    for index in np.ndindex(2, 3):
        step = np.zeros_like(weight)
        step[index] = 1e-5
        wanted = (by_loops(weight + step) - by_loops(weight - step)) / 2e-5
        assert gradient[index] == pytest.approx(wanted, rel=1e-6, abs=1e-9)


# Differential


DIFFERENTIAL = {"d_in": 12, "num_heads": 4, "num_kv_heads": 2, "d_head": 3, "lambda_init": 0.3}


def differential_by_loops(layer: Any, x: np.ndarray) -> np.ndarray:
    """As the paper's own module: heads 2 h and 2 h + 1 are a pair, two value heads side by side its one value."""
    q, k, v = ([times(part.weight, row) for row in x] for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    factor = exp(dot(list(layer.lambda_q1), list(layer.lambda_k1)))
    factor += 0.3 - exp(dot(list(layer.lambda_q2), list(layer.lambda_k2)))
    out = []
    for i in range(len(x)):
        heads: list[float] = []
        for h in range(4):
            g, maps = h // 2, []
            for one in range(2):
                query = q[i][3 * (2 * h + one) :][:3]
                scores = [dot(query, k[j][3 * (2 * g + one) :][:3]) / sqrt(3) for j in range(i + 1)]
                maps.append(softmax(scores))
            difference = [a - factor * b for a, b in zip(*maps, strict=True)]
            head = mix(difference, [v[j][6 * g :][:6] for j in range(i + 1)])
            size = sqrt(sum(a * a for a in head) / 6 + 1e-5)
            heads += [0.7 * a / size * float(w) for a, w in zip(head, layer.subln.weight, strict=True)]
        out.append(times(layer.out_proj.weight, heads))
    return np.array(out)


@pytest.mark.parametrize("library", UNCOMPILED)  # compiled: diffllama, of the recorded models
def test_differential_attention_by_loops(library: Library) -> None:
    layer, x = made(DifferentialAttention, **DIFFERENTIAL), drawn(5, 12)
    with library.precision("float64"):
        out = library.get(moved(layer, library)(library.put(x)))
    np.testing.assert_allclose(out, differential_by_loops(layer, x), rtol=1e-10, atol=1e-12)


def test_differential_attention_shows_the_difference_of_its_maps() -> None:
    layer, x = made(DifferentialAttention, **DIFFERENTIAL, rotary=Rotary(dim=2)), drawn(2, 5, 12)
    weights = layer(x, return_weights=True).weights
    assert weights.shape == (2, 4, 5, 5)
    np.testing.assert_allclose(weights.sum(-1), np.full((2, 4, 5), 1 - float(layer.factor())), rtol=1e-12)
    with pytest.raises(ValueError, match="`pairing` must be one of neighbours, halves; got 'odd'"):
        made(DifferentialAttention, **DIFFERENTIAL, pairing="odd")


# Latent


LATENT = {
    "hidden_size": 12, "num_heads": 3, "qk_nope_head_dim": 5, "qk_rope_head_dim": 4, "v_head_dim": 6, "kv_lora_rank": 7,
}  # fmt: skip


@pytest.mark.parametrize("rank", [None, 8], ids=["one-projection", "low-rank"])
@pytest.mark.parametrize(
    "library", [*UNCOMPILED, pytest.param(Library("jax-jit"), marks=pytest.mark.slow, id="jax-jit")]
)
def test_naive_and_absorbed_forms_are_one(library: Library, rank: int | None) -> None:
    def both(layer: Any, x: Any) -> tuple[Any, Any]:
        return layer(x), layer(x, absorbed=True)

    layer, x = made(LatentAttention, **LATENT, q_lora_rank=rank), drawn(2, 9, 12)
    with library.precision("float64"):
        ours, given = moved(layer, library), library.put(x)
        results = [library.get(out) for out in traced(library, both)(ours, given)]
    np.testing.assert_allclose(results[0], layer(x), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("absorbed", [False, True])
def test_latents_kept_of_earlier_tokens_are_one_full_pass(absorbed: bool) -> None:
    layer, x = made(LatentAttention, **LATENT), drawn(2, 9, 12)
    whole = layer(x, return_weights=True)
    kept = layer.latents(x[:, :6])
    for i in range(6, 9):
        new = layer.latents(x[:, i : i + 1], i)
        kept = Latents(*(np.concatenate(parts, axis=-2) for parts in zip(kept, new, strict=True)))
        step = layer(x[:, i : i + 1], kept, absorbed=absorbed, query_positions=i, return_weights=True)
        np.testing.assert_allclose(step.out, whole.out[:, i : i + 1], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(step.weights, whole.weights[..., i : i + 1, : i + 1], rtol=1e-10, atol=1e-12)
    assert sum(part.shape[-1] for part in kept) == 7 + 4


def test_latent_attention_depends_on_distance_alone_and_on_the_pairing() -> None:
    layer, x = made(LatentAttention, **LATENT), drawn(9, 12)
    np.testing.assert_allclose(layer(x, query_positions=1000), layer(x), rtol=1e-9)
    halves = made(LatentAttention, **LATENT, rotary=Rotary())
    assert np.abs(halves(x) - layer(x)).max() > 1e-3
    unturned = made(LatentAttention, **LATENT, rotary=None)
    assert np.abs(unturned(x) - layer(x)).max() > 1e-3


def test_latent_attention_says_what_does_not_fit() -> None:
    weights = dict(made(LatentAttention, **LATENT).state_dict())
    with pytest.raises(ValueError, match="`num_heads` is 5, which does not divide"):
        LatentAttention.from_state_dict(weights, num_heads=5)
    with pytest.raises(ValueError, match="leaves 0 rows beside the rank 7"):
        LatentAttention.from_state_dict({**weights, "kv_a_proj_with_mqa.weight": np.ones((7, 12))}, num_heads=3)
    with pytest.raises(ValueError, match="a layer needs `q_proj`, or all of"):
        LatentAttention(
            **{
                name: getattr(made(LatentAttention, **LATENT), name)
                for name in ("kv_b_proj", "o_proj", "kv_a_layernorm")
            },
            kv_a_proj_with_mqa=made(LatentAttention, **LATENT).kv_a_proj_with_mqa,
            num_heads=3,
        )(drawn(9, 12))


# All of them


EACH: list[tuple[type[Layer], dict[str, Any]]] = [
    (LinearAttention, LINEAR),
    (DifferentialAttention, DIFFERENTIAL),
    (LatentAttention, LATENT),
]


@pytest.mark.parametrize(("layer", "sizes"), EACH, ids=lambda x: getattr(x, "__name__", ""))
def test_batches_bfloat16_and_drawing(layer: type[Layer], sizes: dict[str, Any]) -> None:
    x = drawn(2, 3, 5, sizes.get("d_in", 12))
    wide: Any = attention_np.init(layer, np.random.default_rng(0), dtype=np.float64, **sizes)
    narrow: Any = attention_np.init(layer, np.random.default_rng(0), dtype=ml_dtypes.bfloat16, **sizes)
    out = wide(x)
    np.testing.assert_allclose(out[1, 2], wide(x[1, 2]), rtol=1e-12, atol=1e-15)
    small = narrow(x.astype(ml_dtypes.bfloat16))
    assert small.dtype == ml_dtypes.bfloat16
    assert np.abs(small.astype(np.float64) - out).max() < 0.06 * np.abs(out).max()
    with pytest.raises(ValueError, match="`x` has depth 5, but the layer has d_in"):
        wide(drawn(4, 5))
    with pytest.raises(TypeError, match="`x` must be an array; got a list"):
        wide([[1.0]])


DRAWN: list[tuple[type[Layer], dict[str, Any]]] = [
    *EACH,
    (DifferentialAttention, {**DIFFERENTIAL, "norm_weight": False, "out_name": "o_proj", "bias": True}),
    (LatentAttention, {**LATENT, "q_lora_rank": 8, "bias": True, "scale": 0.5, "causal": False}),
    (MultiHeadAttention, {"embed_dim": 12, "num_heads": 4, "add_bias_kv": True, "add_zero_attn": True}),
    (ProjectedAttention, {"d_in": 12, "num_heads": 3, "d_head": 5, "d_out": 7, "bias": False, "names": tuple("abcd")}),
    (T5Attention, {"d_model": 12, "num_heads": 3, "d_kv": 5, "num_buckets": None, "causal": True, "max_distance": 9}),
    (BloomAttention, {"hidden_size": 12, "num_heads": 6, "causal": False, "scale": 0.3}),
    (GPT2Attention, {"n_embd": 12, "num_heads": 4, "scale": 0.3}),
]


@pytest.mark.parametrize(("layer", "sizes"), DRAWN)
def test_drawn_layers_have_the_parameters_and_options_asked_for(layer: type[Layer], sizes: dict[str, Any]) -> None:
    drawn_layer: Any = attention_np.init(layer, np.random.default_rng(0), dtype=np.float64, **sizes)
    expected = layer.parameters(**sizes)
    assert {name: x.shape for name, x in drawn_layer.state_dict().items()} == {n: p.shape for n, p in expected.items()}
    for name in set(layer.option_names()) & set(sizes):
        assert getattr(drawn_layer, name) == sizes[name]
    x = drawn(2, 5, sizes.get("d_in", 12))
    assert drawn_layer(x).shape == (2, 5, sizes.get("d_out", x.shape[-1]))
    with pytest.raises(TypeError, match="needs the size `num_heads`"):
        layer.parameters(**{name: size for name, size in sizes.items() if name != "num_heads"})


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "sizes"), EACH, ids=lambda x: getattr(x, "__name__", ""))
def test_jit_vmap_and_drawing_in_jax(layer: type[Layer], sizes: dict[str, Any]) -> None:
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax

    drawn_there: Any = attention_jax.init(layer, jax.random.key(0), **sizes)
    x = drawn(4, 5, sizes.get("d_in", 12)).astype(np.float32)
    in_numpy = jax.tree.map(np.asarray, drawn_there)
    mapped = jax.jit(jax.vmap(drawn_there))(x)
    np.testing.assert_allclose(mapped, in_numpy(x), rtol=2e-4, atol=1e-5)
