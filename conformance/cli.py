"""`attention-conformance`: is an attention right, case by case, against tensors saved from PyTorch?"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from conformance import VECTORS, cli_diagnose, expectations, kills, printed, report, runner, show, tell
from conformance.adapters import NotInstalled, load_all
from conformance.assertion import only_dtypes
from conformance.errors import RecordError, UsageError, VectorError
from conformance.format import read_groups, write_groups
from conformance.junit import write_junit
from conformance.lint import lint as lint_groups
from conformance.page import write_page

if TYPE_CHECKING:
    from conformance.record import GroupDraft

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)

Impl = Annotated[
    list[str] | None,
    typer.Option("--impl", help="numpy, jax, torch.sdpa-math, ..., all, or your own module:function; repeatable."),
]
GroupNames = Annotated[
    list[str] | None, typer.Option("--group", help="Only groups whose names begin so (see `list`); repeatable.")
]
Since = Annotated[
    str | None, typer.Option("--since", help="Only the cases of this version and before: newer ones break no build.")
]
Expect = Annotated[
    Path | None, typer.Option("--expect", help="Skips and expected failures, with reasons: a TOML or JSON file.")
]
Tensor = Annotated[str | None, typer.Option(help="A dumped tensor: PATH or PATH:NAME.")]
Folder = Annotated[Path, typer.Option("--vectors", help="Another folder of vectors.", show_default=False)]


@app.command()
def run(
    impl: Impl = None,
    group: GroupNames = None,
    dtype: Annotated[list[str] | None, typer.Option("--dtype", help="Only this dtype; repeatable.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write every verdict to this file.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write one line an output to this file.")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write one self-contained page to this file.")] = None,
    expect: Expect = None,
    since: Since = None,
    vectors: Folder = VECTORS,
) -> None:
    """Run all cases on our implementations and the article's PyTorch, or on others by name; exit with 1 if any fails.

    Where no case could be put to an implementation, the status is 1 too: nothing was shown.

    A function of your own, `--impl module:function`, is called as fn(query, key, value) with NumPy arrays, and mask=
    (boolean, True = may attend), bias=, scale=, softcap=, sinks= or layout= where a case needs them; it returns the
    output, or a mapping of outputs.
    """
    with _errors():
        adapters, missing = load_all(impl or ())
        asked, names = read_groups(vectors, group or ()), [adapter.name for adapter in adapters]
        groups, expected = expectations.selected(asked, since, expect, names, partial(read_groups, vectors))
        groups = tuple(only_dtypes(groups, tuple(dtype or ())))
        if not any(each.cases for each in groups):
            raise UsageError("no case is left to ask: --group, --dtype and --since together leave none")
        with _progress("asking", runner.count(groups, adapters)) as step:
            rows = runner.run(groups, adapters, step, expected)
    for path, write in ((json, report.write_json), (csv, report.write_csv), (junit, write_junit)):
        if path is not None:
            write(path, rows)
    if html is not None:
        write_page(html, rows, missing)
    report.print_report(_console(), rows, missing)
    unasked = runner.unasked(rows)
    for name, reasons in unasked.items():
        _console().print(f"[bold red]{escape(name)}: no case could be asked[/]: {escape(reasons)}")
    raise typer.Exit(1 if unasked or any(row.bad for row in rows) else 0)


@app.command("list")
def list_cases(group: GroupNames = None, vectors: Folder = VECTORS) -> None:
    """List every case: its id, its op, what it is."""
    console = _console()
    with _errors():
        for each in read_groups(vectors, group or ()):
            console.print(f"[bold]{each.name}[/]  {escape(each.title)}")
            for case in each.cases:
                console.print(f"  {case.id:38} {case.op:26} {escape(case.name)}", highlight=False)


@app.command("show")
def show_case(
    case: Annotated[str, typer.Argument(help="The id of a case, as `list` prints it.")],
    impl: Impl = None,
    vectors: Folder = VECTORS,
) -> None:
    """Show a case: where it stands in the article, inputs, expected tensors, what each implementation gave."""
    with _errors():
        group, found = show.find(read_groups(vectors), case)
        adapters, _ = load_all(impl or ())
        show.print_case(_console(), group, found, adapters)


@app.command("diagnose")
def diagnose_command(
    impl: Annotated[str | None, typer.Argument(help="An implementation, as for --impl of `run`.")] = None,
    case: Annotated[str | None, typer.Argument(help="The id of a case.")] = None,
    query: Tensor = None,
    key: Tensor = None,
    value: Tensor = None,
    out: Tensor = None,
    mask: Tensor = None,
    bias: Tensor = None,
    scale: Annotated[float | None, typer.Option("--scale", help="The scale that the call was given.")] = None,
    softcap: Annotated[float | None, typer.Option("--softcap", help="The soft cap that it was given.")] = None,
    heads: Annotated[str | None, typer.Option("--heads", help="Heads of (..., L, H * D) tensors: 8, or 8,2.")] = None,
    vectors: Folder = VECTORS,
) -> None:
    """Find the first stage of a case that departs, or which convention explains tensors that you dumped.

    `diagnose jax.nn CASE` sets the stages side by side. `diagnose --query q.npy --key k.npy --value v.npy --out o.npy`
    tries layouts, scales, masks, alignments, head orders, caps and combinations of them; files are .npy, .npz,
    .safetensors (PATH:NAME picks one tensor) or .pt. Exits with 1 if a stage departs, or nothing explains the output.
    """
    paths = {"query": query, "key": key, "value": value, "out": out, "mask": mask, "bias": bias}
    with _errors():
        if impl is not None and case is not None:
            lines, bad = cli_diagnose.of_case(impl, case, vectors)
        else:
            diagnosis = cli_diagnose.of_dumps(paths, scale, softcap, heads)
            lines, bad = [*tell.tell_diagnosis(diagnosis)], not diagnosis.explained
    for line in lines:
        _console().print(line, highlight=False)
    raise typer.Exit(1 if bad else 0)


@app.command()
def record(
    check: Annotated[bool, typer.Option("--check", help="Compare with what is saved; write nothing.")] = False,
    group: GroupNames = None,
    vectors: Folder = VECTORS,
) -> None:
    """Record the vectors anew with PyTorch, or check that the saved ones are what PyTorch gives."""
    names = tuple(group or ())
    with _errors():
        drafts = _drafts(names)
        total = sum(len(each.drafts) for each in drafts)
        with _progress("recording", total) as step:
            line = _check(drafts, names, vectors, step) if check else _record(drafts, names, vectors, step)
    _console().print(escape(line))


@app.command()
def lint(
    vectors: Folder = VECTORS,
    mutants: Annotated[bool, typer.Option("--mutants", help="Ask every wrong implementation too (a minute).")] = False,
) -> None:
    """Check the vectors themselves: each tells right from wrong, says why it exists, shows what the article prints."""
    with _errors():
        groups = read_groups(vectors)
        found = [*lint_groups(groups, vectors), *printed.complaints(groups)]
        found += list(kills.complaints(groups)) if mutants else []
    for complaint in found:
        _console().print(escape(complaint))
    asked = [f"{len(groups)} groups", f"{sum(len(group.cases) for group in groups)} cases"]
    asked += [f"{len(kills.mutants(groups))} mutants"] if mutants else []
    _console().print(f"{', '.join(asked)}: {len(found) or 'no'} complaints")
    raise typer.Exit(1 if found else 0)


def _drafts(names: tuple[str, ...]) -> "tuple[GroupDraft, ...]":
    from conformance.record import group_drafts

    drafts = group_drafts(names)
    if not drafts:
        raise UsageError(f"no group begins with {' or '.join(f'`{name}`' for name in names)}")
    return drafts


def _check(drafts: "tuple[GroupDraft, ...]", names: tuple[str, ...], vectors: Path, step: Callable[[], None]) -> str:
    from conformance.record.check import check

    differences, line = check(drafts, read_groups(vectors, names), vectors, step)
    differences += list(printed.complaints(read_groups(vectors)))
    if differences:
        raise RecordError("\n".join(differences))
    return line


def _record(drafts: "tuple[GroupDraft, ...]", names: tuple[str, ...], vectors: Path, step: Callable[[], None]) -> str:
    """Record, and put nothing in place before it is linted and shows what the article prints."""
    from conformance.record import group_drafts
    from conformance.record import record as record_drafts

    groups = record_drafts(drafts, step)
    if names:
        known = {group.name: group for group in (*read_groups(vectors), *groups)}
        groups = tuple(known[each.name] for each in group_drafts(drafted=False) if each.name in known)
    with tempfile.TemporaryDirectory() as folder:
        write_groups(groups, Path(folder))
        found = [*lint_groups(read_groups(Path(folder)), Path(folder)), *printed.complaints(groups)]
    if found:
        raise RecordError("nothing was written:\n" + "\n".join(found))
    write_groups(groups, vectors)
    return f"recorded {len(groups)} groups, {sum(len(group.cases) for group in groups)} cases in {vectors}"


@contextmanager
def _errors() -> Iterator[None]:
    """What is wrong with the call, the files or the recording is said in words; exit status 2 (1 for a recording)."""
    try:
        yield
    except (UsageError, VectorError, NotInstalled, RecordError) as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error[/] {escape(str(error))}", highlight=False)
        raise typer.Exit(1 if isinstance(error, RecordError) else 2) from error


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on the error stream, where it does not mix with what is piped."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def _console() -> Console:
    # Into a pipe or a file, lines stay whole.
    return Console(soft_wrap=not sys.stdout.isatty())
