"""One pool of threads for the process, and BLAS held at one thread while the pool works.

Results never depend on the number of threads: jobs are independent, and every BLAS call runs on one thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue
from typing import Any

import numpy as np

from .helper import Helper, Job, join, serve

__all__ = ["get_num_threads", "run_jobs", "set_num_threads"]


class _State:
    """The pool and the count of the calls that hold BLAS at one thread; a forked child starts anew."""

    def __init__(self, number: int | None = None) -> None:
        self.lock = threading.Lock()
        self.number = number
        self.tasks: SimpleQueue[Helper] = SimpleQueue()
        self.pool_size = 0
        self.holders = 0
        self.controller: Any = None
        self.shared: Any = None
        self.own: Any = None
        self.before: list[tuple[Any, int]] = []  # libraries held at one thread, and how many each had


_STATE = _State()


def set_num_threads(number: Any) -> None:
    """Let at most ``number`` threads compute, the caller's among them; ``None`` restores the default.

    The default is ``ARRAY_ATTENTION_NUM_THREADS``, else the number of processor cores that this process may use.

    >>> from attention_np.config import get_num_threads, set_num_threads
    >>> set_num_threads(1)
    >>> get_num_threads()
    1
    >>> set_num_threads(None)
    """
    if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
        raise TypeError(f"`number` must be a Python integer or None; got a {type(number).__qualname__}")
    if number is not None and number < 1:
        raise ValueError(f"`number` must be at least 1; got {number}")
    _STATE.number = number


def get_num_threads() -> int:
    """Return how many threads may compute at a time, the caller's among them.

    >>> from attention_np.config import get_num_threads
    >>> get_num_threads() >= 1
    True
    """
    return _STATE.number or _default_number()


def _default_number() -> int:
    given = os.environ.get("ARRAY_ATTENTION_NUM_THREADS", "").strip()
    if given:
        if not given.isdigit() or int(given) < 1:
            raise ValueError(f"ARRAY_ATTENTION_NUM_THREADS must be a number of threads, at least 1; got {given!r}")
        return int(given)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(jobs: Iterable[Job], number: int) -> None:
    """Run all jobs on the caller's thread and at most ``number - 1`` of the pool's; raise what the first one raised.

    The caller works too and waits only for helpers that have begun, so a call from inside a job cannot deadlock.
    """
    with _one_blas_thread():
        queue = _Queue(jobs)
        helpers: list[Helper] = []
        try:
            _send(queue.work, number - 1, helpers)
            queue.work()
        except BaseException:
            queue.stop()
            raise
        finally:
            join(helpers)
        for helper in helpers:
            if helper.error is not None:
                raise helper.error


class _Queue:
    """Jobs that several threads take one by one; the first exception ends them all."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = iter(jobs)
        self._lock = threading.Lock()

    def _next(self) -> Job | None:
        with self._lock:
            return next(self._jobs, None)

    def stop(self) -> None:
        with self._lock:
            self._jobs = iter(())

    def work(self) -> None:
        try:
            with np.errstate(all="ignore"), _own_limit():
                while (job := self._next()) is not None:
                    job()
        except BaseException:
            self.stop()
            raise


def _send(job: Job, copies: int, helpers: list[Helper]) -> None:
    """Give copies of a job to the pool, which grows to as many threads; each is in ``helpers`` before it may begin."""
    if copies < 1:
        return
    with _STATE.lock:
        while _STATE.pool_size < copies:
            try:
                threading.Thread(target=serve, args=(_STATE.tasks,), name="array-attention", daemon=True).start()
            except RuntimeError:  # the interpreter is ending: the caller does the work alone
                break
            _STATE.pool_size += 1
    for _ in range(copies):
        helpers.append(Helper(job))
        _STATE.tasks.put(helpers[-1])


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Hold BLAS at one thread while any call computes: counted, so that calls of several threads end in any order."""
    counted: list[bool] = []
    interrupt: KeyboardInterrupt | None = None
    try:
        _hold_blas(counted)
        yield
    finally:
        while True:
            try:
                _release_blas(counted)
                break
            except KeyboardInterrupt as error:  # BLAS comes back first
                interrupt = error
    if interrupt is not None:
        raise interrupt


def _hold_blas(counted: list[bool]) -> None:
    """Count one more call; nothing can interrupt between the two lines that do."""
    with _STATE.lock:
        if _STATE.holders == 0:
            _limit_blas()
        _STATE.holders += 1
        counted.append(True)


def _release_blas(counted: list[bool]) -> None:
    with _STATE.lock:
        if counted:
            _STATE.holders -= 1
            counted.clear()
        if _STATE.holders == 0:
            _restore_blas()


def _limit_blas() -> None:
    """What an interrupted call has left limited is in ``before`` already, with the number that it had."""
    if _STATE.shared is None:
        _STATE.shared = _libraries(shared=True).lib_controllers
    found = [(each, each.get_num_threads()) for each in _STATE.shared]
    free = [(each, number) for each, number in found if number is not None and number > 1]
    if free:
        _STATE.before += free
        with _as_controlling_thread():
            for each, _ in free:
                each.set_num_threads(1)


def _restore_blas() -> None:
    if _STATE.before:
        with _as_controlling_thread():
            for each, number in _STATE.before:
                each.set_num_threads(number)
        _STATE.before = []


@contextmanager
def _as_controlling_thread() -> Iterator[None]:
    """Let this thread set OpenBLAS's number, which threadpoolctl 3.7 and later else grants to the first that asks."""
    from threadpoolctl import OpenBLASController

    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
    if clear is None:
        yield
        return
    clear(force=True)
    try:
        yield
    finally:
        clear(force=True)


def blas_controller() -> Any:
    """Return threadpoolctl's controller of the BLAS libraries that are loaded, found once."""
    if _STATE.controller is None:
        from threadpoolctl import ThreadpoolController

        _STATE.controller = ThreadpoolController().select(user_api="blas")
    return _STATE.controller


def _own_limit() -> Any:
    """Hold at one thread what counts threads for each calling thread on its own, as OpenBLAS on OpenMP does."""
    if _STATE.own is None:
        _STATE.own = _libraries(shared=False)
    return _STATE.own.limit(limits=1) if _STATE.own.lib_controllers else _NOTHING


_NOTHING = nullcontext()


def _libraries(*, shared: bool) -> Any:
    """Return the controller of the libraries whose number of threads is the process's, or else the calling thread's."""
    controller = blas_controller()
    layers = {each.get("threading_layer") for each in controller.info()}
    return controller.select(threading_layer=[each for each in layers if (each != "openmp") == shared])


def _after_fork() -> None:
    """In a forked child no thread of the pool lives, and no other call holds BLAS."""
    global _STATE
    before, _STATE = _STATE.before, _State(_STATE.number)
    _STATE.before = before
    _restore_blas()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
