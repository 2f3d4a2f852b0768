"""The second sources of seeds, packed sequences and rotary embedding, by known answers and hand-sized numbers."""

import math

import numpy as np
import pytest

from conformance import mutant_dropout
from conformance.format import read_groups
from conformance.record import loops_packed, loops_rotary, threefry

# Random123's kat_vectors: counter, key, block.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]
CALL = {"mask": None, "bias": None, "scale": 0.0, "softcap": None, "sinks": None, "dropout": None, "layout": "BLHD"}
ROTARY = {"positions": 0, "base": 100.0, "dim": None, "interleaved": False, "scaling": None, "layout": "BHLD"}


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN)
def test_threefry_gives_the_known_answers(counter, key, block):
    assert threefry.threefry(key, counter) == block


def test_a_pair_takes_its_lane():
    # docs/dropout.md writes these out, for seed 7, batch 1, head 2, query 3.
    assert [threefry.lane(7, 1, 2, 3, key) for key in range(4, 8)] == [36393, 51981, 38626, 53323]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("shape", "seed", "origin"),
    [((3, 6), 5, [0, 0, 0, 0]), ((2, 3, 4, 9), 2**40 + 3, [1, 2, 3, 2]), ((2, 1, 3, 5), [3, 2**33], [0, 0, 0, 1])],
)
def test_three_writings_keep_the_same_pairs(shape, seed, origin):
    from conformance.record.kept import kept

    rule = {"rate": 0.3, "seed": seed, "origin": origin}
    found = threefry.kept(rule, shape)
    np.testing.assert_array_equal(kept(rule, shape).numpy(), found)
    of_mutants = mutant_dropout.seeded(rule, (*[1] * (3 - len(shape)), *shape), "")
    np.testing.assert_array_equal(of_mutants.reshape(shape), found)
    assert 0 < found.mean() < 1


def test_the_saved_tables_are_those_of_the_seeds():
    cases = [case for group in read_groups(names=["seeded"]) for case in group.cases]
    assert len(cases) >= 15
    for case in cases:
        table = threefry.kept(case.parameters["dropout"], case.inputs["keep"].shape)
        np.testing.assert_array_equal(case.inputs["keep"], table, err_msg=case.id)


def test_packed_rows_are_the_means_of_their_sequences():
    x = np.arange(6.0).reshape(6, 1, 1)
    call = {**CALL, "query_positions": 0, "key_positions": 0, "query_offsets": [0, 2, 5], "key_offsets": [0, 2, 5]}
    found = loops_packed.run({"query": x, "key": x, "value": x}, call, {"out": np.ones((6, 1, 1))}, ("value",))
    assert found["out"].ravel().tolist() == [0.5, 0.5, 3.0, 3.0, 3.0, 0.0]
    assert found["lse"][0].tolist() == pytest.approx([math.log(2)] * 2 + [math.log(3)] * 3 + [-math.inf])
    assert found["gradient.value"].ravel().tolist() == pytest.approx([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])


def test_a_pair_turns_by_its_angle():
    x = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    halves = loops_rotary.run({"x": x}, ROTARY, {})["out"]
    np.testing.assert_allclose(halves[0], x[0], atol=0)
    expected = [math.cos(1), math.cos(0.1), math.sin(1), math.sin(0.1)]
    np.testing.assert_allclose(halves[1], expected, rtol=1e-15)
    neighbours = loops_rotary.run({"x": x}, {**ROTARY, "interleaved": True}, {})["out"]
    np.testing.assert_allclose(neighbours[1, :2], [math.cos(1) - math.sin(1), math.cos(1) + math.sin(1)], rtol=1e-15)


# Frequencies that the papers' own code gives: Llama 3.1's of depth 128, base 500000; YaRN's end pairs and factor.
@pytest.mark.parametrize(("pair", "wave"), [(29, 462), (31, 1167), (33, 3198), (35, 10464)])
def test_llama_3_scales_its_waves(pair, wave):
    rule = {
        "rule": "llama3",
        "factor": 8.0,
        "low_frequency_factor": 1.0,
        "high_frequency_factor": 4.0,
        "original_length": 8192,
    }
    frequency, _ = loops_rotary.frequency({"base": 500000.0, "scaling": rule}, pair, 128)
    assert round(1 / frequency) == wave


def test_yarn_keeps_the_fast_pairs_and_slows_the_last():
    rule = {"rule": "yarn", "factor": 4.0, "original_length": 4096, "beta_fast": 32, "beta_slow": 1, "truncate": True}
    call = {"base": 10000.0, "scaling": rule}
    first, factor = loops_rotary.frequency(call, 0, 128)
    last, _ = loops_rotary.frequency(call, 63, 128)
    assert (first, factor) == (1.0, pytest.approx(0.1 * math.log(4.0) + 1))
    assert last == pytest.approx(10000.0 ** (-126 / 128) / 4, rel=1e-12)
