"""`assert_conforms`: the suite as one line of somebody else's test."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

DTYPES = ("float64", "float32", "float16", "bfloat16")


class Nonconforming(AssertionError):
    """An attention that differs from the vectors; says where, by how much, and as which convention."""


def assert_conforms(
    fn: Callable[..., Any] | str,
    groups: Iterable[str] = (),
    *,
    dtypes: Iterable[str] = (),
    expect: str | Path | None = None,
    since: str | None = None,
) -> None:
    """Ask `fn` every case that it takes, and raise `Nonconforming` where an answer is not within the tolerance.

    `fn(query, key, value, **needed)` gets fresh NumPy arrays `(..., L, D)` and, by keyword, only what the case needs:
    `mask` (boolean, True = may attend), `scale`, `bias`, `softcap`, `sinks`, ... Cases that need more than the function
    takes are not asked. It returns the output, or a mapping of `out`, `lse`, `weights`, `gradient.query`, ...

    Args:
        fn: the function, or `"module:function"`; or an adapter, an object with `supports` and `compute`.
        groups: names with which groups begin, such as `"causal"`; all groups by default.
        dtypes: only these; all that the cases have by default.
        expect: a file of skips and expected failures with reasons (see `conformance.expectations`).
        since: only the cases of this version and before.

    Raises:
        Nonconforming: an answer fails, or an expected failure passes, or no case could be asked.
        UsageError: a group or file that does not exist, or an entry of the file that matches nothing.

    >>> import attention_np
    >>> from conformance import assert_conforms
    >>> assert_conforms(attention_np.dot_product_attention, groups=["article-cross-attention"])
    """
    from conformance import expectations, runner
    from conformance.format import read_groups
    from conformance.report import failures

    wanted = tuple([groups] if isinstance(groups, str) else groups)
    path, adapter = None if expect is None else Path(expect), adapter_of(fn)
    chosen, expected = expectations.selected(read_groups(names=wanted), since, path, [adapter.name], read_groups)
    chosen = tuple(only_dtypes(chosen, tuple(dtypes)))
    rows = runner.run(chosen, [adapter], expect=expected)
    if not rows:
        raise Nonconforming(f"{adapter.name}: no case could be asked; there is none")
    for name, reasons in runner.unasked(rows).items():
        raise Nonconforming(f"{name}: no case could be asked; {reasons}")
    bad = [row for row in rows if row.bad]
    if bad:
        from rich.text import Text

        lines = [Text.from_markup(line).plain for line in failures(bad)]
        raise Nonconforming("\n".join([f"{len(bad)} of {len(rows)} answers do not conform", *lines]))


def adapter_of(fn: Callable[..., Any] | str) -> Any:
    """Return the adapter of a function, of a `module:function`, or of a known name; an adapter is its own."""
    from conformance.adapters import load
    from conformance.adapters.function import UserFunction

    if hasattr(fn, "supports") and hasattr(fn, "compute"):
        return fn
    return load(fn) if isinstance(fn, str) else UserFunction(getattr(fn, "__name__", type(fn).__name__), fn)


def only_dtypes(groups: Iterable[Any], dtypes: tuple[str, ...]) -> Iterable[Any]:
    """Yield the groups with their cases in these dtypes only; unchanged without any."""
    from dataclasses import replace

    from conformance.errors import UsageError

    unknown = [name for name in dtypes if name not in DTYPES]
    if unknown:
        raise UsageError(f"no dtype `{unknown[0]}`; there are {', '.join(DTYPES)}")
    for group in groups:
        if not dtypes:
            yield group
            continue
        cases = (replace(c, dtypes=tuple(d for d in c.dtypes if d in dtypes)) for c in group.cases)
        yield replace(group, cases=tuple(case for case in cases if case.dtypes))
