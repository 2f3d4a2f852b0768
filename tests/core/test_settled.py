"""What one call settles for the next of the same shapes, dtypes and values: never a check, never a call's array."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_core import kernels
from attention_core import settled as module
from attention_core.dense import visible_pairs
from attention_core.masks.rules import SlidingWindow
from attention_core.problem import make_problem
from attention_np import dot_product_attention, masks, vjp, which_kernel

from .reference import Answer, attention


def arrays(dtype: Any = np.float32, keys: int = 7) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in ((2, 4, 5, 3), (2, 2, keys, 3), (2, 2, 7, 6)))
    return q, k, v


def test_a_second_call_settles_the_same() -> None:
    first, second = make_problem(*arrays()), make_problem(*arrays())
    same = vars(first).keys() - {"query", "key", "value"}
    assert {name: vars(first)[name] for name in same} == {name: vars(second)[name] for name in same}
    assert second.query is not first.query


@pytest.mark.parametrize(
    ("given", "call", "error"),
    [
        (arrays(keys=8), {}, "`value` has length 7"),
        (arrays(np.int32), {}, "`query` has dtype int32"),
        (arrays(), {"scale": True}, "`scale` must be a Python number"),
        (arrays(), {"scale": np.inf}, "`scale` must be finite"),
        (arrays(), {"layout": "LHD"}, "`layout` must be"),
        (arrays(), {"layout": "BLHD"}, "heads"),
        (arrays(), {"query_positions": True}, "`query_positions` must be an integer"),
        (arrays(), {"softcap": 0.0}, "`softcap` must be positive"),
    ],
)
def test_a_wrong_call_after_a_right_one_still_raises(given: Any, call: dict[str, Any], error: str) -> None:
    make_problem(*arrays())
    with pytest.raises((TypeError, ValueError), match=error):
        make_problem(*given, **call)


def test_another_class_is_looked_at_anew() -> None:
    q, k, v = arrays()
    make_problem(q, k, v)
    with pytest.raises(TypeError, match="plain array"):
        make_problem(np.ma.masked_array(q), k, v)
    with pytest.raises(TypeError, match="must be an array"):
        make_problem(q, k, v.tolist())


def test_the_scale_is_the_call_s_own() -> None:
    make_problem(*arrays(), scale=3.0)
    assert make_problem(*arrays()).scale == pytest.approx(3**-0.5)
    assert make_problem(*arrays(), scale=2).scale == 2.0


def test_no_array_is_kept_and_not_too_many_shapes() -> None:
    q, k, v = arrays()
    seen = weakref.ref(q)
    make_problem(q, k, v)
    del q
    gc.collect()
    assert seen() is None
    for keys in range(1, 600):
        x = np.ones((1, keys, 2), np.float32)
        make_problem(x, x, x)
    assert len(module._SETTLED[np.ndarray]) <= 256


# Masks and positions


def seen_by(rule: Any, queries: int = 5, keys: int = 7) -> np.ndarray:
    return np.array([[bool(rule(i, j)) for j in range(keys)] for i in range(queries)])


CALLS: tuple[tuple[dict[str, Any], Any], ...] = (  # what differs in one value only, and who sees whom
    ({}, lambda i, j: True),
    ({"mask": masks.causal()}, lambda i, j: j <= i),
    ({"mask": masks.causal(), "query_positions": 2}, lambda i, j: j <= i + 2),
    ({"mask": masks.causal(), "key_positions": -1}, lambda i, j: j - 1 <= i),
    ({"mask": masks.causal_lower_right()}, lambda i, j: j <= i + 2),
    ({"mask": masks.sliding_window(None, 1)}, lambda i, j: j <= i + 1),
    ({"mask": masks.sliding_window(1, None)}, lambda i, j: j >= i - 1),
    ({"mask": masks.sliding_window(1, 0)}, lambda i, j: i - 1 <= j <= i),
    ({"mask": ~masks.sliding_window(1, 0)}, lambda i, j: not i - 1 <= j <= i),
    ({"mask": masks.prefix(3)}, lambda i, j: j < 3),
    ({"mask": masks.key_lengths(4)}, lambda i, j: j < 4),
    ({"mask": masks.query_lengths(3)}, lambda i, j: i < 3),
    ({"mask": masks.global_tokens(3)}, lambda i, j: i < 3 or j < 3),
    ({"mask": masks.chunked(3)}, lambda i, j: i // 3 == j // 3),
    ({"mask": masks.dilated(3)}, lambda i, j: (i - j) % 3 == 0),
    ({"mask": masks.causal() & masks.prefix(2)}, lambda i, j: j <= i and j < 2),
    ({"mask": masks.causal() | masks.prefix(2)}, lambda i, j: j <= i or j < 2),
    (
        {"mask": masks.prefix(2) | masks.causal() & masks.dilated(2)},
        lambda i, j: j < 2 or (j <= i and (i - j) % 2 == 0),
    ),
)


def expected(visible: np.ndarray, scale: float | None = None) -> Answer:
    q, k, v = arrays(np.float64)
    return attention(q, k, v, visible=visible, scale=scale)


def close(found: np.ndarray, right: np.ndarray) -> None:
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_calls_that_differ_in_one_value_are_not_taken_for_each_other(dtype: Any) -> None:
    for _ in range(3):  # settled at the first, recalled at the others
        for call, rule in CALLS:
            out, lse, _ = dot_product_attention(*arrays(dtype), return_lse=True, **call)
            right = expected(seen_by(rule))
            close(out, right.out)
            close(lse, right.lse)
            assert out.dtype == lse.dtype == dtype


def test_layouts_plain_arrays_and_scales_are_not_taken_for_each_other() -> None:
    given = arrays()
    swapped = [x.swapaxes(1, 2) for x in given]
    right = expected(seen_by(lambda i, j: j <= i)).out
    for _ in range(2):
        found = dot_product_attention(*given, mask=masks.causal())
        close(found, right)
        found = dot_product_attention(*swapped, mask=masks.causal(), layout="BLHD")
        close(found.swapaxes(1, 2), right)
        found = dot_product_attention(given[0][1, 3], given[1][1, 1], given[2][1, 1], mask=masks.causal())
        close(found, right[1, 3])
        found = dot_product_attention(*given, mask=masks.causal(), scale=-1.5)
        close(found, expected(seen_by(lambda i, j: j <= i), -1.5).out)


def test_inputs_of_any_strides_are_of_one_kind() -> None:
    q, k, v = arrays()
    right = expected(seen_by(lambda i, j: j <= i)).out
    for _ in range(2):
        for order in ("C", "F"):
            given = [np.array(x, order=order) for x in (q, k, v)]
            close(dot_product_attention(*given, mask=masks.causal()), right)
        backwards = [x[..., ::-1].copy()[..., ::-1] for x in (q, k, v)]
        close(dot_product_attention(*backwards, mask=masks.causal()), right)


class Evens(SlidingWindow):
    """A caller's own class, which sees other pairs than the one that it inherits from."""

    def visible(self, pairs: Any) -> Any:
        return pairs.key_position % 2 == 0


