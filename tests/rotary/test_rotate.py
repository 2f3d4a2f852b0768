"""The rotation is that of the formula in exact arithmetic, at every position that fits 32 bits, on every library."""

import math
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest

from attention_core import Rotary, rotary, rotate
from tests.core.libraries import EACH_ONCE, Library

SHAPE = (2, 3, 5, 8)  # batch, heads, length, depth
POSITIONS = np.array([[0, 1, 2, 3, 4], [7, 0, 131071, 16777217, 1073741823]])
X = np.random.default_rng(0).normal(size=SHAPE)
mpmath.mp.prec = 120


def pair(i: int, dim: int, interleaved: bool) -> tuple[int, int]:
    return (2 * i, 2 * i + 1) if interleaved else (i, i + dim // 2)


def exact(x: np.ndarray, positions: np.ndarray, dim: int, base: float, interleaved: bool) -> np.ndarray:
    """The formula by loops, angles in 120 bits; `positions (batch, length)`."""
    out = x.copy()
    for b, h, n in np.ndindex(x.shape[:3]):
        for i in range(dim // 2):
            angle = int(positions[b, n]) * mpmath.mpf(base) ** (-mpmath.mpf(2 * i) / dim)
            cos, sin = float(mpmath.cos(angle)), float(mpmath.sin(angle))
            one, two = pair(i, dim, interleaved)
            out[b, h, n, one] = x[b, h, n, one] * cos - x[b, h, n, two] * sin
            out[b, h, n, two] = x[b, h, n, two] * cos + x[b, h, n, one] * sin
    return out


KINDS = [
    pytest.param(Rotary(), id="half-split"),
    pytest.param(Rotary(interleaved=True), id="interleaved"),
    pytest.param(Rotary(base=500000.0, dim=6), id="partial"),
    pytest.param(Rotary(base=500.0, dim=2, interleaved=True), id="partial-interleaved"),
]


def expected(kind: Rotary, x: np.ndarray = X, positions: np.ndarray = POSITIONS) -> np.ndarray:
    return exact(x.astype(float), positions, kind.dim or x.shape[-1], kind.base, kind.interleaved)


@pytest.mark.parametrize("kind", KINDS)
def test_float64_is_exact_but_for_the_frequencies_rounding(kind: Rotary) -> None:
    wrong = np.abs(rotate(X, POSITIONS, kind) - expected(kind)).max(axis=(1, 3))
    allowed = 1e-15 + POSITIONS * 2.0**-50
    assert (wrong <= 8 * allowed).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_lower_precision_has_the_same_small_error_at_every_position(kind: Rotary, dtype: Any) -> None:
    x = X.astype(dtype)
    out = rotate(x, POSITIONS, kind)
    assert out.dtype == dtype
    eps = float(ml_dtypes.finfo(dtype).eps)
    assert np.abs(out.astype(float) - expected(kind, x)).max() < 6 * eps * np.abs(x.astype(float)).max()


@EACH_ONCE
def test_every_library(library: Library) -> None:
    for kind in (Rotary(), Rotary(base=500000.0, dim=6, interleaved=True)):
        out = library.call(lambda x, positions, kind=kind: rotate(x, positions, kind), X.astype(np.float32), POSITIONS)
        assert library.numpy(out).dtype == np.float32
        np.testing.assert_allclose(library.numpy(out), expected(kind), rtol=0, atol=2e-6)


@pytest.mark.parametrize("first", [0, 3, np.asarray(3), np.asarray(3, np.uint8)])
def test_an_integer_is_the_first_position(first: Any) -> None:
    kind = Rotary(dim=4)
    counted = np.broadcast_to(np.arange(5) + int(first), (2, 5))
    np.testing.assert_allclose(rotate(X, first, kind), expected(kind, X, counted), rtol=0, atol=1e-14)


def test_layouts_and_plain_arrays_agree() -> None:
    kind, out = Rotary(), rotate(X, POSITIONS, Rotary())
    np.testing.assert_array_equal(rotate(np.moveaxis(X, 1, 2), POSITIONS, kind, layout="BLHD"), np.moveaxis(out, 1, 2))
    np.testing.assert_array_equal(rotate(X[1, 2], POSITIONS[1], kind), out[1, 2])
    np.testing.assert_array_equal(rotate(X[1], POSITIONS[1], kind), out[1])


@pytest.mark.parametrize("kind", KINDS)
def test_scores_depend_on_the_distance_alone_and_norms_stay(kind: Rotary) -> None:
    x, y = X[0, 0, :1], X[0, 1, :1]
    near = rotate(x, 5, kind) @ rotate(y, 3, kind).T
    far = rotate(x, 100_005, kind) @ rotate(y, 100_003, kind).T
    assert math.isclose(near[0, 0], far[0, 0], rel_tol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(rotate(X, 9, kind), axis=-1), np.linalg.norm(X, axis=-1), rtol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_position_zero_is_the_identity_and_negative_positions_the_transpose(kind: Rotary) -> None:
    np.testing.assert_array_equal(rotate(X, POSITIONS * 0, kind), X)
    back = rotate(rotate(X, POSITIONS, kind), -POSITIONS, kind)
    np.testing.assert_allclose(back, X, rtol=0, atol=1e-14)


def test_the_report_of_frequencies_repeated_pairwise() -> None:
    """B106: [1, 2, 3, 4] and [.5, -1, 2, .25] two positions apart have one score, wherever they stand."""
    x, y = np.array([[1.0, 2, 3, 4]]), np.array([[0.5, -1, 2, 0.25]])
    scores = [(rotate(x, n, Rotary()) @ rotate(y, n - 2, Rotary()).T)[0, 0] for n in (3, 5)]
    angles = [(x[0, i], x[0, i + 2], y[0, i], y[0, i + 2], 2 * 10000.0 ** (-i / 2)) for i in range(2)]
    want = sum((a * c + b * d) * math.cos(t) + (a * d - b * c) * math.sin(t) for a, b, c, d, t in angles)
    np.testing.assert_allclose(scores, [want, want], rtol=1e-14)


def test_the_report_of_interleaved_pairs_that_were_only_concatenated() -> None:
    """B108: position 0 leaves [0, 1, 2, 3] as it is."""
    x = np.array([[0.0, 1, 2, 3]])
    np.testing.assert_array_equal(rotate(x, 0, Rotary(interleaved=True)), x)


def test_options_may_be_numbers_of_numpy() -> None:
    """As a configuration that was read with NumPy has them: the value is that of Python's numbers, and static."""
    numbers: list[Any] = [np.float32(500), np.int64(4), np.float32(2), np.int64(9)]
    given = Rotary(numbers[0], dim=numbers[1], scaling=rotary.yarn(numbers[2], numbers[3]))
    plain = Rotary(500.0, dim=4, scaling=rotary.yarn(2.0, 9))
    assert given == plain
    assert hash(given) == hash(plain)
    x = np.random.default_rng(0).normal(size=(3, 6))
    np.testing.assert_array_equal(rotate(x, 2, given), rotate(x, 2, plain))


def test_empty_arrays_stay_empty() -> None:
    for shape in ((2, 0, 8), (0, 5, 8), (2, 5, 0)):
        assert rotate(np.ones(shape), 0, Rotary()).shape == shape


def test_nothing_is_modified_and_strides_do_not_matter() -> None:
    x = X.copy()
    x.flags.writeable = False
    turned = rotate(x[..., ::-1, :], POSITIONS, Rotary())
    np.testing.assert_array_equal(turned, rotate(x[..., ::-1, :].copy(), POSITIONS, Rotary()))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: rotate([1.0], 0, Rotary()), TypeError, "`x` must be an array; got a list"),
        (lambda: rotate(np.ones(4), 0, Rotary()), ValueError, r"`x` must have at least the axes \(L, D\)"),
        (lambda: rotate(np.ones((3, 4), int), 0, Rotary()), TypeError, "`x` has dtype int64"),
        (lambda: rotate(np.ones((3, 5)), 0, Rotary()), ValueError, "heads of depth 5 have no 5 features"),
        (lambda: rotate(np.ones((3, 4)), 0, Rotary(dim=6)), ValueError, "heads of depth 4 have no 6 features"),
        (lambda: rotate(np.ones((3, 4)), np.arange(2), Rotary()), ValueError, r"`positions` has shape \(2,\)"),
        (lambda: rotate(np.ones((3, 4)), 0.5, Rotary()), TypeError, "`positions` must be an integer"),
        (lambda: rotate(np.ones((3, 4)), 0, 10000.0), TypeError, "`rotary` must be a Rotary; got a float"),
        (lambda: rotate(np.ones((3, 4)), 0, Rotary(), layout="LD"), ValueError, "`layout` must be"),
        (lambda: Rotary(dim=3), ValueError, "`dim` must be even"),
        (lambda: Rotary(base=-1.0), ValueError, "`base` must be positive"),
        (lambda: Rotary(base=1), ValueError, "`base` must not be 1"),
        (lambda: Rotary(base=np.ones(3)), TypeError, "`base` must be a Python number"),
        (lambda: Rotary(interleaved=1), TypeError, "`interleaved` must be a bool"),
        (lambda: Rotary(scaling=2.0), TypeError, "`scaling` must be made by a function of `rotary`"),
        (lambda: rotary.linear(0.0), ValueError, "`factor` must be positive"),
        (lambda: rotary.linear(10**400), ValueError, "`factor` must be positive and finite; got inf"),
        (lambda: Rotary(10**400), ValueError, "`base` must be positive and finite; got inf"),
        (lambda: Rotary(5e-324).frequencies(64), ValueError, "has frequencies larger than any float"),
        (
            lambda: rotate(np.ones((3, 4)), 5, Rotary(scaling=rotary.linear(1e-320))),
            ValueError,
            "larger than any float",
        ),
        (lambda: rotary.llama3(8, 4, 1, original_length=9), ValueError, "must be below `high_frequency_factor`"),
        (lambda: rotary.yarn(8, 4.0), TypeError, "`original_length` must be a Python integer"),
        (lambda: rotary.longrope([1.0], factor=2.0), TypeError, "`original_length` must be a Python integer; got None"),
        (
            lambda: rotate(np.ones((3, 4)), 0, Rotary(scaling=rotary.longrope([1.0]))),
            ValueError,
            "`factors` of longrope must be one a pair, 2; got 1",
        ),
    ],
)
def test_a_wrong_call_says_what_is_wrong(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


def test_under_jax_it_maps_and_differentiates_as_the_transpose() -> None:
    jax = pytest.importorskip("jax", reason="pip install jax")
    kind = Rotary(base=100.0, dim=6, scaling=rotary.yarn(4.0, 64))
    x, cotangent = X.astype(np.float32), np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)

    @jax.jit
    def both(x: Any, positions: Any, cotangent: Any) -> Any:
        mapped = jax.vmap(rotate, in_axes=(0, 0, None))(x, positions, kind)
        return mapped, jax.vjp(lambda x: rotate(x, positions, kind), x)[1](cotangent)[0]

    mapped, gradient = both(x, POSITIONS, cotangent)
    np.testing.assert_allclose(mapped, rotate(X, POSITIONS, kind), rtol=0, atol=2e-6)
    np.testing.assert_allclose(gradient, rotate(cotangent.astype(float), -POSITIONS, kind), rtol=0, atol=2e-6)


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_is_written_with_torch(kind: Rotary) -> None:
    """Half-split pairs by `cos x + sin rotate_half(x)`, neighbours as complex numbers."""
    import torch

    x, positions, dim = torch.tensor(X), torch.tensor(POSITIONS % 4096), kind.dim or X.shape[-1]
    angles = positions[:, None, :, None] * kind.base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    part, rest = x[..., :dim], x[..., dim:]
    if kind.interleaved:
        turning = torch.polar(torch.ones_like(angles), angles)
        turned = torch.view_as_real(torch.view_as_complex(part.unflatten(-1, (-1, 2))) * turning).flatten(-2)
    else:
        one, two = part.chunk(2, dim=-1)
        cos, sin = (torch.cat([table, table], dim=-1) for table in (angles.cos(), angles.sin()))
        turned = part * cos + torch.cat([-two, one], dim=-1) * sin
    out = rotate(x, positions, kind)
    torch.testing.assert_close(out, torch.cat([turned, rest], dim=-1), rtol=0, atol=1e-11)
