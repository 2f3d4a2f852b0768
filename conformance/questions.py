"""The rows of the table for a person: what each group of cases asks, and where `docs/conventions.md` answers it."""

from dataclasses import dataclass

from conformance.cases import Group

PAGE = "docs/conventions.md"
ARTICLE = "the-formula"
# The first that begins a group's name counts.
SECTIONS = {
    "article-causal": "positions-and-causal-masks",
    "article": ARTICLE,
    "causal": "positions-and-causal-masks",
    "positions": "positions-and-causal-masks",
    "window": "sliding-windows",
    "length": "lengths-and-segments",
    "segment": "lengths-and-segments",
    "packed": "lengths-and-segments",
    "pattern": "sliding-windows",
    "several": "several-masks-hold-together",
    "mask": "masks-are-boolean-true-may-attend",
    "dense": "masks-are-boolean-true-may-attend",
    "empty": "a-query-that-sees-no-key",
    "poison": "masked-pairs-contribute-exactly-nothing",
    "nan": "a-visible-nan-or-infinity",
    "visible": "a-visible-nan-or-infinity",
    "bias": "a-bias-of-minus-infinity-masks-its-pair",
    "cap": "the-soft-cap-comes-first",
    "softcap": "the-soft-cap-comes-first",
    "sink": "sinks",
    "scale": "scale",
    "grouped": "shapes-and-layouts",
    "layout": "shapes-and-layouts",
    "shape": "shapes-and-layouts",
    "size": "shapes-and-layouts",
    "batch": "shapes-and-layouts",
    "broadcast": "shapes-and-layouts",
    "head": "shapes-and-layouts",
    "depth": "shapes-and-layouts",
    "one-depth": "shapes-and-layouts",
    "stride": "inputs-and-errors",
    "memory": "inputs-and-errors",
    "invalid": "inputs-and-errors",
    "error": "inputs-and-errors",
    "precision": "precision-and-dtypes",
    "dtype": "precision-and-dtypes",
    "extreme": "precision-and-dtypes",
    "overflow": "precision-and-dtypes",
    "float": "precision-and-dtypes",
    "lse": "lse",
    "dropout": "weights-and-dropout",
    "seeded": "weights-and-dropout",
    "weights": "weights-and-dropout",
    "alibi": "alibi-relative-bias-and-rope",
    "relative": "alibi-relative-bias-and-rope",
    "rope": "alibi-relative-bias-and-rope",
    "rotary": "alibi-relative-bias-and-rope",
    "merg": "merging-parts",
}


@dataclass(frozen=True)
class Question:
    """One row: its words, and the section of the conventions that answers it (None: it has none of its own)."""

    title: str
    section: str | None


def question_of(group: Group) -> Question:
    """Return the question that a group asks."""
    section = next((section for start, section in SECTIONS.items() if group.name.startswith(start)), None)
    return Question(group.title, section)
