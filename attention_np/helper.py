"""A job that another thread may do, made of nothing that an interrupt can leave locked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

__all__ = ["Helper", "Job", "join", "serve"]

Job: TypeAlias = Callable[[], None]


class Helper:
    """A job for a thread of the pool, which the caller takes back where none has begun it.

    An interrupt may come after any call, also in the standard library's conditions and futures, which then stay locked.
    So there is nothing here but a lock of C's, and each step may be done twice.
    """

    def __init__(self, job: Job) -> None:
        self.error: BaseException | None = None
        self._job: Job | None = job
        self._claim: dict[str, str] = {}
        self._done = False
        self._running = threading.Lock()
        self._running.acquire()

    def run(self) -> None:
        """Do the job, on a thread of the pool."""
        if self._claim.setdefault("by", "pool") == "pool":
            try:
                assert self._job is not None
                self._job()
            except BaseException as error:  # noqa: BLE001  # the caller raises it
                self.error = error
            finally:
                self._job, self._done = None, True
                self._running.release()

    def wait(self) -> None:
        """Take the job back, or wait for its end."""
        if self._claim.setdefault("by", "caller") == "pool":
            while not self._done:
                self._running.acquire()


def join(helpers: list[Helper]) -> None:
    """Wait until no helper touches the call's arrays; an interrupt while waiting is raised after that."""
    interrupt: BaseException | None = None
    while True:
        try:
            for helper in helpers:
                helper.wait()
            break
        except (KeyboardInterrupt, SystemExit) as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def serve(tasks: SimpleQueue[Helper]) -> None:
    """Run what comes, for ever: the body of a thread."""
    while True:
        tasks.get().run()
