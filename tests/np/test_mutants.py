"""Wrong kernels, each one line away from ours: the same checks that pass for ours must fail for every one of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_core import masks
from attention_core.problem import make_problem
from attention_np import decode, exponent, forward, heads, lazy, plan, quick, tile
from attention_np.plan import TileShape

from .problems import Case, choose
from .test_forward import check

Patch = Callable[[pytest.MonkeyPatch], None]


def random_problem(scale: float = 1.0, **call: Any) -> Any:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, n, 6)) for n in (23, 29, 29))
    return make_problem(scale * q, k, v, **call)


def growing_problem() -> Any:
    """Later keys have ever larger scores."""
    q, k = np.ones((9, 4)), np.arange(40.0)[:, None] * np.ones(4)
    return make_problem(q, k, np.random.default_rng(1).standard_normal((40, 3)), scale=20.0)


def low_problem(**call: Any) -> Any:
    """All visible scores are so low that their exponentials are 0; only the hidden first key is small."""
    rng = np.random.default_rng(2)
    k = -40.0 - rng.random((30, 4))
    k[0] = 0
    return make_problem(rng.random((9, 4)) + 40, k, rng.standard_normal((30, 3)), mask=~masks.prefix(1), **call)


def forget_plans() -> None:
    plan._static_plan.cache_clear()
    plan._known_plan.cache_clear()


def run_checks() -> None:
    forget_plans()
    for call in ({}, {"mask": masks.causal()}, {"mask": masks.sliding_window(4, 1)}, {"mask": masks.prefix(9)}):
        for shape in (TileShape(8, 8, 4), TileShape(7, 5, 3)):
            for scale in (1.0, 300.0):
                check(Case(random_problem(scale, **call), shape, few=False), scale)
    check(Case(random_problem(mask=masks.causal(), bias=np.arange(29.0) * 9), TileShape(8, 8, 4), few=False), 100)
    check(Case(low_problem(), TileShape(4, 8, 8), few=False), 1e3)
    check(Case(low_problem(softcap=3000.0), TileShape(4, 8, 8), few=False), 1e3)
    check(Case(growing_problem(), TileShape(4, 8, 8), few=False), 100)
    check(Case(random_problem(sinks=np.array([1.0, 2.0])), TileShape(8, 8, 4), few=False))
    check(Case(random_problem(mask=masks.causal(), query_positions=40), TileShape(23, 29, 29), few=True))
    check(Case(window_of_one_query(), TileShape(1, 8, 8), few=True))


def window_of_one_query() -> Any:
    """The keys before and after the window would change the result."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((2, n, 6)) for n in (1, 29, 29))
    return make_problem(q, k, v, mask=masks.sliding_window(7, 0), query_positions=20)


def wrong_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forward, "_bound", lambda call, where, tile: 0.0)


def bound_of_the_first_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heads.Head, "largest_key", lambda self, keys: float(np.abs(self.key[:1]).max()))


def no_rescale(patch: pytest.MonkeyPatch) -> None:
    original = lazy._raise_references

    def skipped(call: Any, tile: Any, segment: Any, scores: Any, seen: Any, unset: Any) -> bool:
        totals, values = tile.totals.copy(), tile.values.copy()
        moved = original(call, tile, segment, scores, seen, unset)
        tile.totals[...], tile.values[...] = totals, values
        return moved

    patch.setattr(lazy, "_raise_references", skipped)


def stale_scores(patch: pytest.MonkeyPatch) -> None:
    original = lazy._raise_references
    patch.setattr(lazy, "_raise_references", lambda *args: original(*args) and False)


def mask_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forward, "hide", lambda *args: None)


def tile_off_by_one(patch: pytest.MonkeyPatch) -> None:
    original = plan._known_tile

    def shifted(start: Any, stop: Any, *rest: Any) -> Any:
        return original(start, np.maximum(start, stop - 1), *rest)

    patch.setattr(plan, "_known_tile", shifted)


def full_range_too_wide(patch: pytest.MonkeyPatch) -> None:
    original = plan._full_range

    def wider(start: Any, stop: Any, seeing: Any, grain: int) -> Any:
        found = original(start, stop, seeing, grain)
        return found and (found[0], min(found[1] + 1, int(stop.max())))

    patch.setattr(plan, "_full_range", wider)


