"""Prefill, then decode, is one full pass: for every layer and every cache that the page's table says go together."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attention_core import cache, masks, variants
from attention_core.variants import LinearState

from .every_cache import BAND, CAUSAL, CONFIGURATIONS, WIDTH, WINDOW, Cell, cells, made, prompt
from .samples import LIGHT, Library

CELLS = cells()
LAWFUL = [cell for cell in CELLS if cell.word != "no"]
REFUSED = [cell for cell in CELLS if cell.word == "no"]
LENGTH = 8  # beyond the window of 3, and over the bounds of pages
SPLITS = [(1,) * 8, (3, 1, 4), (7, 0, 1)]
CHUNKS = [  # how many tokens of each sequence are real, of how many, and on which side padding stands
    (np.array([4, 0, 2]), 4, "left"),
    (np.array([1, 1, 0]), 1, "left"),
    (np.array([0, 3, 5]), 5, "right"),
    (np.array([1, 1, 1]), 1, "right"),
]
Step = Callable[..., tuple[Any, Any]]
X = np.random.default_rng(1).normal(size=(3, LENGTH, WIDTH))


def agree(got: np.ndarray, wholes: list[np.ndarray], length: int) -> None:
    for whole in wholes:
        np.testing.assert_allclose(got, whole[:length], rtol=0, atol=1e-12)


def every_split(step: Step, empty: Any, wholes: list[list[np.ndarray]]) -> None:
    for split in SPLITS:
        held, outs, start = empty, [], 0
        for count in split:
            out, held = step(X[:, start : start + count], held)
            outs.append(out)
            start += count
        for got, whole in zip(np.concatenate(outs, axis=1), wholes, strict=True):
            agree(got, whole, LENGTH)


def padded_calls(step: Step, empty: Any, wholes: list[list[np.ndarray]]) -> None:
    """Sequences of unequal lengths in calls that pad each as it needs, with NaN."""
    held, taken, outs = empty, np.zeros(3, int), [[], [], []]
    for lengths, count, padding in CHUNKS:
        at = [slice(0, n) if padding == "right" else slice(count - n, count) for n in lengths]
        now = np.full((3, count, WIDTH), np.nan)
        for n, place in enumerate(at):
            now[n, place] = X[n, taken[n] : taken[n] + lengths[n]]
        out, held = step(now, held, lengths=lengths, padding=padding)
        for n, place in enumerate(at):
            outs[n].append(out[n, place])
        taken += lengths
    for each, whole, length in zip(outs, wholes, taken, strict=True):
        agree(np.concatenate(each), whole, length)


def left_padded_prefill_then_tokens(step: Step, empty: Any, wholes: list[list[np.ndarray]]) -> None:
    lengths, count = np.array([5, 1, 3]), 5
    batch = np.full((3, count, WIDTH), np.nan)
    for n, length in enumerate(lengths):
        batch[n, count - length :] = X[n, :length]
    first, held = step(batch, empty, lengths=lengths, padding="left")
    outs = [[first[n, count - length :]] for n, length in enumerate(lengths)]
    for more in range(3):
        now = np.stack([X[n, length + more : length + more + 1] for n, length in enumerate(lengths)])
        out, held = step(now, held)
        for n in range(3):
            outs[n].append(out[n])
    for each, whole, length in zip(outs, wholes, lengths, strict=True):
        agree(np.concatenate(each), whole, length + 3)


def the_law(step: Step, empty: Any, wholes: list[list[np.ndarray]]) -> None:
    every_split(step, empty, wholes)
    left_padded_prefill_then_tokens(step, empty, wholes)
    with np.errstate(invalid="ignore"):
        padded_calls(step, empty, wholes)


EVERY_DAY = [(cell, 0) for cell in LAWFUL] + [(cell, 1) for cell in LAWFUL if cell.cache == "GrowingCache"]
EACH = [
    pytest.param(cell, n, marks=[] if (cell, n) in EVERY_DAY else pytest.mark.slow, id=f"{cell}-{n}")
    for cell in LAWFUL
    for n in range(len(CONFIGURATIONS[cell.layer]))
]


@pytest.mark.parametrize(("cell", "configuration"), EACH)
def test_prefill_then_decode_is_one_full_pass(cell: Cell, configuration: int) -> None:
    layer = cell.configurations()[configuration]

    def step(x: np.ndarray, held: Any, **padding: Any) -> tuple[Any, Any]:
        return layer(x, cache=held, **cell.call, **padding)

    the_law(step, cell.empty(layer, (3,)), [cell.whole(layer, item) for item in X])


@pytest.mark.parametrize("form", [{}, {"chunk": 2}, {"form": "full"}], ids=str)
def test_the_state_of_linear_attention_is_its_cache(form: dict[str, Any]) -> None:
    layer = made("LinearAttention", **CONFIGURATIONS["LinearAttention"][0])

    def step(x: np.ndarray, state: Any, **padding: Any) -> tuple[Any, Any]:
        return layer(x, state=state, return_state=True, **form, **padding)

    the_law(step, None, [[layer(item, form="full")] for item in X])


def test_states_of_a_prompt_are_shared_and_taken_by_rows() -> None:
    layer = made("LinearAttention", **CONFIGURATIONS["LinearAttention"][0])
    state, rows = layer(prompt(), return_state=True).state, np.array([2, 0, 0])
    out, state = layer(X[:, :4], state=state, return_state=True)
    wholes = [layer(np.concatenate([prompt(), item]))[len(prompt()) :] for item in X]
    np.testing.assert_allclose(out, np.stack(wholes)[:, :4], rtol=0, atol=1e-12)
    out = layer(X[rows, 4:], state=state.take(rows))
    np.testing.assert_allclose(out, np.stack(wholes)[rows, 4:], rtol=0, atol=1e-12)
    for wrong, kind in ((np.array([3]), ValueError), (np.array([0.0]), TypeError)):
        with pytest.raises(kind, match="`rows` must be"):
            state.take(wrong)
    with pytest.raises(ValueError, match=r"of the last of the batch axes \(\)"):
        LinearState(state.products[0], state.keys[0]).take(rows)


@pytest.mark.parametrize("cell", REFUSED, ids=str)
def test_what_does_not_go_together_is_an_error(cell: Cell) -> None:
    for layer in cell.configurations():
        if cell.layer == "CausalSelfAttention":
            with pytest.raises(
                ValueError, match="`cache` keeps 3 tokens of each sequence, but the layer's queries see all"
            ):
                layer(X, cache=cell.empty(layer, (3,)))
            continue
        kind = getattr(cache, cell.cache)
        with pytest.raises(TypeError, match=f"^{cell.layer} takes no cache: {layer.no_cache[:9]}"):
            layer.new_cache(kind)
        if cell.layer not in ("AdditiveAttention", "CrossAttention"):
            with pytest.raises(TypeError, match="cache"):
                layer(X, cache=cache.GrowingCache.empty(X, batch=(3,), num_kv_heads=1, depth=2))


@pytest.mark.parametrize("cell", LAWFUL, ids=str)
def test_what_the_table_asks_for_is_needed(cell: Cell) -> None:
    """Without a mask, a window, or `causal=True`, an error says what is lacking."""
    layer = made(cell.layer, **CONFIGURATIONS[cell.layer][0])
    held = Cell(cell.layer, cell.cache, "a window" if cell.cache == "SlidingCache" else "a mask")
    if "window" in cell.word:
        for mask in (
            CAUSAL,
            {"mask": masks.sliding_window(WINDOW, 0)},
            {"mask": BAND["mask"] | masks.global_tokens(1)},
        ):
            with pytest.raises(ValueError, match=f"`cache` keeps {WINDOW} tokens of each sequence, but .* queries see"):
                layer(X, cache=held.empty(layer, (3,)), **mask)
    elif cell.word != "yes":
        with pytest.raises(ValueError, match=r"the layer is not causal.*; say by `mask=masks.causal\(\)`"):
            layer(X, cache=held.empty(layer, (3,)))


def test_the_table_names_every_layer_and_every_cache() -> None:
    kinds = {"GrowingCache", "StaticCache", "PagedCache", "SlidingCache", "SharedPrefixCache"}
    layers = {name for name in variants.__all__ if name.endswith(("Attention", "Wrapper"))}
    assert sorted((cell.layer, cell.cache) for cell in CELLS) == sorted((a, b) for a in layers for b in kinds)


def test_a_layers_own_window_and_one_of_a_call_are_both_kept() -> None:
    sizes = CONFIGURATIONS["GroupedQueryAttention"][0]
    layer = made("GroupedQueryAttention", **sizes, window=5)
    cell = Cell("GroupedQueryAttention", "SlidingCache", "a window")

    def step(x: np.ndarray, held: Any, **padding: Any) -> tuple[Any, Any]:
        return layer(x, cache=held, **BAND, **padding)

    the_law(step, layer.new_cache(cache.SlidingCache, batch=(3,), window=WINDOW), [cell.whole(layer, x) for x in X])


def test_added_keys_are_rounded_once_with_a_cache_too() -> None:
    """In 16 bits the parts are merged in float32."""
    sizes = {"embed_dim": WIDTH, "num_heads": 4, "add_bias_kv": True, "add_zero_attn": True}
    wide = made("MultiHeadAttention", **sizes)
    weights = {name: x.astype(np.float16) for name, x in wide.state_dict().items()}
    layer = type(wide).from_state_dict(weights, num_heads=4, add_zero_attn=True)
    x = X.astype(np.float16)
    out, held = layer(x, cache=layer.new_cache(cache.GrowingCache, batch=(3,)), **CAUSAL)
    np.testing.assert_array_equal(out, layer(x, **CAUSAL))
    assert out.dtype == held.keys.dtype == np.float16


def test_what_multi_head_attention_does_not_take_with_a_cache() -> None:
    layer = made("MultiHeadAttention", **CONFIGURATIONS["MultiHeadAttention"][0])
    held = layer.new_cache(cache.GrowingCache, batch=(3,))
    for more in ({"key": X}, {"key": X, "value": X}, {"key": layer.keys_values(X)}, {"return_weights": True}):
        with pytest.raises(ValueError, match="go with neither `key`, `value` nor weights"):
            layer(X, cache=held, **CAUSAL, **more)
    with pytest.raises(ValueError, match="`dropout` was given with a cache"):
        layer(X, cache=held, dropout=0.5, **CAUSAL)
    with pytest.raises(TypeError, match="`query` must be an array; got a list"):
        layer([[1.0]], cache=held, **CAUSAL)
    with pytest.raises(ValueError, match=r"`mask` holds key_lengths\(2\), which goes by index"):
        layer(X, cache=held, mask=masks.key_lengths(2))
    other = made("MultiHeadAttention", embed_dim=WIDTH, num_heads=3, kdim=5)
    with pytest.raises(ValueError, match="`key` has depth 12, but the layer has d_in = 5"):
        other(X, cache=other.new_cache(cache.GrowingCache, batch=(3,)), **CAUSAL)


PREPARED: dict[str, tuple[np.ndarray, ...]] = {
    "AdditiveAttention": (X[..., :3], X[:, :5, 3:7], X[:, :5, 7:]),
    "CrossAttention": (X, X[:, :5]),
    "MultiHeadAttention": (X, X[:, :5], X[:, :5] * 2),
    "ProjectedAttention": (X, X[:, :5]),
    "T5Attention": (X, X[:, :5]),
}


@pytest.mark.parametrize("name", PREPARED)
def test_what_another_sequence_answers_is_projected_once(name: str) -> None:
    """Whole, and a token of the asking sequence after the other."""
    layer, (asks, *answers) = made(name, **CONFIGURATIONS[name][0]), PREPARED[name]
    prepared, whole = layer.keys_values(*answers), layer(asks, *answers)
    np.testing.assert_allclose(layer(asks, prepared), whole, rtol=0, atol=1e-13)
    steps = [layer(asks[:, n : n + 1], prepared, **at(name, n)) for n in range(LENGTH)]
    np.testing.assert_allclose(np.concatenate(steps, axis=1), whole, rtol=0, atol=1e-13)


def at(name: str, position: int) -> dict[str, Any]:
    return {"query_positions": position} if name == "T5Attention" else {}  # whose bias goes by positions


@pytest.mark.parametrize("name", ["SelfAttention", "MultiHeadAttentionWrapper"])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_padded_batches_of_layers_that_look_ahead(name: str, padding: str) -> None:
    layer, lengths = made(name, **CONFIGURATIONS[name][0]), np.array([5, 0, 3])
    batch = np.full((3, 5, WIDTH), np.nan)
    places = [slice(0, n) if padding == "right" else slice(5 - n, 5) for n in lengths]
    for n, place in enumerate(places):
        batch[n, place] = X[n, : lengths[n]]
    out = layer(batch, lengths=lengths, padding=padding)
    for n, place in enumerate(places):
        np.testing.assert_allclose(out[n, place], layer(X[n, : lengths[n]]), rtol=0, atol=1e-13)


def test_a_padded_batch_of_multi_head_attention_without_a_cache() -> None:
    for sizes in CONFIGURATIONS["MultiHeadAttention"]:
        layer, batch = made("MultiHeadAttention", **sizes), np.where(np.arange(5)[:, None] < 2, np.nan, X[:, :5])
        out = layer(batch, lengths=3, padding="left")
        np.testing.assert_allclose(out[:, 2:], layer(X[:, 2:5]), rtol=0, atol=1e-13)


NEW = [cell for cell in LAWFUL if cell.layer in ("CausalSelfAttention", "MultiHeadAttention") and cell.cache[0] in "GP"]


@pytest.mark.parametrize("library", [each for each in LIGHT if each.id != "numpy"])
@pytest.mark.parametrize("cell", NEW, ids=str)
def test_layers_of_other_libraries(cell: Cell, library: Library) -> None:
    for own in cell.configurations():
        options = {name: getattr(own, name) for name in own.option_names()}
        weights = {name: library.put(x) for name, x in own.state_dict().items()}
        layer = type(own).from_state_dict(weights, **options)
        first, held = layer(library.put(X[:, :3]), cache=cell.empty(layer, (3,), library.put), **cell.call)
        lengths = {"lengths": library.put(np.array([5, 2, 0])), "padding": "left"}
        rest, _ = layer(library.put(X[:, 3:]), cache=held, **cell.call, **lengths)
        got = np.concatenate([library.get(first)[0], library.get(rest)[0]])
        agree(got, cell.whole(own, X[0]), LENGTH)


# JAX: all steps of a decoding are one program


COMPILED = [cell for cell in LAWFUL if cell.cache != "GrowingCache"]


@pytest.mark.slow
@pytest.mark.parametrize("cell", COMPILED, ids=str)
def test_one_scan_over_tokens_of_some_sequences(cell: Cell) -> None:
    """A left-padded prompt, then steps in which some sequences get a token and some none."""
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax  # noqa: F401  makes layers and caches pytrees

    lengths, given = np.array([3, 1, 2]), np.array([[1, 1, 1], [1, 0, 1], [1, 1, 0], [1, 1, 1]])

    @jax.jit
    def decode(layer: Any, held: Any, first: Any, tokens: Any) -> Any:
        out, held = layer(first, cache=held, lengths=lengths, padding="left", **cell.call)

        def step(held: Any, now: Any) -> Any:
            more, held = layer(now[0], cache=held, lengths=now[1], **cell.call)
            return held, more[:, 0]

        return out, jax.lax.scan(step, held, (tokens, given))[1]

    first = np.stack([np.pad(X[n, :count], [(3 - count, 0), (0, 0)]) for n, count in enumerate(lengths)])
    taken = lengths + np.cumsum(given, axis=0) - given
    tokens = np.stack([[X[n, row[n]] for n in range(3)] for row in taken])[:, :, None]
    for layer in cell.configurations():
        with jax.enable_x64(True):
            moved = jax.tree.map(jax.numpy.asarray, layer)
            held = cell.empty(moved, (3,), jax.numpy.asarray)
            out, outs = map(np.asarray, decode(moved, held, jax.numpy.asarray(first), jax.numpy.asarray(tokens)))
        for n in range(3):
            got = np.concatenate([out[n, 3 - lengths[n] :], outs[given[:, n] > 0, n]])
            agree(got, cell.whole(layer, X[n]), len(got))


@pytest.mark.slow
def test_a_token_that_found_no_place_is_nan_beside_added_keys_too() -> None:
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax  # noqa: F401  makes layers and caches pytrees

    with jax.enable_x64(True):
        layer = jax.tree.map(jax.numpy.asarray, made("MultiHeadAttention", **CONFIGURATIONS["MultiHeadAttention"][1]))
        held = layer.new_cache(cache.StaticCache, batch=(3,), capacity=5)
        out, _ = jax.jit(lambda layer, held, x: layer(x, cache=held, **CAUSAL))(layer, held, jax.numpy.asarray(X))
    np.testing.assert_array_equal(np.isnan(out).any(axis=(0, 2)), np.arange(LENGTH) >= 5)
