"""Every value that the article prints, typed in here by hand with its signs, is what the committed vectors hold."""

import numpy as np
import pytest

from conformance import printed
from conformance.format import read_groups

INF = np.inf
WEIGHTS = [
    [0.1772, 0.1326, 0.1879, 0.1645, 0.1547, 0.1831],
    [0.0386, 0.6870, 0.0204, 0.0840, 0.1470, 0.0229],
    [0.1965, 0.0618, 0.2506, 0.1452, 0.1146, 0.2312],
    [0.1505, 0.2187, 0.1401, 0.1651, 0.1793, 0.1463],
    [0.1347, 0.2758, 0.1162, 0.1621, 0.1881, 0.1231],
    [0.1973, 0.0247, 0.3102, 0.1132, 0.0751, 0.2794],
]
CAUSAL_WEIGHTS = [
    [1.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
    [0.0532, 0.9468, 0.0000, 0.0000, 0.0000, 0.0000],
    [0.3862, 0.1214, 0.4924, 0.0000, 0.0000, 0.0000],
    [0.2232, 0.3242, 0.2078, 0.2449, 0.0000, 0.0000],
    [0.1536, 0.3145, 0.1325, 0.1849, 0.2145, 0.0000],
    [0.1973, 0.0247, 0.3102, 0.1132, 0.0751, 0.2794],
]
SCORES = [
    [0.0613, -0.3491, 0.1443, -0.0437, -0.1303, 0.1076],
    [-0.6004, 3.4707, -1.5023, 0.4991, 1.2903, -1.3374],
    [0.2432, -1.3934, 0.5869, -0.1851, -0.5191, 0.4730],
    [-0.0794, 0.4487, -0.1807, 0.0518, 0.1677, -0.1197],
    [-0.1510, 0.8626, -0.3597, 0.1112, 0.3216, -0.2787],
    [0.4344, -2.5037, 1.0740, -0.3509, -0.9315, 0.9265],
]
SELF = [
    [-0.1564, 0.1028, -0.0763, -0.0764],
    [0.5313, 1.3607, 0.7891, 1.3110],
    [-0.3542, -0.1234, -0.2627, -0.3706],
    [0.0071, 0.3345, 0.0969, 0.1998],
    [0.1008, 0.4780, 0.2021, 0.3674],
    [-0.5296, -0.2799, -0.4107, -0.6006],
]
HEADS = [
    [-0.0185, 0.0170, 0.1999, -0.0860],
    [0.4003, 1.7137, 1.3981, 1.0497],
    [-0.1103, -0.1609, 0.0079, -0.2416],
    [0.0668, 0.3534, 0.2322, 0.1008],
    [0.1180, 0.6949, 0.3157, 0.2807],
    [-0.1827, -0.2060, -0.2393, -0.3167],
]
CROSS = [
    [0.4231, 0.8665, 0.6503, 1.0042],
    [0.4874, 0.9718, 0.7359, 1.1353],
    [0.4054, 0.8359, 0.6258, 0.9667],
    [0.4357, 0.8886, 0.6678, 1.0311],
    [0.4429, 0.9006, 0.6775, 1.0460],
    [0.3860, 0.8021, 0.5985, 0.9250],
]
EMBEDDED = [
    [0.3374, -0.1778, -0.3035],
    [0.1794, 1.8951, 0.4954],
    [0.2692, -0.0770, -1.0205],
    [-0.2196, -0.3792, 0.7671],
    [-0.5880, 0.3486, 0.6603],
    [-1.1925, 0.6984, -1.4097],
]
LOWER = np.tril(np.ones((6, 6)))
PRINTED = {
    ("article-embedding-sentence", "out"): EMBEDDED,
    ("article-scores-omega-24", "scores"): [[1.2903]],
    ("article-scores-omega-2", "scores"): [[-0.6004, 3.4707, -1.5023, 0.4991, 1.2903, -1.3374]],
    ("article-attention-second-word", "weights"): [[0.0386, 0.6870, 0.0204, 0.0840, 0.1470, 0.0229]],
    ("article-attention-second-word", "out"): [[0.5313, 1.3607, 0.7891, 1.3110]],
    ("article-self-attention-layer-dv4", "out"): SELF,
    ("article-self-attention-dv4", "out"): SELF,
    ("article-self-attention-layer-dv1", "out"): [[-0.0185], [0.4003], [-0.1103], [0.0668], [0.1180], [-0.1827]],
    ("article-multi-head-layer", "out"): HEADS,
    ("article-multi-head-all-heads", "out"): np.array(HEADS).T[:, :, None],
    ("article-multi-head-head-2", "out"): np.array(HEADS)[:, 2:3],
    ("article-cross-attention-layer", "out"): CROSS,
    ("article-cross-attention", "out"): CROSS,
    ("article-causal-layer", "step.attn_scores"): SCORES,
    ("article-causal-unmasked-weights", "weights"): WEIGHTS,
    ("article-causal-layer", "step.mask_simple"): LOWER,
    ("article-causal-layer", "step.masked_simple"): np.array(WEIGHTS) * LOWER,
    ("article-causal-layer", "step.masked_simple_norm"): CAUSAL_WEIGHTS,
    ("article-causal-layer", "step.masked"): np.where(LOWER, SCORES, -INF),
    ("article-causal-layer", "step.attn_weights"): CAUSAL_WEIGHTS,
    ("article-causal-rule", "weights"): CAUSAL_WEIGHTS,
}


@pytest.fixture(scope="module")
def groups():
    return read_groups()


@pytest.fixture(scope="module")
def cases(groups):
    return {case.id: case for group in groups for case in group.cases}


@pytest.mark.parametrize(("case", "output"), PRINTED, ids="/".join)
def test_printed_values(cases, case, output):
    want = np.array(PRINTED[case, output])
    for array in (cases[case].expected[output].pytorch["float32"], cases[case].expected[output].truth):
        assert array.shape == want.shape
        assert np.array_equal(np.round(array.astype(np.float64), 4), want)


def test_the_words(cases):
    case = cases["article-embedding-sentence"]
    assert case.inputs["indices"].tolist() == [0, 4, 5, 2, 1, 3]
    assert case.parameters["vocabulary"] == {"Life": 0, "dessert": 1, "eat": 2, "first": 3, "is": 4, "short": 5}


def test_row_sums_are_the_sums_of_the_kept_weights(cases):
    sums = cases["article-causal-layer"].expected["step.row_sums"].truth
    assert np.allclose(sums[:, 0], (np.array(WEIGHTS) * LOWER).sum(1), atol=3e-4)


def test_the_saved_printed_values_are_in_the_vectors(groups):
    assert list(printed.complaints(groups)) == []


def test_the_saved_printed_values_say_where_minus_signs_were_lost():
    entries = {entry["what"]: entry for entry in printed.printed()["tensors"]}
    assert entries["attn_scores"]["printed"][1][0] == 0.6004
    assert entries["attn_scores"]["lost_minus"] == [[1, 0], [3, 0], [4, 0]]
    assert printed.values(entries["attn_scores"]).tolist() == SCORES
    (other,) = entries["sa(embedded_sentence), d_out_v 4"]["other_processors"]
    assert (other["at"], other["printed"], SELF[2][2]) == ([2, 2], -0.2626, -0.2627)


def test_a_value_that_the_vectors_lack_is_reported(groups):
    without = [group for group in groups if group.name != "article-causal"]
    assert any("article-causal-layer" in line for line in printed.complaints(without))