NOT_SETTLED = (
    np.ones((5, 7), bool),
    masks.dense(np.ones((5, 7), bool)),
    masks.prefix(np.array([1, 2])),
    masks.key_lengths(np.array([1, 2])),
    masks.query_lengths(np.array([1, 2])),
    masks.segments(np.arange(5), np.arange(7)),
    masks.rule(lambda batch, head, i, j: i >= j),
    Evens(None, 0),
)


@pytest.mark.parametrize(
    "mask", [*NOT_SETTLED, *(masks.causal() & ~masks.dense(NOT_SETTLED[0]) | m for m in NOT_SETTLED)]
)
def test_a_mask_that_reads_an_array_or_asks_a_caller_is_never_settled(mask: Any) -> None:
    assert module.kind_of(mask, 0, 0, "BHLD") is None
    before = len(module._SETTLED.get(np.ndarray, {}))
    make_problem(*arrays(), mask=mask)
    assert make_problem(*arrays(), mask=mask).seen is None
    assert len(module._SETTLED.get(np.ndarray, {})) == before


def test_what_a_caller_changes_is_seen() -> None:
    seen, limit = np.ones((5, 7), bool), [7]
    rule = masks.rule(lambda batch, head, i, j: j < limit[0])
    for mask in (seen, masks.dense(seen), rule, Evens(None, 0)):
        seen[:], limit[0] = True, 7
        dot_product_attention(*arrays(), mask=mask)
        seen[:, 2:], limit[0] = False, 2
        visible = seen_by(lambda i, j: j % 2 == 0) if isinstance(mask, Evens) else seen
        close(dot_product_attention(*arrays(), mask=mask), expected(visible).out)


@pytest.mark.parametrize(("call", "error"), [
    ({"query_positions": True}, "`query_positions` must be an integer"),
    ({"key_positions": 0.0}, "`key_positions` must be an integer"),
    ({"query_positions": 2**30}, "`query_positions` must lie within"),
    ({"layout": "BLHD"}, "heads"),
    ({"mask": "causal"}, "`mask` must be a mask"),
    ({"mask": masks.causal_lower_right(), "query_positions": 1}, "sets the positions itself"),
])  # fmt: skip
def test_a_wrong_masked_call_after_a_right_one_still_raises(call: dict[str, Any], error: str) -> None:
    for mask in (masks.causal(), masks.causal_lower_right()):
        make_problem(*arrays(), mask=mask)
    with pytest.raises((TypeError, ValueError), match=error):
        make_problem(*arrays(), **{"mask": masks.causal(), **call})


