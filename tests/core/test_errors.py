"""Every wrong call, in one table: the same exception and the same words on every library, also while JAX traces."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attention_core as core
from tests.core.libraries import EACH, JITTED, NUMPY, Library
from tests.core.wrong import F32, Arrays, Wrong
from tests.core.wrong_calls import TABLE_OF_CALLS
from tests.core.wrong_masks import BIASES, MASKS

CAUSAL = core.masks.causal()
TABLE = [*TABLE_OF_CALLS, *MASKS, *BIASES]


def test_the_table_is_long_and_names_each_row_once() -> None:
    assert len(TABLE) >= 60
    assert len({row.name for row in TABLE}) == len(TABLE)


def raised(row: Wrong, library: Library) -> tuple[Exception, Arrays]:
    arrays = Arrays(library)
    with pytest.raises((ValueError, TypeError, NotImplementedError)) as caught:
        library.call(lambda: row.call(arrays))
    return caught.value, arrays


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
@EACH
def test_wrong_calls(library: Library, row: Wrong) -> None:
    if library.name in row.lacking:
        pytest.skip(row.lacking[library.name])
    error, arrays = raised(row, library)
    assert type(error) is row.error
    for words in row.words:
        assert words in str(error)
    if library != NUMPY:
        assert plain(str(error)) == plain(str(raised(row, NUMPY)[0]))
    for ours, before in arrays.made:
        np.testing.assert_array_equal(library.numpy(ours), before)


def plain(message: str) -> str:
    """The default integer, of which index arrays are, is int64 but int32 in JAX."""
    return message.replace("returned an array of int32", "returned an array of int64")


# Kinds of arrays that only NumPy has, and two libraries in one call


@pytest.mark.parametrize("name", ["query", "key", "value", "mask", "bias", "sinks", "query_positions"])
@pytest.mark.parametrize("refused", [np.matrix, np.ma.array], ids=["matrix", "masked"])
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_matrices_and_masked_arrays(refused: Callable[[Any], Any], name: str) -> None:
    x = np.eye(3)
    given = {"mask": x > 0, "sinks": np.zeros(1), "query_positions": np.arange(3)}
    call = {"query": x, "key": x, "value": x, name: refused(given.get(name, x))}
    what = {"matrix": "numpy.matrix", "array": "numpy.ma.MaskedArray"}[refused.__name__]
    with pytest.raises(TypeError, match=rf"`{name}` must be a plain array; got a {re.escape(what)}"):
        core.dot_product_attention(**call)


@pytest.mark.parametrize("name", ["key", "value", "mask", "bias", "sinks", "query_positions", "key_positions"])
@pytest.mark.parametrize("other", ["jax", "array_api_strict", pytest.param("torch", marks=pytest.mark.torch)])
def test_two_libraries_in_one_call(other: str, name: str) -> None:
    pytest.importorskip(other, reason=f"needs {other}")
    x = np.eye(3, dtype=F32)
    given = {"mask": x > 0, "sinks": np.zeros(1, F32), "query_positions": np.arange(3), "key_positions": np.arange(3)}
    call = {"query": x, "key": x, "value": x, name: Library(other).to(given.get(name, x))}
    message = (
        f"`{name}` is an array of {other} but `query` is one of numpy: all arrays of a call must come from one library"
    )
    with pytest.raises(TypeError, match=message):
        core.dot_product_attention(**call)
    theirs = {n: Library(other).to(x) for n in ("query", "key", "value")}
    with pytest.raises(TypeError, match=rf"`{name}` is an array of numpy but `query` is one of {other}"):
        core.dot_product_attention(**{**theirs, name: given.get(name, x)})


def test_numpy_constants_are_welcome_while_jax_traces() -> None:
    x = np.eye(3, dtype=F32)
    call = {"mask": x > 0, "bias": x, "sinks": np.zeros(1, F32), "query_positions": np.arange(3)}
    got = JITTED.call(lambda q: core.dot_product_attention(q, x, x, **call), x)
    np.testing.assert_allclose(got, core.dot_product_attention(x, x, x, **call), rtol=1e-6)
    with pytest.raises(TypeError, match="`key` is an array of array_api_strict but `query` is one of jax"):
        JITTED.call(lambda q: core.dot_product_attention(q, Library("array_api_strict").to(x), x), x)


def test_a_kernel_of_another_library_is_refused_by_name() -> None:
    kernel = core.Kernel("only-here", *[lambda *problem, **asked: None] * 4)
    core.register_kernel(Library("array_api_strict").xp, kernel)
    x = np.eye(3)
    with pytest.raises(NotImplementedError, match='`impl="only-here"` does not compute arrays of numpy'):
        core.dot_product_attention(x, x, x, impl="only-here")


def test_a_wrong_call_raises_before_a_kernel_is_chosen() -> None:
    x = np.eye(3)
    with pytest.raises(ValueError, match="`softcap` must be positive"):
        core.which_kernel(x, x, x, impl="unknown", softcap=-1.0)


ASKED_OUTSIDE_A_CALL: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: CAUSAL.draw(3, 3, tile=0), ValueError, "`tile` must be at least 1; got 0"),
    (lambda: CAUSAL.draw(3, 3, tile=-1), ValueError, "`tile` must be at least 1; got -1"),
    (lambda: CAUSAL.draw(None, 3), TypeError, "`queries` must be a Python integer; got None"),
    (lambda: CAUSAL.array(2, -1), ValueError, "`keys` must be at least 0; got -1"),
    (lambda: CAUSAL.array(2.5, 3), TypeError, "`queries` must be a Python integer; got a float"),
    (lambda: CAUSAL.array(2, 3, heads=None), TypeError, "`heads` must be a Python integer; got None"),
    (lambda: CAUSAL.array(2, 3, batch=2), TypeError, "`batch` must be a tuple of sizes; got an int"),
    (lambda: CAUSAL.array(2, 3, batch=(2, -1)), ValueError, "`batch` must be at least 0; got -1"),
    (lambda: core.biases.alibi(10**30), ValueError, "`num_heads` must be at most 65536"),
    (lambda: core.biases.relative(np.ones((8, 2)), max_distance=10**9), ValueError, "`max_distance` must be at most"),
    (lambda: core.merge(None, None), TypeError, "`outs` must be a list of arrays, one a part; got None"),
    (lambda: core.merge(np.ones((1, 2, 3)), [np.ones(2)]), TypeError, "`outs` must be a list of arrays"),
    (lambda: core.merge([1], [2]), TypeError, "`outs[0]` must be an array; got an int"),
]


@pytest.mark.parametrize(("call", "kind", "words"), ASKED_OUTSIDE_A_CALL)
def test_wrong_questions_outside_a_call(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        call()


@pytest.mark.parametrize("offsets", [np.array([0, 2, 4], ">i4"), np.array([0, 2, 4], np.uint8)])
def test_offsets_of_any_integer_dtype(offsets: np.ndarray) -> None:
    assert core.segment_ids(offsets, 5).tolist() == [0, 0, 1, 1, -1]
