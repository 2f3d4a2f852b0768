"""The vectors are usable without Python: a reader in plain JavaScript, run where Node is installed."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance import VECTORS
from conformance.cases import Expected
from conformance.format import read_groups, write_groups
from conformance.tensors import dtype_named
from conformance.verdict import distance
from tests.conformance.made import arrays, made

NODE = shutil.which("node")
READER = Path(__file__).resolve().parents[2] / "examples" / "vectors.mjs"
pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node: https://nodejs.org")

FOUR = arrays(key_heads=4)
BIAS = (np.arange(84).reshape(4, 3, 7) % 5 / 4 - 0.5).astype(np.float32)
TABLE = (np.arange(32).reshape(8, 4) / 8).astype(np.float32)
CAUSAL = {"rule": "causal"}
MADE = {
    "plain": {"inputs": arrays((3, 5))},
    "grouped": {},
    "blhd": {"inputs": {name: np.swapaxes(x, 1, 2).copy() for name, x in arrays().items()}, "layout": "BLHD"},
    "causal": {"mask": CAUSAL, "query_positions": 2, "key_positions": 1},
    "lower-right": {"mask": {"rule": "causal_lower_right"}},
    "positions": {"mask": CAUSAL, "query_positions": [[0, 3, 6], [2, 4, 1]]},
    "window": {"mask": {"rule": "sliding_window", "left": 1, "right": 2}},
    "open-window": {"mask": {"rule": "sliding_window", "left": None, "right": 1}},
    "lengths": {"mask": {"rule": "key_lengths", "lengths": [3, 0]}},
    "query-lengths": {"mask": {"rule": "query_lengths", "lengths": 2}},
    "segments": {"mask": {"rule": "segments", "query_ids": [0, 1, -1], "key_ids": [0, 0, 1, 1, 1, -1, 2]}},
    "prefix": {"mask": {"rule": "or", "of": [{"rule": "prefix", "length": 2}, CAUSAL]}},
    "chunked": {"mask": {"rule": "and", "of": [{"rule": "chunked", "size": 2}, CAUSAL]}},
    "dilated": {"mask": {"rule": "dilated", "step": 2}, "query_positions": 1},
    "global": {"mask": {"rule": "not", "of": [{"rule": "global_tokens", "count": 1}]}},
    "dense": {"inputs": {**FOUR, "mask": np.arange(7) % 3 > 0}, "mask": {"rule": "dense"}},
    "bias": {
        "inputs": {**FOUR, "bias": np.where(BIAS == 0.5, -np.inf, BIAS).astype(np.float32)},
        "bias": {"rule": "dense"},
    },
    "alibi": {"bias": {"rule": "alibi", "slopes": 4}, "key_positions": 3},
    "relative": {
        "inputs": {**FOUR, "table": TABLE},
        "bias": {
            "rule": "sum",
            "of": [{"rule": "relative", "table": "table", "max_distance": 16}, {"rule": "alibi", "slopes": 4}],
        },
    },
    "cap-and-sinks": {
        "inputs": {**FOUR, "sinks": np.array([0.5, -1, 2, 0], np.float32)},
        "softcap": 1.5,
        "sinks": "sinks",
    },
    "scale": {"scale": -0.25, "inputs": arrays(value_depth=3)},
}


def narrowed(case):
    """The case with a PyTorch tensor in each narrow dtype, as far off as it says."""
    truth = case.expected["out"].truth
    narrow = {dtype: truth.astype(dtype_named(dtype)) for dtype in ("float32", "float16", "bfloat16")}
    error = {dtype: float(f"{distance(array, truth)[0]:.3g}") for dtype, array in narrow.items()}
    return replace(case, expected={**case.expected, "out": Expected(truth, narrow, error)})


def run(folder):
    return subprocess.run([NODE, READER, folder], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    group, _ = made()
    cases = tuple(narrowed(made(name, **arguments)[1]) for name, arguments in MADE.items())
    path = tmp_path_factory.mktemp("vectors")
    write_groups([replace(group, cases=cases)], path)
    return path


@pytest.mark.slow  # CI runs the reader on all of them
def test_the_saved_vectors_are_read_and_pass():
    done = run(VECTORS)
    groups = read_groups()
    asked = sum(
        case.op in ("attention", "packed", "rotary", "merge") and case.valid for group in groups for case in group.cases
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{asked} pass, 0 fail" in done.stdout


def test_every_rule_and_every_dtype_is_read(folder):
    done = run(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(MADE)} cases: {len(MADE)} pass, 0 fail ({7 * len(MADE)} outputs), 0 not asked" in done.stdout
    assert f"{3 * len(MADE)} tensors of PyTorch decoded" in done.stdout


def test_a_wrong_truth_fails(tmp_path):
    group, case = made()
    off = {**case.expected, "out": Expected(case.expected["out"].truth + 1e-9)}
    write_groups([replace(group, cases=(replace(case, expected=off),))], tmp_path)
    done = run(tmp_path)
    assert done.returncode == 1
    assert "fail made: out; matches nothing" in done.stdout


@pytest.mark.parametrize("name", ["made.json", "made.safetensors"])
def test_a_changed_file_is_refused(folder, tmp_path, name):
    shutil.copytree(folder, tmp_path / "vectors")
    path = tmp_path / "vectors" / name
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(bytes(data))
    done = run(tmp_path / "vectors")
    assert done.returncode == 1
    assert "is not the file that index.json lists" in done.stderr or "is damaged" in done.stderr


def test_a_newer_format_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "vectors")
    path = tmp_path / "vectors" / "index.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    assert "has format 2; this reader knows 1" in run(tmp_path / "vectors").stderr
