"""Few queries over many keys: all heads at once equal the definition, for any split among threads and batch items."""

from typing import Any

import numpy as np
import pytest

from attention_core import masks
from attention_core.problem import Problem, make_problem
from attention_np import decode as module
from attention_np.decode import decode
from attention_np.forward import tiled_forward

from .problems import assert_like, defined

MASKS: dict[str, Any] = {
    "none": None,
    "causal": masks.causal(),
    "window": masks.sliding_window(5, 0),
    "lengths": masks.key_lengths(np.array([9, 0, 23])),
    "by head": masks.dense(np.ones((4, 1, 1), bool)),
}


def problem(mask: Any = None, queries: int = 1, **call: Any) -> Problem:
    rng = np.random.default_rng(7)
    q, k, v = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4, queries, 6), (1, 2, 29, 6), (3, 2, 29, 5))
    )
    return make_problem(q, k, v, mask=mask, query_positions=28, **call)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("mask", MASKS)
def test_decode_is_the_definition_to_the_bit_for_any_number_of_threads(mask: str, threads: int) -> None:
    p = problem(MASKS[mask])
    expected, alone = defined(p), tiled_forward(p, lse=True, few=True, threads=1)
    got = tiled_forward(p, lse=True, few=True, threads=threads)
    for name in ("out", "lse"):
        assert_like(getattr(got, name), getattr(expected, name), "float32")
        np.testing.assert_array_equal(getattr(got, name), getattr(alone, name))


@pytest.mark.parametrize(("mask", "taken"), [("none", True), ("causal", True), ("window", True), ("lengths", False)])
def test_decode_takes_what_all_queries_see(mask: str, taken: bool) -> None:
    found = decode(problem(MASKS[mask]), lse=True, threads=2)
    assert (found is not None) == taken


@pytest.mark.parametrize(
    "call", [{"softcap": 3.0}, {"sinks": np.zeros(4, np.float32)}, {"bias": np.ones(29, np.float32)}, {"queries": 2}]
)
def test_decode_leaves_the_rest_to_the_tiles(call: dict[str, Any]) -> None:
    p = problem(masks.sliding_window(5, 0), **call)
    assert decode(p, lse=True, threads=1) is None
    assert_like(tiled_forward(p, lse=True, few=True).out, defined(p).out, "float32")


def test_a_batch_item_alone_is_the_same_to_the_bit() -> None:
    p = problem(masks.causal())
    together = tiled_forward(p, lse=True, few=True, threads=1)
    for item in range(3):
        alone = make_problem(p.query[item], p.key[0], p.value[item], mask=masks.causal(), query_positions=28)
        np.testing.assert_array_equal(tiled_forward(alone, lse=True, few=True).out, together.out[item])


def test_an_infinite_key_is_left_to_the_definition() -> None:
    p = problem()
    p.key[0, 1, 3, 2] = np.inf
    assert decode(p, lse=True, threads=1) is None
    assert_like(tiled_forward(p, lse=True, few=True).out, defined(p).out, "float32")


def test_all_keys_of_a_window_and_no_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Problem] = []
    original = module.quick_attention
    monkeypatch.setattr(module, "quick_attention", lambda p, *, lse: seen.append(p) or original(p, lse=lse))
    tiled_forward(problem(masks.sliding_window(5, 0)), lse=False, few=True, threads=1)
    assert [p.sizes.keys for p in seen] == [6]
