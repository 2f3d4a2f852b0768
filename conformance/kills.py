"""Which cases kill which mutant, and which of them name it: what the vectors are worth, measured."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from conformance.cases import Case, Group
from conformance.mutant_checks import NAMES
from conformance.mutants import Mutant
from conformance.runner import ERROR, FAIL, ask

MOST = 3
OPS = ("merge", "packed", "rotary")
# What a convention is about: elsewhere its mutant is right.
NEEDED = {
    **{
        name: (name,)
        for name in ("key_lengths", "query_lengths", "segments", "prefix", "chunked", "dilated", "dropout")
    },
    **{name: (name,) for name in ("bias", "alibi", "relative", "gradient", "batch")},
    "causal": ("causal", "causal_lower_right"),
    "lower_right": ("causal_lower_right",),
    "window": ("sliding_window",),
    "global": ("global_tokens",),
    "mask": ("mask",),
    "masks": ("and", "or", "not"),
    "masked": ("mask", "bias"),
    "empty": ("mask", "bias"),
    "cap": ("softcap",),
    "sink": ("sinks",),
    "weights": ("dropout",),
    "heads": ("heads",),
    "memory": ("strides",),
    "positions": ("positions",),
    "query_positions": ("positions",),
}
# Rounding differs with the order of operations: what computes in float32 is found, and has no numbers of its own.
UNNAMED = ("dtype=float32",)


@dataclass(frozen=True)
class Kills:
    """The cases that each mutant fails, and those of them where the runner says its name."""

    killed: dict[str, set[str]]
    named: dict[str, set[str]]

    def sets(self) -> dict[frozenset[str], list[str]]:
        """Return the cases by the set of mutants that they kill."""
        of_case: dict[str, set[str]] = defaultdict(set)
        for mutant, cases in self.killed.items():
            for case in cases:
                of_case[case].add(mutant)
        found: dict[frozenset[str], list[str]] = defaultdict(list)
        for case, mutants in of_case.items():
            found[frozenset(mutants)].append(case)
        return found


def mutants(groups: Iterable[Group]) -> tuple[str, ...]:
    """Return the names of all mutants: one for every variant of the groups, one for every check."""
    names = {v.name for group in asked(groups) for case in group.cases for v in case.variants}
    return (*sorted(names), *NAMES)


def asked(groups: Iterable[Group]) -> Iterator[Group]:
    """Yield the groups that mutants are asked: those of the conventions."""
    yield from (group for group in groups if not group.name.startswith("article-"))


def measure(groups: Iterable[Group]) -> Kills:
    """Ask every mutant every case: in its widest dtype, and mutants of precision in all."""
    groups = tuple(groups)
    killed: dict[str, set[str]] = {name: set() for name in mutants(groups)}
    named: dict[str, set[str]] = {name: set() for name in killed}
    for name, found in killed.items():
        mutant = Mutant(name)
        for group in asked(groups):
            for case in group.cases:
                if not concerned(case, name):
                    continue
                rows = [ask(group, case, mutant, dtype) for dtype in dtypes(case, name)]
                if any(row.status in (FAIL, ERROR) for row in rows):
                    found.add(case.id)
                if any(name in row.matches for row in rows):
                    named[name].add(case.id)
    return Kills(killed, named)


def concerned(case: Case, name: str) -> bool:
    """Say whether a mutant can be wrong here at all: each op is a question of its own, and so is refusing."""
    about = name.partition("=")[0]
    if about == "check" or not case.valid:
        return about == "check" and not case.valid
    if about in OPS or case.op in ("merge", "rotary"):
        return case.op == about
    needed = () if name == "mask=causal" else NEEDED.get(name.partition("=")[0], ())
    return not needed or any(word in _words(case) for word in needed)


def _words(case: Case) -> set[str]:
    bias = case.parameters["bias"]
    rules = {bias["rule"], *(part["rule"] for part in bias.get("of", ()))} if bias else set()
    return {*case.features, *rules}


def dtypes(case: Case, name: str) -> tuple[str, ...]:
    """Return the dtypes to ask in."""
    return case.dtypes if name.startswith("dtype=") else case.dtypes[:1]


def complaints(groups: Iterable[Group]) -> Iterator[str]:
    """Yield every mutant that lives or has no name, and every set of mutants that more than three cases kill."""
    kills = measure(groups)
    for name, cases in kills.killed.items():
        if not cases:
            yield f"no case kills the mutant `{name}`"
        elif not kills.named[name] and not name.startswith("check=") and name not in UNNAMED:
            yield f"no case names the mutant `{name}`"
    for mutants_killed, cases_alike in kills.sets().items():
        if len(cases_alike) > MOST:
            yield f"{len(cases_alike)} cases kill the same {len(mutants_killed)} mutants: {', '.join(cases_alike)}"
