"""Every wrong definition is killed, by numbers computed by hand or by a law; the right one passes them all."""

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np
import pytest

from . import test_hand_sized, test_hand_sized_gradients
from .mutants import MUTANTS, Mutant, mutated
from .recipes import Recipe
from .test_laws import LAWS, Law

Killer = Callable[[ModuleType], object]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a wrong definition may divide 0 by 0


def killers() -> Iterator[tuple[str, Killer]]:
    """The tests by hand, then the laws on a few calls each."""
    for module in (test_hand_sized, test_hand_sized_gradients):
        for name, test in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("test_") and list(inspect.signature(test).parameters) == ["core"]:
                yield name.removeprefix("test_"), test
    for name, law in LAWS.items():
        yield f"law of {name}", on_a_few_calls(law)


def on_a_few_calls(law: Law) -> Killer:
    def check(core: ModuleType) -> None:
        for recipe in recipes(law):
            law.check(core, np.asarray, recipe.draw())

    return check


def recipes(law: Law) -> Iterator[Recipe]:
    """Small calls that meet every mask and every feature that the law allows."""
    for n, mask in enumerate(law.masks):
        yield Recipe(
            batch=2, kv_heads=2, group=2, queries=2, keys=3, depth=2, value_depth=1,
            mask=mask,
            bias=law.biases[n % len(law.biases)],
            scale=(None, 0.7, -1.3)[n % 3],
            softcap=(None, 1.5)[n % 2],
            sinks=law.sinks and n % 3 == 0,
            rate=0.25 if law.dropout and n % 4 == 1 else 0.0,
            start=n % 2,
            seed=n,
        )  # fmt: skip


def killed_by(mutant: Mutant | None, chosen: Iterator[tuple[str, Killer]]) -> Iterator[str]:
    """Names of the tests that fail of this definition."""
    with mutated(mutant) as core:
        for name, killer in chosen:
            if not survives(core, killer):
                yield name


def survives(core: ModuleType, killer: Killer) -> bool:
    try:
        killer(core)
    except Exception:  # noqa: BLE001  a wrong definition may fail in any way, and each is a kill
        return False
    return True


def test_there_are_enough_and_each_is_another() -> None:
    assert len(MUTANTS) >= 25
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.room, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_the_right_definition_survives() -> None:
    assert list(killed_by(None, killers())) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_killed(mutant: Mutant) -> None:
    killer = next(killed_by(mutant, killers()), None)
    print(f"{mutant.name}: killed by {killer}")  # noqa: T201  shown by `pytest -rP`, and of a failure
    assert killer is not None


@pytest.mark.slow
def test_which_killers_kill_which(capsys: pytest.CaptureFixture[str]) -> None:
    """Print all that kill each mutant; the laws alone kill what they can see."""
    unseen_by_laws = []
    for mutant in MUTANTS:
        names = list(killed_by(mutant, killers()))
        if not any(name.startswith("law of") for name in names):
            unseen_by_laws.append(mutant.name)
        with capsys.disabled():
            print(f"{mutant.name}: {', '.join(names)}")  # noqa: T201  the table is what this test is for
        assert names
    assert len(unseen_by_laws) <= len(MUTANTS) // 4, unseen_by_laws
