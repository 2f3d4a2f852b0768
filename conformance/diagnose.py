"""Which convention explains an output? A search over what a call may have meant, on a user's own tensors.

Everything is computed in float64 from the formula. An output is explained when every number is within what rounding may
do: `max|value| * (4 eps + (16 + 4 max|score|) compute_eps)`, 16-bit tensors being computed in float32.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from conformance import plain
from conformance.dumped import LAYOUTS, Dump, Problem, looked_at, problem_of, rows_of
from conformance.errors import UsageError
from conformance.settings import Departure, Setting, departures
from conformance.verdict import distance, epsilon

NEAR = 3
BEAM = 8
LIKE = 64.0


@dataclass(frozen=True, eq=False)
class Finding:
    """One meaning tried: the layout and the departures, and how near its output comes."""

    layout: str
    departures: tuple[Departure, ...]
    units: float
    relative: float
    rows_right: float

    @property
    def explains(self) -> bool:
        """Whether every number is within the tolerance."""
        return self.units <= 1.0


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What explains the output with the fewest departures, or the nearest that was tried."""

    findings: tuple[Finding, ...]
    tried: int
    looked_at: str

    @property
    def explained(self) -> bool:
        """Whether anything explains the output."""
        return bool(self.findings) and self.findings[0].explains


def diagnose(dump: Dump, step: Callable[[], None] = lambda: None) -> Diagnosis:
    """Try no departure, each one, each pair, and a third beside the nearest pairs, in every layout that fits.

    Raises:
        UsageError: the shapes are no attention in any layout.
    """
    problems = [found for layout in LAYOUTS if (found := problem_of(dump, layout)) is not None]
    if not problems:
        given = [name for name in ("query", "key", "value", "out", "mask", "bias") if getattr(dump, name) is not None]
        shapes = ", ".join(f"{name} {getattr(dump, name).shape}" for name in given)
        raise UsageError(
            f"these shapes are no attention in any layout: {shapes}; pass --heads for (..., L, H * D), "
            "and a mask or bias that broadcasts to (batch, heads, queries, keys)"
        )
    tried: list[Finding] = []
    for count in range(4):
        for problem in problems:
            offered = offered_by(problem, dump.dtype)
            for chosen in _chosen(offered, count, _nearest(tried, problem.layout)):
                finding = judge(problem, chosen, dump)
                if finding is not None:
                    tried.append(finding)
                step()
        explaining = sorted((each for each in tried if each.explains), key=lambda each: each.relative)
        if explaining:
            # A wide tolerance explains what a narrow one explains better: only the latter is told.
            best = [f for f in explaining if f.relative <= LIKE * explaining[0].relative + epsilon("float64") * LIKE]
            return _diagnosis(problems, best, len(tried))
    return _diagnosis(problems, _nearest(tried)[:NEAR], len(tried))


def _diagnosis(problems: Sequence[Problem], findings: Sequence[Finding], tried: int) -> Diagnosis:
    """Rows are counted in the layout of the first finding."""
    layout = findings[0].layout if findings else problems[0].layout
    return Diagnosis(tuple(findings), tried, looked_at(next(p for p in problems if p.layout == layout)))


def offered_by(problem: Problem, dtype: str) -> list[Departure]:
    """Return the departures that can show here: of rules that hide the same keys, the first, with the others' names."""
    found: dict[object, Departure] = {}
    for departure in departures(problem.sizes, problem.base, dtype, problem.sampled):
        setting, identity = departure.change(problem.base), object()
        if setting.visible is not None:
            table = np.broadcast_to(_rule(problem, setting), (len(problem.rows), problem.sizes.keys))
            if table.all():
                continue
            identity = table.tobytes()
        known = found.setdefault(identity, departure)
        if known is not departure:
            found[identity] = replace(known, alike=(*known.alike, departure.name))
    return list(found.values())


def judge(problem: Problem, chosen: Sequence[Departure], dump: Dump) -> Finding | None:
    """Compute the output of one meaning and compare; None where its shape is another."""
    setting = problem.base
    for departure in chosen:
        setting = departure.change(setting)
    computed = output_of(problem, setting)
    if computed is None or computed[0].shape != problem.out.shape:
        return None
    out, score = computed
    apart, _ = distance(out, problem.out)
    with np.errstate(invalid="ignore"):
        errors = np.abs(out - problem.out)
    settled = (out == problem.out) | (np.isnan(out) & np.isnan(problem.out))
    allowed = tolerance(problem, score, setting.arithmetic or dump.dtype)
    right = np.all(settled | (errors <= allowed), axis=-1)
    return Finding(problem.layout, tuple(chosen), apart / allowed, _relative(out, problem.out), float(np.mean(right)))


