"""The small inputs of the reports with the answers that are right by our conventions, written by hand.

``call`` is the core's, ``plain`` the same question put to the loop of ``plain.py`` where the two differ in words.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attention_np import biases, masks
from tests.core.field_reports.plain import INF, causal, window

Q = [[1, 0], [0, 1]]
K = [[1, 0], [0, 1], [1, 1]]
V = [[1, 2], [3, 4], [5, 6]]
NAN = float("nan")
WITHOUT_LAST_KEY = [[1.6604769, 2.6604769], [2.3395231, 3.3395231]]
UNSEEN = [[NAN, INF]]
HALF = np.float16


@dataclass(frozen=True)
class Case:
    """One input of a report: what is asked of the core and of the loop, and the part of the answer that is known."""

    report: str
    query: Any = field(default_factory=lambda: Q)
    key: Any = field(default_factory=lambda: K)
    value: Any = field(default_factory=lambda: V)
    call: dict[str, Any] = field(default_factory=dict)
    plain: dict[str, Any] | None = None
    at: Any = ...
    out: Any = None
    lse: Any = None
    weights: Any = None


def column(*numbers: float) -> list[list[float]]:
    return [[x] for x in numbers]


def kept(*rows: Any) -> np.ndarray:
    return np.array(rows, dtype=bool)


CASES = [
    Case("B001", call={"mask": kept([0, 0, 0], [1, 0, 1])}, out=[[0, 0], [3.6790462, 4.6790462]]),
    Case("B003", call={"bias": np.array([[-1e300] * 3, [0] * 3])}, at=0, out=[3, 4]),
    Case("B003", call={"mask": kept([0, 0, 0], [1, 1, 1])}, at=0, out=[0, 0]),
    Case("B005", *[np.eye(4)] * 3, call={"scale": 1.0, "mask": kept(*[[i != 1] * 4 for i in range(4)])},
         at=1, out=[0] * 4),
    Case("B007", [[1]], column(1, 1, 1), column(1, 2, 6), {"mask": kept([0, 0, 0])}, out=[[0]], lse=[-INF]),
    Case("B009", column(1, 1), [[1]], [[7]],
         {"mask": masks.causal(), "query_positions": -1}, {"mask": causal(2, 1, -1)}, out=column(0, 7)),
    Case("B012", Q, K[:2] + UNSEEN, V[:2] + UNSEEN, {"mask": kept([1, 1, 0])}, out=WITHOUT_LAST_KEY),
    Case("B014", [[1]], column(0, 1, 2, 3), column(10, 20, 30, 40), {"scale": 1.0, "mask": masks.causal_lower_right()},
         {"scale": 1.0, "mask": causal(1, 4, 3)}, out=[[34.92652723]]),
    Case("B014", [[1]], column(0, 1, 2, 3), column(10, 20, 30, 40), {"scale": 1.0, "mask": masks.causal()},
         {"scale": 1.0, "mask": causal(1, 4)}, out=[[10]]),
    Case("B016", Q[:1], call={"mask": masks.causal()}, plain={"mask": causal(1, 3)}, out=[[1, 2]]),
    Case("B016", Q[:1], call={"mask": masks.causal_lower_right()}, plain={"mask": causal(1, 3, 2)}, out=[[3, 4]]),
    Case("B016", K, K[:2], V[:2], {"mask": masks.causal_lower_right()}, {"mask": causal(3, 2, -1)},
         out=[[0, 0], [1, 2], [2, 3]]),
    Case("B022", Q[:1], out=[[3, 4]]),
    Case("B026", Q, Q, Q, {"mask": masks.causal()}, {"mask": causal(2, 2)}, weights=[[1, 0], [0.33023845, 0.66976155]]),
    Case("B028", Q, Q, V[:2], {"mask": masks.causal()}, {"mask": causal(2, 2)}, at=0, out=[1, 2]),
    Case("B034", call={"bias": np.array([0, 0, -INF])}, out=WITHOUT_LAST_KEY),
    Case("B035", call={"bias": biases.dense(np.zeros((2, 3))) + np.array([0, -INF, 0])}, plain={"bias": [0, -INF, 0]},
         at=(..., 1), weights=[0, 0]),
    Case("B037", call={"mask": kept([1, 0, 0], [1, 1, 0])}, out=[[1, 2], [2.3395231, 3.3395231]]),
    Case("B037", call={"mask": ~masks.dense(kept([1, 0, 0], [1, 1, 0]))}, plain={"mask": kept([0, 1, 1], [0, 0, 1])},
         out=[[4.3395231, 5.3395231], [5, 6]]),
    Case("B039", call={"bias": np.array([1.0, 1, 0])}, at=0, out=[2.32064689, 3.32064689]),
    Case("B039", call={"mask": kept([1, 1, 0])}, at=0, out=[1.6604769, 2.6604769]),
    Case("B041", np.ones((2, 1, 1, 1)), np.zeros((2, 1, 3, 1)), np.arange(6.0).reshape(2, 1, 3, 1),
         {"mask": kept([1, 1, 0], [1, 1, 1])[:, None, None, :]}, at=(..., 0, 0), out=column(0.5, 4)),
    Case("B045", np.ones((1, 1, 2)), np.ones((2, 1, 1, 2)), np.ones((2, 1, 1, 2)), out=np.ones((2, 1, 1, 2))),
    Case("B050", np.array([[1]], HALF), np.zeros((2, 1), HALF), np.zeros((2, 1), HALF), {"mask": kept([1, 0])},
         weights=[[1, 0]]),
    Case("B059", np.zeros((4, 1, 1)), np.zeros((2, 1, 1)), [[[0]], [[1]]], at=(..., 0, 0), out=[0, 0, 1, 1]),
    Case("B064", [[1, 0]], [[1, 0]], [[1, 2, 3]], out=[[1, 2, 3]]),
    Case("B065", np.zeros((0, 2, 4)), np.zeros((0, 3, 4)), np.zeros((0, 3, 5)), out=np.zeros((0, 2, 5))),
    Case("B065", np.zeros((2, 0)), np.zeros((3, 0)), V, out=[[3, 4], [3, 4]], plain={"scale": 1.0}),
    Case("B067", np.ones((2, 4)), np.zeros((0, 4)), np.zeros((0, 1)), out=column(0, 0), lse=[-INF, -INF]),
    Case("B070", [[1]], column(1, 0), column(1, 0), out=[[0.73105858]]),
    Case("B070", [[1, 0, 0, 0]], [[1, 0, 0, 0], [0] * 4], column(1, 0), out=[[0.62245933]]),
    Case("B071", [[1]], column(-60000, -60001), column(1, 2), {"scale": 1.0}, out=[[1.26894142]]),
    Case("B073", np.array([[300, 300]], HALF), np.array([[300, 300], [200, 200]], HALF), np.array(column(1, 2), HALF),
         out=[[1]]),
    Case("B075", [[5000]], [[1]], [[1]], {"scale": 1.0, "softcap": 50.0}, lse=[50]),
    Case("B076", call={"scale": -(2**-0.5)}, out=[[3, 4], [2.48953047, 3.48953047]]),
    Case("B078", [[0]], column(0, 0), column(0, 0), {"scale": 0.125, "bias": np.array([0.0, -4])},
         weights=[[0.98201379, 0.01798621]]),
    Case("B082", np.tile([[2.0, 0]], (4, 1, 1)), np.tile([[2.0, 0], [0, 0]], (4, 1, 1)), np.ones((4, 2, 1)),
         at=(3, 0), weights=[0.94419275, 0.05580725]),
    Case("B085", [[0]], np.zeros((65, 1)), np.zeros((65, 1)), {"softcap": 1.0}, weights=np.full((1, 65), 1 / 65)),
    Case("B085", [[0]], np.zeros((128, 1)), np.zeros((128, 1)), {"softcap": 1.0, "mask": masks.key_lengths(65)},
         {"softcap": 1.0, "mask": np.arange(128) < 65}, at=(0, slice(62, 67)), weights=[1 / 65] * 3 + [0] * 2),
    Case("B100", np.ones((1, 1, 1)), [column(-5, -6)], np.zeros((1, 2, 1)), {"scale": 1.0, "sinks": np.zeros(1)},
         weights=[[[0.00667641, 0.00245611]]]),
    Case("B112", at=0, weights=[0.40111209, 0.19777581, 0.40111209]),
    Case("B115", column(1, 2), column(3, 6), column(1, 1), {"bias": np.array([0.0, 1])},
         weights=[[0.01798621, 0.98201379], [0.00091105, 0.99908895]]),
    Case("B128", [[0]], np.zeros((4, 1)), column(10, 20, 30, 0), {"mask": masks.causal(), "query_positions": 2},
         {"mask": causal(1, 4, 2)}, out=[[20]]),
    Case("B133", [[0]], np.zeros((3, 1)), column(1, 3, 100), {"mask": masks.key_lengths(2)}, {"mask": kept([1, 1, 0])},
         out=[[2]]),
    Case("B133", [[0]], np.zeros((3, 1)), column(1, 3, 100), {"mask": masks.key_lengths(0)}, {"mask": kept([0, 0, 0])},
         out=[[0]]),
    Case("B137", [[0]], np.zeros((3, 1)), column(1, 2, 3), {"mask": kept([1, 0, 1])}, out=[[2]]),
    Case("B140", np.zeros((1, 1), HALF), np.zeros((512, 1), HALF), np.ones((512, 1), HALF),
         at=(0, 7), weights=0.001953125),
    Case("B162", [[0], [1]], column(np.log(3), 0), column(0, 0), weights=[[0.5, 0.5], [0.75, 0.25]]),
    Case("B167", Q, [[3, 0], [0, 3]], [[10, 20], [30, 40]],
         out=[[12.14083603, 22.14083603], [27.85916397, 37.85916397]]),
]  # fmt: skip

# What is also asked under `jax.jit`, where a compilation a case would take too long: one case for each way through.
UNDER_JIT = {"B001", "B009", "B012", "B034", "B059", "B067", "B073", "B085", "B100"}


@dataclass(frozen=True)
class Picture:
    """A mask of a report over its queries and keys, drawn with the right answer."""

    report: str
    mask: masks.Mask
    rows: str
    plain: np.ndarray
    query_positions: int = 0


CAUSAL, LOWER_RIGHT, window_of = masks.causal(), masks.causal_lower_right(), masks.sliding_window

PICTURES = [
    Picture("B018", LOWER_RIGHT, "00 00 00 10 11", causal(5, 2, -3)),
    Picture("B030", window_of(1, 0), "10000 11000 01100", window(3, 5, 1, 0)),
    Picture("B032", CAUSAL & kept(0, 1, 1), "000 010 011", causal(3, 3) & kept(0, 1, 1)),
    Picture("B087", window_of(2 - 1, 0), "1000 1100 0110 0011", window(4, 4, 1, 0)),
    Picture("B089", window_of(0, 0), "100 010 001", window(3, 3, 0, 0)),
    Picture("B091", window_of(1, 1), "1100 1110 0111 0011", window(4, 4, 1, 1)),
    Picture("B091", window_of(1, None), "1111 1111 0111 0011", window(4, 4, 1)),
    Picture("B093", window_of(None, None), "11 11 11 11", window(4, 2, start=-2), -2),
    Picture("B093", window_of(None, 10**9), "11 11 11 11", window(4, 2, right=10**9, start=-2), -2),
    Picture("B093", window_of(None, 2), "10 11 11 11", window(4, 2, right=2, start=-2), -2),
    Picture("B095", window_of(None, 0), "10 11", window(2, 2, right=0)),
    Picture("B098", window_of(7, 0), "11111111", window(1, 8, 7, 0, 7), 7),
    Picture("B130", CAUSAL, "1110 1111", causal(2, 4, 2), 2),
]
