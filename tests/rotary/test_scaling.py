"""The scaled frequencies are those of the models: independent writings in NumPy, and numbers worked out by hand."""

import math

import numpy as np
import pytest

from attention_core import Rotary, rotary, rotate


def plain(base: float, dim: int) -> np.ndarray:
    return 1.0 / base ** (np.arange(0, dim, 2) / dim)


def llama3(base: float, dim: int, factor: float, low: float, high: float, length: int) -> np.ndarray:
    """By wavelengths, as the model's own code says it."""
    found = []
    for f in plain(base, dim):
        wave = 2 * math.pi / f
        if wave < length / high:
            found.append(f)
        elif wave > length / low:
            found.append(f / factor)
        else:
            smooth = (length / wave - low) / (high - low)
            found.append((1 - smooth) * f / factor + smooth * f)
    return np.array(found)


def yarn(base: float, dim: int, factor: float, length: int, fast: float, slow: float, truncate: bool) -> np.ndarray:
    """By the paper's equation for the pair that turns a given number of times."""

    def pair_of(turns: float) -> float:
        return dim / 2 * math.log(length / (2 * math.pi * turns), base)

    low, high = pair_of(fast), pair_of(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    ramp = np.clip((np.arange(dim // 2) - max(low, 0)) / (min(high, dim - 1) - max(low, 0)), 0, 1)
    return plain(base, dim) * (ramp / factor + 1 - ramp)


CASES = [
    ("plain", Rotary(base=500.0), 12, plain(500.0, 12)),
    ("partial", Rotary(base=500.0, dim=8), 12, plain(500.0, 8)),
    ("linear", Rotary(base=500.0, scaling=rotary.linear(8.0)), 12, plain(500.0, 12) / 8),
    ("ntk", Rotary(base=500.0, scaling=rotary.ntk(8.0)), 12, plain(500.0 * 8.0 ** (12 / 10), 12)),
    (
        "llama 3.1",
        Rotary(base=500000.0, scaling=rotary.llama3(8.0, 1.0, 4.0, original_length=8192)),
        128,
        llama3(500000.0, 128, 8.0, 1.0, 4.0, 8192),
    ),
    (
        "deepseek",
        Rotary(scaling=rotary.yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)),
        64,
        yarn(10000.0, 64, 40.0, 4096, 32.0, 1.0, True),
    ),
    (
        "gpt-oss",
        Rotary(base=150000.0, scaling=rotary.yarn(32.0, 4096, truncate=False)),
        64,
        yarn(150000.0, 64, 32.0, 4096, 32.0, 1.0, False),
    ),
    ("phi-3", Rotary(scaling=rotary.longrope([1.0, 1.5, 4.0])), 6, plain(10000.0, 6) / [1.0, 1.5, 4.0]),
]


@pytest.mark.parametrize(("kind", "depth", "expected"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_frequencies(kind: Rotary, depth: int, expected: np.ndarray) -> None:
    np.testing.assert_allclose(kind.frequencies(depth), expected, rtol=1e-13)


def test_every_ramp_has_both_ends_and_a_middle() -> None:
    """So that the comparisons above can tell the three cases of Llama 3's and YaRN's rule."""
    for name, kind, depth, expected in CASES:
        if name in {"llama 3.1", "deepseek", "gpt-oss"}:
            share = plain(kind.base, depth) / expected
            assert {round(x, 6) for x in (share.min(), share.max())} == {1.0, kind.scaling.factor}
            assert ((share > 1.01) & (share < kind.scaling.factor - 0.01)).sum() > 3


@pytest.mark.parametrize(
    ("scaling", "factor"),
    [
        (rotary.yarn(32.0, 4096), 0.1 * math.log(32) + 1),
        (rotary.yarn(0.5, 4096), 1.0),
        (rotary.yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0), 1.0),
        (
            rotary.yarn(40.0, 4096, mscale=0.7, mscale_all_dim=0.5),
            (0.07 * math.log(40) + 1) / (0.05 * math.log(40) + 1),
        ),
        (rotary.yarn(40.0, 4096, attention_factor=1.25), 1.25),
        (rotary.longrope([1.0], factor=32.0, original_length=4096), math.sqrt(1 + 5 / 12)),
        (rotary.longrope([1.0]), 1.0),
        (rotary.linear(2.0), 1.0),
    ],
)
def test_the_attention_factor_multiplies_what_turns_and_nothing_else(scaling: rotary.Scaling, factor: float) -> None:
    assert math.isclose(scaling.attention_factor, factor, rel_tol=1e-15)
    x = np.arange(1.0, 5.0)[None]
    turned = rotate(x, 3, Rotary(dim=2, scaling=scaling))
    angle = 3 * Rotary(dim=2, scaling=scaling).frequencies(4)[0]
    a, b = math.cos(angle) - 2 * math.sin(angle), 2 * math.cos(angle) + math.sin(angle)
    np.testing.assert_allclose(turned, [[factor * a, factor * b, 3.0, 4.0]], rtol=1e-14)


def test_dynamic_ntk_is_ntk_of_a_length() -> None:
    factor, length, original, dim, base = 2.0, 300, 100, 6, 10000.0
    alpha = factor * length / original - (factor - 1)
    huggingface = base * ((factor * length / original) - (factor - 1)) ** (dim / (dim - 2))
    np.testing.assert_allclose(Rotary(scaling=rotary.ntk(alpha)).frequencies(dim), plain(huggingface, dim), rtol=1e-13)


def test_equal_values_are_equal_and_hash_alike() -> None:
    one, two = (Rotary(base=500.0, scaling=rotary.yarn(4, 64)) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != Rotary(base=500.0, scaling=rotary.yarn(4, 65))
    assert "yarn(4.0, 64, " in repr(one)
