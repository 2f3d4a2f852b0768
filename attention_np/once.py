"""What is loaded at its first use, by one thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import TypeVar

__all__ = ["once"]

_LOADING = threading.RLock()
_Load = TypeVar("_Load", bound=Callable[..., object])

if hasattr(os, "register_at_fork"):  # a child has no thread that would end what another one was loading
    os.register_at_fork(before=_LOADING.acquire, after_in_parent=_LOADING.release, after_in_child=_LOADING.release)


def once(load: _Load) -> _Load:
    """Keep a function's results, one for each argument; `cache` alone lets two threads load at once."""
    kept = cache(load)

    @cache
    @wraps(load)
    def locked(*arguments: object) -> object:
        with _LOADING:
            return kept(*arguments)

    return locked  # type: ignore[return-value]  # the same signature
