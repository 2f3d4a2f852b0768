"""Under JAX: caches are pytrees, decoding is one `lax.scan`, and what cannot be checked in a trace comes out as NaN."""

from typing import Any

import numpy as np
import pytest

from attention_core.cache import GrowingCache, PagedCache, SharedPrefixCache, StaticCache
from tests.cache.kinds import alone, each_alone, layer, paged, shared, sliding, static, tokens

jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")

import attention_jax  # noqa: E402, F401  makes layers and caches pytrees

PROMPT = 5
KINDS: dict[str, tuple[bool, Any]] = {
    "static": (False, static),
    "sliding": (True, sliding),
    "paged": (True, paged),
    "shared": (False, None),
}


def put(x: np.ndarray) -> Any:
    return jax.numpy.asarray(x, "float32")


def on_jax(x: Any) -> Any:
    return jax.tree.map(lambda a: jax.numpy.asarray(a, "float32" if a.dtype == np.float64 else "int32"), x)


def empty_of(kind: str, batch: tuple[int, ...]) -> Any:
    window, empty = KINDS[kind]
    made = layer(window)
    return on_jax(shared(made, static(made, batch), tokens((), PROMPT)) if empty is None else empty(made, batch))


@pytest.mark.parametrize(
    "kind", ["static", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("sliding", "paged", "shared"))]
)
def test_a_scan_over_tokens_of_some_sequences_is_each_alone(kind: str) -> None:
    """Seven steps, in each of which some sequences get a token and some none."""
    window = KINDS[kind][0]
    made, x, fresh = layer(window, put), tokens((3,)), empty_of(kind, (3,))
    given = np.array([[1, 1, 1], [1, 0, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 1, 1]])

    @jax.jit
    def decode(made: Any, cache: Any, x: Any, given: Any) -> Any:
        def step(cache: Any, now: Any) -> Any:
            out, cache = made(now[0][:, None], cache=cache, lengths=now[1])
            return cache, out[:, 0]

        return jax.lax.scan(step, cache, (jax.numpy.moveaxis(x, 1, 0), given))

    cache, outs = decode(made, fresh, put(x), given)
    assert jax.tree.structure(cache) == jax.tree.structure(fresh)
    prompt = tokens((), PROMPT if kind == "shared" else 0)
    np.testing.assert_array_equal(cache.positions(1)[:, 0], len(prompt) + given.sum(0))
    for n in range(3):
        real = given[:, n] > 0
        expected = alone(np.concatenate([prompt, x[n, real]]), window)[len(prompt) :]
        np.testing.assert_allclose(outs[real, n], expected, rtol=0, atol=2e-5)
    if kind == "static":  # the same program again runs into the capacity of 9: these tokens are lost, and say so
        cache, outs = decode(made, cache, put(x), given)
        lost = (given > 0) & (given.sum(0) + given.cumsum(0) > 9)
        np.testing.assert_array_equal(lost.sum(0), [5, 1, 0])
        np.testing.assert_array_equal(np.isnan(outs).any(-1), lost)
        np.testing.assert_array_equal(cache.lengths, 2 * given.sum(0))
        assert decode._cache_size() == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_left_padded_prefill_then_decoding_in_one_program(kind: str) -> None:
    window = KINDS[kind][0]
    made, x, lengths, fresh = layer(window, put), tokens((3,)), np.array([4, 1, 2]), empty_of(kind, (3,))

    @jax.jit
    def decode(made: Any, cache: Any, x: Any, lengths: Any) -> Any:
        first, cache = made(x[:, :4], cache=cache, lengths=lengths, padding="left")

        def step(cache: Any, token: Any) -> Any:
            out, cache = made(token[:, None], cache=cache)
            return cache, out[:, 0]

        return first, jax.lax.scan(step, cache, jax.numpy.moveaxis(x[:, 4:], 1, 0))[1]

    first, rest = decode(made, fresh, put(x), lengths)
    prompt = tokens((), PROMPT if kind == "shared" else 0)
    for n, length in enumerate(lengths):
        expected = alone(np.concatenate([prompt, x[n, 4 - length :]]), window)[len(prompt) :]
        got = np.concatenate([first[n, 4 - length :], rest[:, n]])
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)


