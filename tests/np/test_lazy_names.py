"""What loads at its first use is there for whoever looks, whatever was imported before."""

import pkgutil
import subprocess
import sys

import attention_core
import attention_np

EVERY_MODULE = """
import pkgutil, attention_np
for module in pkgutil.walk_packages(attention_np.__path__, "attention_np."):
    __import__(module.name)
print(type(attention_np.init).__name__)
"""
LOOK_FIRST = """
import attention_core
print(sorted(set(attention_core.__all__) - set(dir(attention_core))))
"""


def printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_a_module_hides_no_public_name() -> None:
    """A module that is imported becomes an attribute of its package, in the place of a function of that name."""
    assert printed(EVERY_MODULE) == "function"
    modules = {module.name for module in pkgutil.iter_modules(attention_np.__path__)}
    assert modules & set(attention_np.__all__) == {"dialects"}


def test_every_public_name_is_listed_before_its_first_use() -> None:
    assert printed(LOOK_FIRST) == "[]"
    assert set(attention_np.__all__) <= set(dir(attention_np))
    assert set(attention_core.__all__) <= set(dir(attention_core))
