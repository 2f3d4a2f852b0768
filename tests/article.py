"""What the article prints, and the saved tensors that its sections start from, for the tests that walk it."""

from functools import cache

import numpy as np

from conformance import printed as article
from conformance.format import read_groups


@cache
def _inputs() -> dict[str, dict[str, np.ndarray]]:
    return {case.id: dict(case.inputs) for group in read_groups() for case in group.cases}


def case_inputs(case: str) -> dict[str, np.ndarray]:
    """The inputs of a case, as PyTorch drew or computed them in float32."""
    return {name: array.copy() for name, array in _inputs()[case].items()}


def printed(what: str) -> np.ndarray:
    """The numbers that the article prints, their lost minus signs put back."""
    (numbers, *_) = (article.values(entry) for entry in article.printed()["tensors"] if entry["what"] == what)
    return numbers


def shown(array: np.ndarray) -> list[str]:
    """Every number of an array as the article prints it: to four decimals."""
    return [f"{number:.4f}" for number in np.asarray(array, dtype=np.float64).ravel()]
