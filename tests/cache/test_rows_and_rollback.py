"""Sequences of a batch taken in another order, as a beam search does, and tokens taken back, as speculation does."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_core.cache import Cache, GrowingCache, PagedCache, SharedPrefixCache, SlidingCache, StaticCache
from tests.cache.kinds import D_IN, KINDS, alone, growing, layer, shared, static, tokens
from tests.variants.samples import LIGHT, Library

every_kind = pytest.mark.parametrize("kind", KINDS)
FEW = ("growing", "static", "sliding", "paged")  # on other libraries; the others with the slow tests
every_kind_and_library = pytest.mark.parametrize(
    ("kind", "library"),
    [
        pytest.param(kind, *each.values, id=f"{kind}-{each.id}", marks=[*each.marks, *slow])
        for each in LIGHT
        for kind in KINDS
        for slow in [[] if each.id == "numpy" or kind in FEW else [pytest.mark.slow]]
    ],
)
LENGTHS = np.array([4, 1, 3])
MORE = np.random.default_rng(9).normal(size=(4, 2, D_IN))


def begun(kind: str, put: Callable[[np.ndarray], Any] = np.asarray) -> tuple[Any, Any, list[np.ndarray]]:
    """A layer, a cache of three sequences of 4, 1 and 3 tokens, and these sequences."""
    window, empty = KINDS[kind]
    made, x = layer(window, put), tokens((3,))
    cache = empty(made, (3,)) if kind not in ("paged", "paged-window") else roomy(made)
    _, cache = made(put(x[:, :4]), cache=cache, lengths=put(LENGTHS))
    return made, cache, [x[n, :length] for n, length in enumerate(LENGTHS)]


def roomy(made: Any) -> PagedCache:
    return made.new_cache(PagedCache, batch=(3,), pages=17, page_size=2, max_pages=5)


def as_if_alone(out: np.ndarray, before: list[np.ndarray], more: np.ndarray, window: bool) -> None:
    for item, was, new in zip(out, before, more, strict=True):
        whole = alone(np.concatenate([was, new]), window)
        np.testing.assert_allclose(item, whole[len(was) :], rtol=0, atol=1e-12)


@every_kind_and_library
def test_taken_rows_go_on_as_the_sequences_that_they_were(kind: str, library: Library) -> None:
    made, cache, x = begun(kind, library.put)
    rows = np.array([2, 0, 0, 1])
    out, longer = made(library.put(MORE), cache=cache.take(library.put(rows)))
    as_if_alone(library.get(out), [x[n] for n in rows], MORE, KINDS[kind][0])
    np.testing.assert_array_equal(library.get(longer.positions(1))[:, 0], LENGTHS[rows] + 2)


@every_kind
@pytest.mark.parametrize("rows", [np.array([1, 0]), np.array([[2, 2], [0, 1]])], ids=["alike", "an-item"])
def test_rows_are_those_of_the_last_batch_axis(kind: str, rows: np.ndarray) -> None:
    """A batch of two, three beams each, of which two go on: the same of both items, or others."""
    window, empty = KINDS[kind]
    made, x, more = layer(window), tokens((2, 3)), MORE.reshape(2, 2, 2, D_IN)
    _, cache = made(x[..., :4, :], cache=empty(made, (2, 3)))
    out, _ = made(more, cache=cache.take(rows))
    for item in range(2):
        chosen = np.broadcast_to(rows, (2, 2))[item]
        as_if_alone(out[item], [x[item, n, :4] for n in chosen], more[item], window)


@every_kind_and_library
def test_tokens_taken_back_are_as_if_they_had_never_come(kind: str, library: Library) -> None:
    """Three guesses, NaN of which none may remain; of the sequences 2, 3 and none of them are taken back."""
    made, cache, x = begun(kind, library.put)
    if "sliding" in kind:
        _, cache = made(library.put(tokens((3,))[:, :4]), cache=spare(made, library), lengths=library.put(LENGTHS))
    guesses = np.full((3, 3, D_IN), np.nan)
    guesses[0, :1], guesses[2] = MORE[3, 0], tokens((3,))[2, 3:6]
    with np.errstate(invalid="ignore"):
        _, longer = made(library.put(guesses), cache=cache)
    kept = longer.truncate(library.put(LENGTHS + np.array([1, 0, 9])))
    np.testing.assert_array_equal(library.get(kept.lengths), LENGTHS + np.array([1, 0, 3]))
    out, _ = made(library.put(MORE[:3]), cache=kept)
    before = [np.concatenate([x[0], guesses[0, :1]]), x[1], np.concatenate([x[2], guesses[2]])]
    as_if_alone(library.get(out), before, MORE[:3], KINDS[kind][0])


def spare(made: Any, library: Library) -> Any:
    return made.new_cache(SlidingCache, batch=(3,), spare=2)


@every_kind
@pytest.mark.parametrize("length", [0, 2, 10**30])
def test_one_length_for_all(kind: str, length: int) -> None:
    window, empty = KINDS[kind]
    made, x = layer(window), tokens((2,))
    _, cache = made(x[:, :3], cache=empty(made, (2,)))
    kept = cache.truncate(length)
    np.testing.assert_array_equal(kept.lengths, [min(length, 3)] * 2)
    out, _ = made(MORE[:2], cache=kept)
    as_if_alone(out, [x[n, : min(length, 3)] for n in range(2)], MORE[:2], window)


@every_kind
@pytest.mark.parametrize("batch", [(3,), (2, 0)])
def test_nothing_can_be_taken_back_of_nothing(kind: str, batch: tuple[int, ...]) -> None:
    cache = KINDS[kind][1](layer(KINDS[kind][0]), batch)
    for kept in (cache.truncate(7), cache.truncate(7).truncate(7)):
        np.testing.assert_array_equal(kept.lengths, cache.lengths)


def test_the_arrays_of_a_growing_cache_shrink() -> None:
    made, x = layer(False), tokens((2,))
    _, cache = made(x, cache=growing(made, (2,)))
    assert cache.truncate(3).keys.shape == (2, 2, 3, 4)
    assert not cache.truncate(3).padded
    uneven = cache.truncate(np.array([1, 5]))
    assert uneven.keys.shape == (2, 2, 5, 4)
    assert uneven.padded
    assert uneven.truncate(0).keys.shape == (2, 2, 0, 4)


def test_pages_that_are_no_longer_needed_are_free() -> None:
    made = layer(False)
    _, cache, _ = begun("paged")
    assert cache.free_pages == 17 - 2 - 1 - 2
    assert cache.truncate(np.array([2, 1, 1])).free_pages == 17 - 3
    taken = cache.take(np.array([0, 0, 2, 0]))
    assert taken.free_pages == 17 - 2 - 2 - 2 - 2
    assert len(set(taken.table[taken.table >= 0])) == 8
    with pytest.raises(ValueError, match="this cache has 17 pages, too few for these `rows`"):
        cache.take(np.repeat(0, 9))
    assert cache.take(np.array([], int)).free_pages == 17
    again, _ = made(tokens((4,))[:, :1], cache=taken)
    assert np.isfinite(again).all()


def test_beams_share_their_prompt() -> None:
    made, prompt, x = layer(True), tokens((), 5), tokens((3,))
    cache = shared(made, static(made, (3,)), prompt)
    _, cache = made(x[:, :3], cache=cache)
    np.testing.assert_array_equal(cache.lengths, [8, 8, 8])
    rows = np.array([1, 1, 2])
    taken = cache.take(rows).truncate(np.array([6, 5, 8]))
    assert taken.prefix is cache.prefix
    out, _ = made(MORE[:3], cache=taken)
    before = [np.concatenate([prompt, x[n, :length]]) for n, length in zip(rows, (1, 0, 3), strict=True)]
    as_if_alone(out, before, MORE[:3], True)
    for below in (4, np.array([8, 8, 4])):
        with pytest.raises(ValueError, match="the prompt, which all share, is left whole"):
            cache.truncate(below)


def ring(spare: int = 0) -> SlidingCache:
    """A window of 3 over eight tokens, numbered."""
    x = np.arange(8.0)[None, :, None]
    empty = SlidingCache.empty(np.ones(1), num_kv_heads=1, depth=1, window=3, spare=spare)
    return empty.append(x, x)


@pytest.mark.parametrize("spare", [0, 1, 3])
def test_a_ring_takes_back_what_it_has_spare_and_one(spare: int) -> None:
    held = ring(spare).truncate(8 - spare - 1)
    positions = held.stored().positions
    last = 8 - spare - 1
    assert sorted(positions[positions >= 0]) == [last - 2, last - 1]
    with pytest.raises(
        ValueError, match=f"a window of 3 and keeps {spare} more tokens.* take back {spare + 1} at most"
    ):
        ring(spare).truncate(8 - spare - 2)
    for whole in (0, 8, 9):
        assert ring(spare).truncate(whole).lengths == min(whole, 8)
    short = SlidingCache.empty(np.ones(1), num_kv_heads=1, depth=1, window=3).append(*[np.ones((1, 3, 1))] * 2)
    assert [int(short.truncate(n).lengths) for n in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_fields_are_one_array(kind: str) -> None:
    """Or ``jax.jit(..., donate_argnums=...)`` would give away one buffer twice."""
    window, empty = KINDS[kind]
    arrays = [x for x in vars(empty(layer(window), (3,))).values() if isinstance(x, np.ndarray)]
    assert len(set(map(id, arrays))) == len(arrays)


def test_what_is_taken_back_twice_stays_gone() -> None:
    held = ring(2).truncate(6).truncate(5)
    with pytest.raises(ValueError, match="take back 3 at most"):
        held.truncate(4)
    lacking = replace(held, lengths=held.lengths - 1)  # as a compiled call would leave it
    x = np.ones((1, 1, 1))
    with pytest.raises(ValueError, match="lacks tokens that were taken back in a compiled call"):
        lacking.append(x, x)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@every_kind
def test_any_order_of_tokens_rows_and_rollbacks(kind: str, seed: int) -> None:
    """Beside lists of tokens, which are cut and copied."""
    rng, (window, empty) = np.random.default_rng(seed), KINDS[kind]
    made = layer(window)
    cache = (
        spare(made, Library("numpy")) if "sliding" in kind else roomy(made) if "paged" in kind else empty(made, (3,))
    )
    texts, gone = [np.empty((0, D_IN))] * 3, np.zeros(3, int)  # how many tokens have left a ring
    for _ in range(9):
        room = 7 - max(map(len, texts))
        lengths = rng.integers(0, max(min(room, 3), 0) + 1, 3)
        x, left = rng.normal(size=(3, 3, D_IN)), bool(rng.integers(2))
        out, cache = made(x, cache=cache, lengths=lengths, padding="left" if left else "right")
        places = [slice(3 - n, 3) if left else slice(0, n) for n in lengths]
        for n, place in enumerate(places):
            as_if_alone(out[n : n + 1, place], texts[n : n + 1], x[n : n + 1, place], window)
            texts[n] = np.concatenate([texts[n], x[n, place]])
        kept = np.maximum(list(map(len, texts)) - rng.integers(0, 3, 3), 0)
        if "sliding" in kind:
            gone = np.maximum(gone, [len(text) - cache.keys.shape[-2] for text in texts])
            kept = np.where(gone > 0, np.maximum(kept, gone + cache.window - 1), kept)
        rows = rng.integers(0, 3, 3)
        cache = cache.truncate(kept).take(rows)
        texts, gone = [texts[n][: kept[n]] for n in rows], gone[rows]
        np.testing.assert_array_equal(cache.lengths, list(map(len, texts)))


X = np.ones((3, 1, 2, 2))


def grown(**sizes: Any) -> GrowingCache:
    return GrowingCache.empty(np.ones(1), num_kv_heads=1, depth=2, **sizes)


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: grown(batch=(3,)).take(np.array([0, 3])), ValueError, "`rows` must be at least 0 and below 3"),
    (lambda: grown(batch=(3,)).take(np.array([-1])), ValueError, "`rows` must be at least 0 and below 3"),
    (lambda: grown(batch=(3,)).take(np.array([0.0])), TypeError, "`rows` must be integers; got an array of float64"),
    (lambda: grown(batch=(3,)).take(np.array([True, False, True])), TypeError, "got an array of bool"),
    (lambda: grown(batch=(3,)).take([0, 1]), TypeError, "`rows` must be an array; got a list"),
    (lambda: grown(batch=(3,)).take(np.array(1)), ValueError, r"of the last of the batch axes \(3,\); got shape \(\)"),
    (lambda: grown(batch=(3,)).take(np.zeros((2, 2), int)), ValueError, r"got shape \(2, 2\)"),
    (lambda: grown().take(np.array([0])), ValueError, r"of the last of the batch axes \(\)"),
    (lambda: grown(batch=(3,)).truncate(None), TypeError, "`lengths` must be an integer or an integer array; got None"),
    (lambda: grown(batch=(3,)).truncate(1.0), TypeError, "`lengths` must be an integer or an integer array"),
    (lambda: grown(batch=(3,)).truncate(np.array([1, 2])), ValueError, r"`lengths` has shape \(2,\)"),
    (lambda: Cache().take(np.array([0])), NotImplementedError, r"Cache must define take\(rows\)"),
    (lambda: Cache().truncate(0), NotImplementedError, r"Cache must define truncate\(lengths\)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "words"), WRONG)
def test_a_wrong_call_says_what_is_wrong(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


# JAX


def put(x: np.ndarray) -> Any:
    import jax

    return jax.numpy.asarray(x, "float32" if x.dtype == np.float64 else None)


def on_jax(cache: Any) -> Any:
    import jax

    return jax.tree.map(put, cache)


EMPTY: dict[str, tuple[bool, Any]] = {
    "static": (False, static),
    "sliding": (True, lambda made, batch: made.new_cache(SlidingCache, batch=batch, spare=1)),
    "paged": (False, lambda made, batch: roomy(made)),
    "shared": (False, lambda made, batch: shared(made, static(made, batch), tokens((), 2))),
}


def test_static_caches_compiled_are_those_of_numpy() -> None:
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax  # noqa: F401  makes layers and caches pytrees

    held = static(layer(False), (3,)).append(*np.random.default_rng(4).normal(size=(2, 3, 2, 5, 4)))
    changed = jax.jit(lambda cache, rows, lengths: cache.truncate(lengths).take(rows))
    lengths, rows = np.array([3, 0, 9]), np.array([2, 0, 0])
    wanted = held.truncate(lengths).take(rows)
    for got, want in zip(*map(jax.tree.leaves, (changed(on_jax(held), rows, lengths), wanted)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EMPTY)
def test_a_scan_in_which_beams_change_places_and_guesses_are_taken_back(kind: str) -> None:
    """Each step reads a token and a guess, takes the guess back, and goes on with other rows."""
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax  # noqa: F401  makes layers and caches pytrees

    window, empty = EMPTY[kind]
    x, rows = (
        np.random.default_rng(3).normal(size=(4, 3, 2, D_IN)),
        np.array([[2, 0, 0], [1, 1, 0], [0, 2, 1], [2, 2, 2]]),
    )
    made, fresh = layer(window, put), on_jax(empty(layer(window), (3,)))

    @jax.jit
    def decode(made: Any, cache: Any, x: Any, rows: Any) -> Any:
        def step(cache: Any, now: Any) -> Any:
            out, longer = made(now[0], cache=cache)
            return longer.truncate(cache.lengths + 1).take(now[1]), out[:, 0]

        return jax.lax.scan(step, cache, (x, rows))

    _, outs = decode(made, fresh, put(x), put(rows))
    prompt = tokens((), 2 if kind == "shared" else 0)
    before = [prompt] * 3
    for now, out, chosen in zip(x, outs, rows, strict=True):
        longer = [np.concatenate([was, new[:1]]) for was, new in zip(before, now, strict=True)]
        for item, whole in zip(out, longer, strict=True):
            np.testing.assert_allclose(item, alone(whole, window)[-1], rtol=0, atol=2e-5)
        before = [longer[n] for n in chosen]


@pytest.mark.slow
def test_what_a_trace_cannot_refuse_is_nan() -> None:
    """A ring that has lost what a query would see, and pages that are too few for the rows."""
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax  # noqa: F401  makes layers and caches pytrees

    held = jax.jit(lambda cache: cache.truncate(np.array(4)))(on_jax(ring(1)))
    x = jax.numpy.ones((1, 4, 1))
    out, longer = jax.jit(lambda cache, x: cache.attend(x, x, x))(held, x)
    np.testing.assert_array_equal(np.isnan(out[0, :, 0]), [True, True, False, False])  # 2 and 3 are gone
    assert not longer.lacks()
    with pytest.raises(ValueError, match="lacks tokens that were taken back"):
        held.attend(x, x, x)

    full = PagedCache.empty(put(np.ones(1)), batch=(2,), num_kv_heads=1, depth=2, pages=4, page_size=1)
    full = full.append(*[put(X[:2])] * 2)
    again = jax.jit(lambda cache: cache.take(np.array([0, 1, 1])))(full)
    out, _ = jax.jit(lambda cache, x: cache.attend(x, x, x))(again, put(X[:, :, :1]))
    np.testing.assert_array_equal(np.isnan(out).any((1, 2, 3)), [True, True, True])


@pytest.mark.slow
def test_rows_and_lengths_of_a_growing_cache_in_a_trace() -> None:
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax  # noqa: F401  makes layers and caches pytrees

    made, cache, x = begun("growing", lambda a: jax.numpy.asarray(a, "float32" if a.dtype == np.float64 else None))

    @jax.jit
    def go_on(made: Any, cache: Any, more: Any, rows: Any, lengths: Any) -> Any:
        return made(more, cache=cache.truncate(lengths).take(rows))[0]

    out = go_on(made, cache, put(MORE[:2]), put(np.array([2, 0])), put(np.array([3, 9, 1])))
    for item, was, new in zip(out, (x[2][:1], x[0][:3]), MORE, strict=False):
        np.testing.assert_allclose(item, alone(np.concatenate([was, new]), False)[len(was) :], rtol=0, atol=2e-5)


def test_the_classes_of_caches_all_take_and_truncate() -> None:
    for cls in (GrowingCache, StaticCache, SlidingCache, PagedCache, SharedPrefixCache):
        assert cls.take is not Cache.take
        assert cls.truncate is not Cache.truncate
