"""The values that the article prints, in both texts, against the vectors: a check of the recording by its source.

`vectors/article.printed.json` holds them as printed, notes which text lost minus signs and where, and names the one
place where another processor's PyTorch prints another last digit.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from conformance import VECTORS
from conformance.cases import Case, Group
from conformance.errors import REPAIR, VectorError

FILE = "article.printed.json"


def printed() -> dict[str, Any]:
    """Read what the article prints."""
    path = VECTORS / FILE
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise VectorError(f"{FILE} is missing in {path.parent}. {REPAIR}") from None
    except ValueError as error:
        raise VectorError(f"{FILE} is damaged ({error}). {REPAIR}") from error
    return document


def values(entry: Mapping[str, Any]) -> np.ndarray:
    """Return the numbers of one printed tensor with the lost minus signs put back."""
    numbers = np.array(entry["printed"], dtype=np.float64)
    for index in entry["lost_minus"]:
        numbers[tuple(index)] *= -1
    return numbers


def complaints(groups: Iterable[Group]) -> Iterator[str]:
    """Yield every printed value that the vectors do not show to its decimals, and every printed shape that differs."""
    cases = {case.id: case for group in groups for case in group.cases}
    document = printed()
    for entry in document["tensors"]:
        if entry["case"] not in cases:
            yield f"{entry['case']}, whose `{entry['output']}` the article prints, is missing"
            continue
        yield from _tensor(entry, cases[entry["case"]], document["decimals"])
    for entry in document["shapes"]:
        shape = list(recorded(cases[entry["case"]], entry["output"]).shape) if entry["case"] in cases else None
        # A vector of the article is one row here.
        if shape not in (entry["printed"], [1, *entry["printed"]]):
            yield f"{entry['case']}: `{entry['output']}` has shape {shape}, printed is {entry['printed']}"


def recorded(case: Case, output: str) -> np.ndarray:
    """Return an output as PyTorch gave it in float32, or an input by `inputs.NAME`."""
    if output.startswith("inputs."):
        return case.inputs[output.removeprefix("inputs.")]
    return case.expected[output].pytorch["float32"]


def _tensor(entry: Mapping[str, Any], case: Case, decimals: int) -> Iterator[str]:
    want = values(entry)
    got = np.round(recorded(case, entry["output"]).astype(np.float64), decimals).reshape(want.shape)
    for index in np.argwhere(got != want):
        at = tuple(int(i) for i in index)
        place = f"{case.id}: `{entry['what']}` at {list(at)}"
        yield f"{place} is {got[at]:.4f}, printed is {want[at]:.4f} in {entry['text']}"
