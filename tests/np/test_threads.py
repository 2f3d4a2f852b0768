"""The pool: the same bits for any number of threads, BLAS limits that come back, and nothing that hangs."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_core import masks
from attention_np import dot_product_attention, threads


@pytest.fixture(autouse=True)
def default_threads() -> Any:
    yield
    threads.set_num_threads(None)


def inputs(seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((2, 4, 600, 16)).astype(np.float32) for _ in range(3))
    return q, k, v


def blas_threads() -> list[int]:
    return [each["num_threads"] for each in threads.blas_controller().info()]


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_any_number_of_threads_gives_the_same_bits(number: int) -> None:
    q, k, v = inputs()
    threads.set_num_threads(1)
    expected = dot_product_attention(q, k, v, mask=masks.causal(), impl="tiled")
    threads.set_num_threads(number)
    got = dot_product_attention(q, k, v, mask=masks.causal(), impl="tiled")
    np.testing.assert_array_equal(got, expected)


def test_many_callers_at_once_and_blas_comes_back() -> None:
    q, k, v = inputs()
    before, expected = blas_threads(), dot_product_attention(q, k, v, impl="tiled")
    threads.set_num_threads(3)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: dot_product_attention(q, k, v, impl="tiled"), range(8)))
    assert all((each == expected).all() for each in found)
    assert blas_threads() == before


@pytest.mark.parametrize("number", [1, 3])
def test_an_exception_in_a_job_reaches_the_caller(number: int) -> None:
    q, k, v = inputs()
    threads.set_num_threads(number)
    before = blas_threads()

    def broken(batch: Any, head: Any, i: Any, j: Any) -> Any:
        raise LookupError("of the rule")

    with pytest.raises(LookupError, match="of the rule"):
        dot_product_attention(q, k, v, mask=masks.rule(broken), impl="tiled")
    assert blas_threads() == before


def test_an_interrupt_ends_the_call_and_leaves_the_pool_usable() -> None:
    q, k, v = inputs()
    threads.set_num_threads(2)
    before, main = blas_threads(), threading.get_ident()

    def interrupting(batch: Any, head: Any, i: Any, j: Any) -> Any:
        if threading.get_ident() == main:
            raise KeyboardInterrupt
        time.sleep(0.01)
        return i >= j

    with pytest.raises(KeyboardInterrupt):
        dot_product_attention(q, k, v, mask=masks.rule(interrupting), impl="tiled")
    assert blas_threads() == before
    assert np.isfinite(dot_product_attention(q, k, v, impl="tiled")).all()


def test_a_call_from_inside_a_job_does_not_deadlock() -> None:
    q, k, v = inputs()
    threads.set_num_threads(2)

    def nested(batch: Any, head: Any, i: Any, j: Any) -> Any:
        dot_product_attention(q[0, :1], k[0, :1], v[0, :1], impl="tiled")
        return i >= j

    expected = dot_product_attention(q, k, v, mask=masks.causal(), impl="dense")
    got = dot_product_attention(q, k, v, mask=masks.rule(nested), impl="tiled")
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


FORKED = """
import os, numpy as np
from attention_np import dot_product_attention, threads
threads.set_num_threads(2)
x = np.random.default_rng(0).standard_normal((4, 600, 16)).astype(np.float32)
expected = dot_product_attention(x, x, x, impl="tiled")
child = os.fork()
if child == 0:
    same = (dot_product_attention(x, x, x, impl="tiled") == expected).all()
    os._exit(0 if same else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_has_a_pool_of_its_own(fresh_python: Callable[..., str]) -> None:
    assert fresh_python(FORKED, "-W", "ignore").split() == ["0"]


FORKED_AMID = """
import os, time, threading, numpy as np
from attention_np import dot_product_attention, masks, threads
x = np.zeros((600, 4), np.float32)
before = {each["filepath"]: each["num_threads"] for each in threads.blas_controller().info()}
begun = threading.Event()
def slow(batch, head, i, j):
    begun.set()
    time.sleep(0.05)
    return i >= j
call = threading.Thread(target=dot_product_attention, args=(x, x, x), kwargs=dict(mask=masks.rule(slow), impl="tiled"))
call.start()
begun.wait()
child = os.fork()
if child == 0:
    now = {each["filepath"]: each["num_threads"] for each in threads.blas_controller().info()}
    free = all(now[path] == number for path, number in before.items())
    fine = np.isfinite(dot_product_attention(x, x, x, impl="tiled")).all()
    os._exit(0 if free and fine else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
call.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_forked_amid_a_call_is_not_limited(fresh_python: Callable[..., str]) -> None:
    assert fresh_python(FORKED_AMID, "-W", "ignore").split() == ["0"]


def test_the_number_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAY_ATTENTION_NUM_THREADS", "5")
    assert threads.get_num_threads() == 5
    threads.set_num_threads(2)
    assert threads.get_num_threads() == 2
    threads.set_num_threads(None)
    monkeypatch.setenv("ARRAY_ATTENTION_NUM_THREADS", "many")
    with pytest.raises(ValueError, match="ARRAY_ATTENTION_NUM_THREADS"):
        threads.get_num_threads()


@pytest.mark.parametrize(("wrong", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_wrong_number_is_refused(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="number"):
        threads.set_num_threads(wrong)


INTERRUPTED = """
import os, signal
os.environ["OPENBLAS_NUM_THREADS"] = "2"
import numpy as np
from attention_np import dot_product_attention, masks, threads
signal.signal(signal.SIGALRM, signal.default_int_handler)
threads.set_num_threads(2)
x = np.random.default_rng(0).standard_normal((4, 1500, 16)).astype(np.float32)
before = [each["num_threads"] for each in threads.blas_controller().info()]
expected = dot_product_attention(x, x, x, impl="tiled")
hits = 0
for delay in (0.0005, 0.002, 0.005, 0.01, 0.02) * 4:
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        while True:
            dot_product_attention(x, x, x, impl="tiled")
    except KeyboardInterrupt:
        hits += 1
    assert [each["num_threads"] for each in threads.blas_controller().info()] == before
    assert threads._STATE.holders == 0 and not threads._STATE.before
    assert (dot_product_attention(x, x, x, impl="tiled") == expected).all()
print(hits)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system cannot interrupt at a given moment")
def test_control_c_at_any_moment_gives_blas_back(fresh_python: Callable[..., str]) -> None:
    assert fresh_python(INTERRUPTED).split() == ["20"]


POOLED = """
import multiprocessing, sys, numpy as np
from concurrent.futures import ProcessPoolExecutor
from attention_np import dot_product_attention, threads
def call(seed):
    x = np.random.default_rng(seed).standard_normal((4, 600, 16)).astype(np.float32)
    return dot_product_attention(x, x, x, impl="tiled")
if __name__ == "__main__":
    threads.set_num_threads(2)
    expected = [call(seed) for seed in range(3)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(sys.argv[1])) as pool:
        found = list(pool.map(call, range(3)))
    print(all((a == b).all() for a, b in zip(found, expected)))
"""


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_other_processes_give_the_same_bits(method: str, tmp_path: Path) -> None:
    script = tmp_path / "pooled.py"
    script.write_text(POOLED, encoding="utf-8")
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-W", "ignore", str(script), method]
    env = {**os.environ, "PYTHONPATH": str(root), "ARRAY_ATTENTION_GEMM": "numpy"}  # numba takes each process a second
    done = subprocess.run(command, check=False, cwd=root, env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["True"], done.stderr


def test_a_number_left_by_an_interrupt_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        number = 8

        def get_num_threads(self) -> int:
            return self.number

        def set_num_threads(self, number: int) -> None:
            self.number = number
            if interrupts:
                raise interrupts.pop()

    library, interrupts = Library(), [KeyboardInterrupt()]
    monkeypatch.setattr(threads, "_STATE", threads._State())
    threads._STATE.shared = [library]
    with pytest.raises(KeyboardInterrupt):
        threads.run_jobs([], 1)  # while the limit is set
    seen: list[int] = []
    threads.run_jobs([lambda: seen.append(library.number)], 1)
    assert (seen, library.number, threads._STATE.before) == ([1], 8, [])
    with pytest.raises(KeyboardInterrupt):
        threads.run_jobs([lambda: interrupts.append(KeyboardInterrupt())], 1)  # while it is given back
    assert (library.number, threads._STATE.before, threads._STATE.holders) == (8, [], 0)