def last_key_left_out(patch: pytest.MonkeyPatch) -> None:
    original = plan._cut
    patch.setattr(plan, "_cut", lambda first, last, width: original(first, last - 1, width))


def rows_trimmed_too_far(patch: pytest.MonkeyPatch) -> None:
    original = plan._part

    def trimmed(*args: Any) -> Any:
        found = original(*args)
        return found and found._replace(rows=(found.rows[0] + 1, found.rows[1]), masked=(0, 0))

    patch.setattr(plan, "_part", trimmed)


def sink_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(np, "logaddexp", lambda a, b: a)


def scale_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = tile.scaled_queries
    patch.setattr(tile, "scaled_queries", lambda *args: original(*args) * 1.01)


def base_mixed_up(patch: pytest.MonkeyPatch) -> None:
    wrong = exponent.Exponential("wrong", np.exp2, 1.0, -100.0, 60.0, 80.0)
    patch.setattr("attention_np.call.exponential", lambda dtype: wrong)


def bound_before_the_cap(patch: pytest.MonkeyPatch) -> None:
    original = forward._bound

    def uncapped(call: Any, where: Any, tile: Any) -> float:
        return original(call, where, tile) / (call.problem.softcap or 1.0)

    patch.setattr(forward, "_bound", uncapped)


def clamp_forgotten_above(patch: pytest.MonkeyPatch) -> None:
    original = exponent.Exponential.clamped
    patch.setattr(exponent.Exponential, "clamped", lambda self, x: original(replace(self, ceiling=1e30), x))


def decode_sees_all_keys(patch: pytest.MonkeyPatch) -> None:
    original = decode._seen_by_all
    patch.setattr(decode, "_seen_by_all", lambda each: original(each) and (0, 29))


def decode_off_by_one(patch: pytest.MonkeyPatch) -> None:
    original = decode._seen_by_all

    def shifted(each: Any) -> Any:
        found = original(each)
        return found and (found[0], found[1] - 1)

    patch.setattr(decode, "_seen_by_all", shifted)


def quick_lse_without_its_shift(patch: pytest.MonkeyPatch) -> None:
    original = quick.quick_attention

    def wrong(p: Any, *, lse: bool) -> Any:
        found = original(p, lse=lse)
        return found and found._replace(lse=np.zeros_like(found.lse))

    patch.setattr(decode, "quick_attention", wrong)


MUTANTS: tuple[Patch, ...] = (
    wrong_bound, bound_of_the_first_keys, no_rescale, stale_scores, mask_forgotten, tile_off_by_one,
    full_range_too_wide, last_key_left_out, rows_trimmed_too_far, sink_forgotten, scale_forgotten, base_mixed_up,
    bound_before_the_cap, clamp_forgotten_above, decode_sees_all_keys, decode_off_by_one, quick_lse_without_its_shift,
)  # fmt: skip


def test_ours_passes() -> None:
    run_checks()


@pytest.mark.parametrize("name", ["numpy", "numba"])
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__)
def test_every_mutant_fails(mutant: Patch, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fallback(*args: Any) -> Any:
        raise AssertionError("the definition had to help")

    choose(name, monkeypatch)
    mutant(monkeypatch)
    monkeypatch.setattr(forward, "exact_forward", no_fallback)
    with pytest.raises((AssertionError, ValueError)):
        run_checks()
    monkeypatch.undo()
    forget_plans()


@pytest.mark.parametrize("base2", [False, True])
def test_both_of_numpys_exponentials_give_the_definition(base2: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    choose("numpy", monkeypatch)
    monkeypatch.setattr(exponent, "_is_vectorised", lambda name, dtype: base2)
    exponent._exponential.cache_clear()
    run_checks()
    monkeypatch.undo()
    exponent._exponential.cache_clear()


@pytest.mark.parametrize("name", ["mkl", "numba"])
def test_others_products_and_exponentials_give_the_definition(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(name, monkeypatch)
    run_checks()
