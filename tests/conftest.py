"""What every test shares: fresh processes, skips that say what to install, and reproducible random examples."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NO_TORCH = "PyTorch is not installed; `pip install torch==2.13.0` brings it"

os.environ.setdefault("MPLBACKEND", "agg")


def pytest_configure(config: pytest.Config) -> None:
    """Give hypothesis no deadline, and under CI the same examples every time; let XLA compile fast in the quick suite.

    Two thirds of the quick suite's time would be XLA optimising programs that run once. The slow tests, the suite run
    whole, and the conformance command run what users run.
    """
    if "not slow" in config.option.markexpr:
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    if importlib.util.find_spec("hypothesis") is None:
        return
    from hypothesis import settings

    settings.register_profile("local", deadline=None)
    settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
    settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests marked `torch` where it is missing."""
    if item.get_closest_marker("torch") is not None and importlib.util.find_spec("torch") is None:
        pytest.skip(NO_TORCH)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Hold BLAS at one thread where several workers share the cores; the tests of threads want theirs."""
    if "PYTEST_XDIST_WORKER" not in os.environ or ROOT / "tests" / "np" in item.path.parents:
        return (yield)
    with _blas().limit(limits=1):
        return (yield)


@cache
def _blas() -> Any:
    import numpy  # noqa: F401  # whose BLAS it is
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def fresh_python() -> Callable[..., str]:
    """Run a program in a new interpreter, from the checkout, and return what it printed."""

    def run(program: str, *flags: str) -> str:
        command = [sys.executable, *flags, "-c", program]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
