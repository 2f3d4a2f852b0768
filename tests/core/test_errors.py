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