@pytest.mark.slow
def test_beyond_the_pages_a_trace_gives_nan_for_the_token_and_all_after_it() -> None:
    made, x = layer(False, put), put(tokens((2,), 5))
    small = on_jax(layer(False).new_cache(PagedCache, batch=(2,), pages=5, page_size=2, max_pages=3))
    more = jax.jit(lambda x, cache, lengths: made(x, cache=cache, lengths=lengths))
    first, held = more(x, small, np.array([5, 3]))
    np.testing.assert_allclose(first[1, :3], each_alone(np.asarray(x), False)[1, :3], rtol=0, atol=2e-5)
    last, held = more(x, held, np.array([5, 5]))
    np.testing.assert_array_equal(np.isnan(last).any(-1), [[False] + [True] * 4] * 2)
    np.testing.assert_array_equal(held.lengths, [10, 8])
    held = held.release(jax.numpy.array([True, False]))
    last, _ = more(x, held, np.array([5, 1]))
    assert not np.isnan(last[0]).any()
    assert np.isnan(last[1, 0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [StaticCache, PagedCache])
def test_a_shared_prompt_that_lost_tokens_in_a_trace_is_loud(kind: Any) -> None:
    like, sizes = put(np.ones(1)), {"num_kv_heads": 1, "depth": 2}
    x = put(np.random.default_rng(0).normal(size=(1, 5, 2)))
    room = {StaticCache: {"capacity": 4}, PagedCache: {"pages": 2, "page_size": 2}}[kind]
    prompt = jax.jit(lambda cache, x: cache.append(x, x))(kind.empty(like, **sizes, **room), x)
    cache = SharedPrefixCache.of(prompt, GrowingCache.empty(like, batch=(3,), **sizes))
    query = jax.numpy.stack([x] * 3)[:, :, :1]
    with pytest.raises(ValueError, match="`prefix` has lost tokens"):
        cache.attend(query, query, query)
    out, _ = jax.jit(lambda cache, x: cache.attend(x, x, x))(cache, query)
    assert np.isnan(out).all()


def test_lengths_are_of_the_caches_library_outside_a_trace() -> None:
    cache = GrowingCache.empty(put(np.ones(1)), batch=(2,), num_kv_heads=1, depth=2)
    x, lengths = put(np.ones((2, 1, 3, 2))), np.array([1, 3])
    with pytest.raises(TypeError, match="`x` is an array of jax but `lengths` is one of numpy"):
        cache.append(x, x, lengths=lengths)
    held = jax.jit(lambda cache, x: cache.append(x, x, lengths=lengths))(cache, x)
    np.testing.assert_array_equal(held.lengths, lengths)


def test_a_decoding_step_is_exported() -> None:
    pytest.importorskip("flatbuffers", reason="jax.export writes files by flatbuffers: pip install flatbuffers")
    from jax import export

    made, x = layer(True, put), put(tokens((2,), 1))
    fresh = empty_of("paged", (2,))
    step = jax.jit(lambda made, x, cache: made(x, cache=cache))
    again = export.deserialize(export.export(step)(made, x, fresh).serialize())
    (out, held), (want, _) = again.call(made, x, fresh), step(made, x, fresh)
    np.testing.assert_allclose(out, want, rtol=0, atol=1e-6)
    assert type(held) is PagedCache


@pytest.mark.slow
def test_caches_map() -> None:
    made = layer(True, put)
    cache = jax.vmap(lambda x: made(x, cache=static(made, ()))[1])(put(tokens((2,), 3)))
    assert cache.lengths.shape == (2,)
    out, cache = jax.jit(jax.vmap(lambda x, cache: made(x, cache=cache)))(put(tokens((2,))[:, 3:5]), cache)
    assert out.shape == (2, 2, 12)
    assert (cache.lengths == 5).all()


@pytest.mark.slow
def test_no_page_takes_the_place_of_one_that_was_lacking() -> None:
    """A sequence lacks its third page and gets a fourth, of what another gave back: its rows stay lost."""
    x = jax.numpy.ones((2, 1, 4, 1))
    append = jax.jit(lambda held, x, lengths: held.append(x, x, lengths=lengths))
    full = PagedCache.empty(x, batch=(2,), num_kv_heads=1, depth=1, pages=4, page_size=2).append(x, x)
    lacking = append(full, x, jax.numpy.asarray([2, 0])).release(jax.numpy.asarray([False, True]))
    held = append(lacking, x, jax.numpy.asarray([2, 0]))
    assert (held.table[0] >= 0).tolist() == [True, True, False, True]
    for kept in (held.take(jax.numpy.asarray([0])), held.truncate(6).take(jax.numpy.asarray([0]))):
        assert kept.free_pages == 2
        assert kept.lacks().all()
        with pytest.raises(ValueError, match="this cache has 2 free pages of 2 tokens"):
            kept.append(x[:1], x[:1])


def test_caches_are_pytrees() -> None:
    grown = GrowingCache.empty(np.ones(1), num_kv_heads=2, depth=4)
    assert len(jax.tree.leaves(jax.tree.map(lambda x: 0, grown))) == 5
    assert len(jax.tree.leaves(SharedPrefixCache.of(grown, grown))) == 10
