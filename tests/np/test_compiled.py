"""The loop that numba compiles: its accuracy, its masks and limits, and numba that cannot be used."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_np import compiled, gemm

needs_numba = pytest.mark.skipif(not gemm.has("numba"), reason="numba is not installed; `pip install numba` brings it")


@needs_numba
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_exponential_is_right_to_a_unit_in_the_last_place(dtype: str) -> None:
    halves = (np.arange(-100, 80) + 0.5).astype(dtype)
    random = np.random.default_rng(0).uniform(-100, 80, 20_001).astype(dtype)
    x = np.concatenate([random, halves, np.nextafter(halves, -np.inf), np.nextafter(halves, np.inf)])
    found, expected = compiled.exp2(x), np.exp2(x.astype(np.longdouble))
    assert np.abs((found - expected) / np.spacing(expected.astype(dtype))).max() < 0.9
    assert compiled.exp2(x, out=x) is x
    np.testing.assert_array_equal(x, found)


@needs_numba
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_whole_powers_are_exact(dtype: str) -> None:
    limits = np.finfo(dtype)
    whole = np.arange(limits.minexp, limits.maxexp).astype(dtype)
    np.testing.assert_array_equal(compiled.exp2(whole), np.ldexp(np.ones_like(whole), whole.astype(int)))
    assert compiled.exp2(whole.dtype.type(-60)) == 2.0**-60


@needs_numba
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("limits", [None, (-100.0, 60.0)])
def test_what_is_not_a_number_stays_so(limits: Any, dtype: str) -> None:
    for size in (1, 7, 8, 33, 100):
        for place in {0, size // 2, size - 1}:
            x = np.zeros(size, dtype)
            x[place] = np.nan
            np.testing.assert_array_equal(compiled.exp2(x, limits=limits), np.where(np.isnan(x), x, 1))


@needs_numba
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_limits(dtype: str) -> None:
    x = np.array([-1e30, -np.inf, -101, -60, 3, 60, 61, 1e30, np.inf] * 5, dtype)
    expected = np.exp2(np.clip(x, -100, 60))
    np.testing.assert_array_equal(compiled.exp2(x, limits=(-100.0, 60.0)), expected)


@needs_numba
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("limits", [None, (-90.0, 60.0)])
def test_the_loops_remainder_gives_the_bits_of_its_body(limits: Any, dtype: str) -> None:
    x = np.random.default_rng(0).uniform(-100, 80, 137).astype(dtype)
    whole = compiled.exp2(x, limits=limits)
    for size in range(70):
        for first in (0, 1, 2, 5):
            cut = slice(first, first + size)
            np.testing.assert_array_equal(compiled.exp2(x[cut], limits=limits), whole[cut])


def printed(program: str, **environment: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", program]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env, timeout=60).stdout.strip()


@needs_numba
@pytest.mark.parametrize(
    ("before", "environment"),
    [
        ("", {"NUMBA_DISABLE_JIT": "1"}),
        ("import numpy; numpy.__version__ = '99.0'; ", {}),
        ("import sys; sys.modules['numba'] = None; ", {}),
    ],
    ids=["it is disabled", "NumPy is too new", "it is missing"],
)
def test_numba_that_cannot_be_used_counts_as_not_installed(before: str, environment: dict[str, str]) -> None:
    assert printed(f"{before}from attention_np import gemm; print(gemm.has('numba'))", **environment) == "False"


@needs_numba
def test_a_loop_that_does_not_compile_counts_as_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def loop(x: Any, low: Any, high: Any) -> None:
        x.no_such_thing()

    monkeypatch.setattr(compiled, "_loop", lambda dtype, clamped: loop)
    assert compiled._compiled(np.dtype(np.float32), False) is None


@needs_numba
def test_where_there_is_no_place_for_a_cache_the_loop_is_compiled_without(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core.caching import CacheImpl

    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    loop, x = compiled._compiled(np.dtype(np.float32), False), np.arange(5, dtype=np.float32)
    assert loop.stats.cache_path is None
    loop(x, 0.0, 0.0)
    assert x.tolist() == [1, 2, 4, 8, 16]


INTERRUPTED = """
import builtins, numpy as np
from attention_np import dot_product_attention
left, importing = [20], builtins.__import__
def stop(name, *given, **more):
    left[0] -= name.startswith("numba")
    if left[0] == 0:
        left[0] = -1
        raise KeyboardInterrupt
    return importing(name, *given, **more)
builtins.__import__ = stop
x = np.ones((1, 300, 8), np.float32)
for _ in range(2):
    try:
        print(dot_product_attention(x, x, x, impl="tiled").mean().round(3))
    except KeyboardInterrupt:
        print("interrupted")
"""


@needs_numba
def test_an_interrupted_import_of_numba_ends_no_later_call() -> None:
    assert printed(INTERRUPTED, ARRAY_ATTENTION_GEMM="auto").split() == ["interrupted", "1.0"]


@pytest.mark.slow
@needs_numba
@pytest.mark.parametrize("ending", ["*.nbi", "*.nbc"])
def test_a_cache_that_was_cut_short_is_not_read(ending: str, tmp_path: Path) -> None:
    program = "from attention_np import compiled; print(compiled.exp2(__import__('numpy').arange(3.0)))"
    assert printed(program, NUMBA_CACHE_DIR=str(tmp_path)) == "[1. 2. 4.]"
    files = list(tmp_path.rglob(ending))
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:20])
    assert printed(program, NUMBA_CACHE_DIR=str(tmp_path)) == "[1. 2. 4.]"


IN_THREADS = """
import os, threading, numpy as np
from attention_np import compiled
found = []
def call():
    x = compiled.exp2(np.arange(5, dtype=np.float32))
    found.append(x.sum())
    return x.sum() == 31
threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
child = os.fork()
if child == 0: os._exit(not call())
print(*found, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@needs_numba
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_threads_may_load_it_at_once_and_forked_children_use_it() -> None:
    assert printed(IN_THREADS) == "31.0 31.0 31.0 31.0 0"