# The kernel that is taken


def test_a_kernel_is_asked_once_for_calls_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(kernels, "_TABLE", dict(kernels._TABLE))
    only_out = replace(
        kernels.DENSE,
        name="only-out",
        lacks=lambda problem, weights: "weights" if weights else None,
        suits=lambda problem: asked.append(problem.sizes) or True,
    )
    try:
        dot_product_attention(*arrays())
        kernels.register_kernel(np, only_out)
        for _ in range(3):
            assert kernels.choose(make_problem(*arrays()), "auto", False) is only_out
            assert kernels.choose(make_problem(*arrays()), "auto", True).name == "dense"
            assert kernels.choose(make_problem(*arrays()), "tiled", False).name == "tiled"
        assert len(asked) == 2  # by the call that settles them, and by the first of those that recall
        for mask in (masks.causal(), masks.prefix(3)):
            for _ in range(3):
                assert kernels.choose(make_problem(*arrays(), mask=mask), "auto", False) is only_out
        assert len(asked) == 6
        kernels.register_kernel(np, replace(only_out, name="none", suits=lambda problem: False))
        assert which_kernel(*arrays()).impl == "only-out"
        kernels.register_kernel(np, replace(only_out, suits=lambda problem: False))
        assert which_kernel(*arrays()).impl == "dense"
    finally:
        module.forget()


# The pairs that are kept


def test_pairs_are_kept_once_and_nobody_can_write_to_them() -> None:
    first, second = (make_problem(*arrays(), mask=masks.causal()) for _ in range(2))
    assert first.seen is not None
    assert second.seen is make_problem(*arrays(), mask=masks.causal()).seen
    assert (second.seen == seen_by(lambda i, j: j <= i)).all()
    with pytest.raises(ValueError, match="read-only"):
        second.seen[0, 0] = False


def test_a_part_of_a_call_has_pairs_of_its_own() -> None:
    whole = make_problem(*arrays(), mask=masks.causal())
    tile = whole.tile((2, 4), (1, 6))
    assert tile.seen is None
    assert (visible_pairs(tile) == seen_by(lambda i, j: j <= i)[2:4, 1:6]).all()
    assert visible_pairs(replace(whole, mask=None)) is None


def test_large_pairs_are_not_kept() -> None:
    for length, kept in ((32, True), (33, False)):
        x = np.ones((1, length, 2), np.float32)
        assert (make_problem(x, x, x, mask=masks.causal()).seen is not None) == kept


def test_the_table_stays_small() -> None:
    x = np.ones((1, 30, 2), np.float32)
    for n in range(700):
        make_problem(x, x, x, mask=masks.prefix(n))
    entries = module._SETTLED[np.ndarray].values()
    assert len(entries) <= 256
    assert sum(entry["seen"].nbytes for entry in entries if "seen" in entry) <= 2**18


def test_threads_share_the_table() -> None:
    right = [expected(seen_by(rule)).out for _, rule in CALLS]

    def work(start: int) -> None:
        for turn in range(300):
            n = (start + turn) % len(CALLS)
            make_problem(*arrays(), mask=masks.prefix(1000 * start + turn))  # others, until the table starts anew
            close(dot_product_attention(*arrays(), **CALLS[n][0]), right[n])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(module._SETTLED[np.ndarray]) <= 256 + 4  # each thread may add one after all have looked


def test_a_class_of_arrays_is_its_own() -> None:
    class Named(np.ndarray):
        """An array with a name, say."""

    named = [x.view(Named) for x in arrays()]
    for _ in range(2):
        found = dot_product_attention(*named, mask=masks.causal())
        assert type(found) is Named
        assert type(dot_product_attention(*arrays(), mask=masks.causal())) is np.ndarray
        close(found, expected(seen_by(lambda i, j: j <= i)).out)


def test_a_pullback_of_kept_pairs_is_that_of_new_ones() -> None:
    module._SETTLED.clear()
    found = []
    for _ in range(2):
        result, pullback = vjp(*arrays(), mask=masks.causal() & masks.prefix(4))
        found.append((result.out, result.lse, *pullback(np.ones_like(result.out))[:3]))
    assert [x.tobytes() for x in found[0]] == [x.tobytes() for x in found[1]]
