"""Rotary position embedding: which features are paired, how fast they turn, from which position."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from conformance.errors import RecordError
from conformance.record import rotation
from conformance.record.ask import DTYPES
from conformance.record.draft import Draft
from conformance.record.drafting import GITHUB
from conformance.record.draw import eighths
from conformance.record.groups.theme import Theme
from conformance.record.variants import told_apart

ROTARY = Theme(
    "rotary",
    "Rotary embedding",
    "Pair i of the features (a, b) turns by position * base ** (-2 i / dim): a cos - b sin, b cos + a sin; halves are "
    "paired, or neighbours.",
    "A model loads and talks nonsense, or forgets its cache's positions, or is worse the longer the text.",
    "vllm-project/vllm-metal/pull/44 raiyanyahya/how-to-train-your-gpt/issues/6",
)
CALL: dict[str, Any] = {
    "positions": 0,
    "base": 10000.0,
    "dim": None,
    "interleaved": False,
    "scaling": None,
    "layout": "BHLD",
}
TRIES, WIDE = 200, ("float64", "float32")
NAMES = tuple(name for name in rotation.MEANS if "_in_" not in name)


def rotations() -> Iterator[Draft]:
    """Yield the cases of the op `rotary`."""
    yield from _styles()
    yield from _positions()
    yield from _scalings()


def _styles() -> Iterator[Draft]:
    yield _case("halves", "halves are paired", (2, 5, 8), kills="rotary=other_style rotary=backwards rotary=one_later")
    yield _case("neighbours", "neighbours are paired", (3, 4, 6), kills="rotary=other_style", interleaved=True)
    yield _case("plain", "plain (L, D)", (5, 4), kills="rotary=backwards")
    yield _case("layout", "layout (..., L, H, D), a batch", (2, 5, 3, 4), kills="rotary=over_heads", layout="BLHD")
    yield _case("one-pair", "depth 2, one pair", (2, 6, 2), kills="rotary=one_later")
    yield _case("base", "a base of 100", (2, 7, 8), kills="rotary=default_base", base=100.0)
    yield _case("part", "the first 4 of 10 features turn", (2, 6, 10), kills="rotary=last_features", dim=4, base=100.0)
    yield _case(
        "part-neighbours",
        "the first 6 of 8 features turn, neighbours paired",
        (2, 5, 8),
        kills="rotary=last_features rotary=whole_depth",
        dim=6,
        base=10.0,
        positions=13,
        interleaved=True,
    )
    yield _case(
        "tables",
        "pairs with different angles: a table that repeats them in a row fits neighbours only",
        (1, 4, 6),
        kills="rotary=pairwise_tables",
        base=50.0,
    )


def _positions() -> Iterator[Draft]:
    yield _case(
        "zero", "position 0 changes nothing, nor the order", (2, 1, 6), kills="rotary=concatenated", interleaved=True
    )
    yield _case("later", "a cache of 7", (2, 3, 6), kills="rotary=positions_ignored", positions=7)
    yield _case("listed", "positions in any order", (2, 4, 6), kills="rotary=positions_ignored", positions=[3, 0, 9, 4])
    yield _case(
        "an-item",
        "positions an item, left padding",
        (2, 2, 3, 6),
        kills="rotary=first_item",
        positions=[[0, 1, 2], [5, 6, 7]],
    )
    yield _case(
        "beyond-bfloat16",
        "positions beyond 256, where bfloat16 lacks integers",
        (2, 4, 6),
        kills="rotary=positions_in_bfloat16",
        positions=[301, 302, 303, 1001],
        dtypes=WIDE,
    )
    yield _case(
        "far",
        "position 67108869, which float32 does not have",
        (2, 4, 8),
        kills="rotary=angles_in_float32",
        positions=2**26 + 5,
        base=256.0,  # whose frequencies are powers of 2: the angles are exact in float64
        dtypes=WIDE,
    )
    yield _case(
        "precise",
        "tables have at least float32",
        (2, 5, 6),
        kills="rotary=tables_in_float16",
        dtypes=WIDE,
        positions=11,
        interleaved=True,
    )


def _scalings() -> Iterator[Draft]:
    rules: dict[str, tuple[str, dict[str, Any]]] = {
        "linear": ("position interpolation by 4", {"factor": 4.0}),
        "ntk": ("NTK-aware, by 8", {"alpha": 8.0}),
        "llama3": (
            "Llama 3's: by how often a pair turns within the original length",
            {"factor": 8.0, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_length": 64},
        ),
        "yarn": (
            "YaRN, with its attention factor",
            {"factor": 4.0, "original_length": 64, "beta_fast": 8.0, "beta_slow": 1.0, "truncate": True},
        ),
        "longrope": (
            "LongRoPE: a factor a pair",
            {"factors": [1.0, 1.5, 4.0, 8.0], "factor": 4.0, "original_length": 32},
        ),
    }
    for name, (words, rule) in rules.items():
        more = " rotary=factor_forgotten" if name in ("yarn", "longrope") else ""
        yield _case(
            name,
            words,
            (2, 5, 8),
            kills="rotary=scaling_ignored" + more,
            positions=23,
            base=100.0,
            scaling={"rule": name, **rule},
            dtypes=DTYPES[:3] if more else DTYPES,
        )


def _case(
    suffix: str, words: str, shape: tuple[int, ...], *, kills: str, dtypes: tuple[str, ...] = DTYPES, **call: Any
) -> Draft:
    import torch

    draft = Draft(
        id=f"rotary-{suffix}",
        name=f"{ROTARY.title}: {words}",
        why=f"{ROTARY.why} Here: {words}.",
        failure=ROTARY.failure,
        op="rotary",
        inputs={},
        parameters={**CALL, **call},
        wrt=("x",),
        dtypes=dtypes,
        features=("rotary", "gradient"),
        reports=tuple(GITHUB + each for each in ROTARY.reports.split()),
        outputs=("out",),
        seeds={"out": torch.from_numpy(eighths(f"rotary-{suffix}/cotangent", shape, -1.0, 1.0))},
        loops=True,
    )
    for draw in range(TRIES):
        drawn = replace(draft, inputs={"x": torch.from_numpy(eighths(f"{draft.id}/{draw}", shape, -2.0, 2.0))})
        try:
            wrong = told_apart(_answer(draft), drawn, tuple(kills.split()), NAMES)
        except RecordError:
            continue
        return replace(drawn, wrong={name: (rotation.MEANS[name], make) for name, make in wrong.items()})
    raise RecordError(f"{draft.id}: no draw tells {kills}")


def _answer(draft: Draft) -> Any:
    return lambda name, inputs: rotation.rotary(inputs, draft.parameters, name)