def output_of(problem: Problem, setting: Setting) -> tuple[np.ndarray, float] | None:
    """Return the output of a setting at the rows that are looked at, in the setting's shape, and the largest score."""
    query, key, value = problem.query, problem.key, problem.value
    if setting.swap == "query_key":
        if problem.sampled:
            return None
        query, key = key, query
    if setting.swap == "key_value":
        key, value = value, key
    call = plain.Call(
        query,
        key,
        value,
        setting.scale,
        _mask(problem, setting),
        rows_of(problem, setting.bias),
        setting.softcap,
        None if setting.sink is None else np.full(query.shape[-3], setting.sink),
    )
    found = plain.attend(call, setting.switches)
    out, scores = shaped(found["out"], setting.output, problem), np.abs(found["scaled"])
    return None if out is None else (out, float(np.max(scores, initial=0.0, where=np.isfinite(scores))))


def shaped(out: np.ndarray, way: str, problem: Problem) -> np.ndarray | None:
    """Return heads-first output as another way of giving it back; None where that cannot be told."""
    if way == "as query":
        return out
    *batch, heads, length, depth = out.shape
    swapped = np.swapaxes(out, -2, -3)
    if way == "heads_joined":
        return swapped.reshape(*batch, length, heads * depth)
    if way == "heads_interleaved":
        return np.swapaxes(swapped, -1, -2).reshape(*batch, length, depth * heads)
    if problem.sampled:
        return None
    if way == "heads_last":
        return swapped
    return out.reshape(*batch, length, heads * depth) if problem.layout == "BHLD" else None


def tolerance(problem: Problem, score: float, dtype: str) -> float:
    """Return what rounding in `dtype` may do to the output, with scores up to `score`."""
    largest = float(np.max(np.abs(problem.value), initial=0.0, where=np.isfinite(problem.value)))
    eps, compute = epsilon(dtype), min(epsilon(dtype), epsilon("float32"))
    return max(largest, float(np.finfo(np.float32).tiny)) * (4 * eps + (16 + 4 * score) * compute)


def _chosen(offered: Sequence[Departure], count: int, nearest: Sequence[Finding]) -> Iterable[tuple[Departure, ...]]:
    together = [departure for departure in offered if not departure.alone]
    if count == 0:
        yield ()
    elif count == 1:
        yield from ((departure,) for departure in offered)
    elif count == 2:
        yield from (pair for pair in combinations(together, 2) if pair[0].axis != pair[1].axis)
    else:
        seen = set()
        for finding in [each for each in nearest if len(each.departures) == 2][:BEAM]:
            axes = {departure.axis for departure in finding.departures}
            for departure in together:
                chosen = (*finding.departures, departure)
                names = frozenset(each.name for each in chosen)
                if departure.axis not in axes and names not in seen:
                    seen.add(names)
                    yield chosen


def _nearest(tried: Iterable[Finding], layout: str | None = None) -> list[Finding]:
    """What came nearest, first; of one layout."""
    of_layout = (finding for finding in tried if layout in (None, finding.layout))
    return sorted(of_layout, key=lambda finding: (finding.relative, len(finding.departures)))


def _rule(problem: Problem, setting: Setting) -> np.ndarray:
    visible = setting.visible or (lambda i, j: np.ones((1, 1), bool))
    return np.asarray(visible(problem.rows[:, None], np.arange(problem.sizes.keys)[None]))


def _mask(problem: Problem, setting: Setting) -> np.ndarray | None:
    given = rows_of(problem, setting.given)
    if setting.visible is None:
        return given
    rule = _rule(problem, setting)
    return rule if given is None else rule & given


def _relative(out: np.ndarray, wanted: np.ndarray) -> float:
    """The root mean square of the difference, relative to the output's own; NaN against a number counts in full."""
    size = float(np.sqrt(np.mean(np.square(np.nan_to_num(wanted, posinf=0, neginf=0))))) or 1.0
    with np.errstate(invalid="ignore"):
        apart = np.nan_to_num(out - wanted, nan=size, posinf=size, neginf=size)
    return float(np.sqrt(np.mean(np.square(np.where(np.isnan(out) & np.isnan(wanted), 0, apart))))) / size
