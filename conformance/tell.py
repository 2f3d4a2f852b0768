"""What `diagnose` prints: a case's stages side by side, or what explains a user's tensors."""

from collections.abc import Iterator

import numpy as np
from rich.markup import escape

from conformance.cases import Case
from conformance.diagnose import Diagnosis, Finding
from conformance.probe import Stage, first_departure


def tell_stages(case: Case, name: str, dtype: str, found: list[Stage]) -> Iterator[str]:
    """Yield a line a stage, then both sides of the first that departs."""
    yield f"[bold]{case.id}[/] · {escape(name)} · {dtype}"
    for stage in found:
        yield _stage(stage)
    first = first_departure(found)
    if first is None:
        judged = any(stage.judged is not None for stage in found)
        yield "\nno stage departs" if judged else "\nno stage could be had"
        return
    yield f"\n[bold red]the first stage that departs is `{escape(first.name)}`[/] ({first.how})"
    yield from _sides(first)


def tell_diagnosis(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield which conventions explain the output, or the nearest that was tried."""
    looked = f"{diagnosis.tried} meanings tried on {diagnosis.looked_at}"
    if not diagnosis.explained:
        yield f"[bold red]nothing that was tried explains the output[/] ({looked}). The nearest:"
        for finding in diagnosis.findings:
            yield f"  {_words(finding)}: {finding.relative:.2%} off, {finding.rows_right:.0%} of the rows agree"
        return
    first, *others = diagnosis.findings
    yield f"[bold green]explained[/] by {_words(first)} ({looked})"
    for departure in first.departures:
        yield escape(f"  {departure.name}: {departure.means}")
        if departure.alike:
            yield escape(f"    in these sizes the same as {', '.join(departure.alike)}")
    yield f"  the largest difference is {first.units:.2g} of what rounding may do"
    if others:
        yield "these tensors cannot tell it from:"
        yield from (f"  {_words(finding)}" for finding in others)


def _words(finding: Finding) -> str:
    names = " and ".join(f"`{departure.name}`" for departure in finding.departures)
    return escape(f"{names or 'the conventions of this project, none changed'}, layout {finding.layout}")


def _stage(stage: Stage) -> str:
    label = f"  {stage.name:18}"
    if stage.judged is None:
        return escape(f"{label} not had: {stage.why_not}")
    judged = stage.judged
    style, word = ("green", "same") if judged.passed else ("bold red", "departs")
    size = judged.note or f"{judged.error:.3g} off, {judged.units:.3g} tolerances"
    return f"{escape(label)} [{style}]{word:8}[/] {escape(f'{size}, {stage.how}')}"


def _sides(stage: Stage) -> Iterator[str]:
    if stage.expected is None or stage.answer is None:
        return
    if stage.expected.shape == stage.answer.shape and stage.expected.ndim > 1:
        *index, row = _worst(stage.expected, stage.answer)[:-1]
        at = tuple(index)
        yield f"at {[*index, row]}, where it is furthest off:"
        yield escape(f"  expected {_row(stage.expected[(*at, row)])}")
        yield escape(f"  given    {_row(stage.answer[(*at, row)])}")
        return
    yield escape(f"  expected {stage.expected.shape} {_row(stage.expected.ravel()[:12])}")
    yield escape(f"  given    {stage.answer.shape} {_row(stage.answer.ravel()[:12])}")


def _worst(expected: np.ndarray, answer: np.ndarray) -> tuple[int, ...]:
    got, want = answer.astype(np.float64), expected.astype(np.float64)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.nan_to_num(np.abs(got - want), nan=np.inf))
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(apart)), apart.shape))


def _row(values: np.ndarray) -> str:
    return np.array2string(
        values.astype(np.float64), precision=4, suppress_small=True, threshold=24, max_line_width=100
    )
