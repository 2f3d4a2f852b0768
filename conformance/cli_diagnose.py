"""`attention-conformance diagnose`: of an implementation on a case, or of tensors that a user dumped."""

from pathlib import Path

from conformance import dumps
from conformance.adapters import load
from conformance.diagnose import Diagnosis, diagnose
from conformance.dumped import Dump, split_heads
from conformance.errors import UsageError
from conformance.format import read_groups
from conformance.probe import first_departure, stages
from conformance.show import find
from conformance.tell import tell_stages

NEEDED = ("query", "key", "value", "out")


def of_case(impl: str, case_id: str, vectors: Path) -> tuple[list[str], bool]:
    """Return the lines on an implementation's stages, in each dtype, and whether any departs."""
    group, case = find(read_groups(vectors), case_id)
    adapter, lines, departs = load(impl), [], False
    for dtype in case.dtypes:
        found = list(stages(group, case, adapter, dtype))
        departs |= first_departure(found) is not None
        lines += [*tell_stages(case, adapter.name, dtype, found), ""]
    return lines, departs


def of_dumps(paths: dict[str, str | None], scale: float | None, softcap: float | None, heads: str | None) -> Diagnosis:
    """Return what explains the user's tensors.

    Raises:
        UsageError: a tensor is missing or unreadable, or the shapes are no attention.
    """
    missing = [f"--{name}" for name in NEEDED if paths[name] is None]
    if missing:
        raise UsageError(
            f"diagnose needs an implementation and a case, or --query --key --value --out: no {missing[0]}"
        )
    arrays = {name: dumps.read_dump(path, name) for name, path in paths.items() if path is not None}
    if heads is None:
        return diagnose(Dump(**arrays, scale=scale, softcap=softcap))
    query_heads, key_heads = _heads(heads)
    counts = {"query": query_heads, "key": key_heads, "value": key_heads}
    split = {
        way: {name: split_heads(arrays[name], count, way == "interleaved") for name, count in counts.items()}
        for way in ("beside", "interleaved")
    }
    found = diagnose(Dump(**{**arrays, **split["beside"]}, scale=scale, softcap=softcap))
    if found.explained:
        return found
    other = diagnose(Dump(**{**arrays, **split["interleaved"]}, scale=scale, softcap=softcap))
    return other if other.explained else found


def _heads(given: str) -> tuple[int, int]:
    """`8`, or `8,2` for eight query heads and two key heads."""
    try:
        counts = [int(part) for part in given.split(",")]
    except ValueError:
        raise UsageError(f"--heads {given}: give a number, or two as 8,2") from None
    if len(counts) > 2 or min(counts) < 1:
        raise UsageError(f"--heads {given}: give a number, or two as 8,2")
    return counts[0], counts[-1]
