"""The second source by hand-sized numbers, and the recording itself where PyTorch is installed."""

import dataclasses
import json
import math
import shutil
import subprocess
import sys

import numpy as np
import pytest

from conformance import VECTORS
from conformance.format import read_groups, write_groups
from conformance.record import second
from conformance.record.tape import CONTEXT, derivatives, number, total

CALL = {"scale": 0.5, "mask": None}


@pytest.fixture(scope="session")
def record(root):
    """Record in a fresh process, where PyTorch can still be loaded with its plain kernels."""

    def run(*arguments):
        command = [sys.executable, "-m", "conformance", "record", *map(str, arguments)]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)

    return run


def test_the_tape_differentiates_by_hand_sized_numbers():
    x, y = number(3.0), number(2.0)
    slopes = derivatives(x * x * y / (x + y) - y)
    # d/dx x^2 y / (x + y) = (2 x y (x + y) - x^2 y) / (x + y)^2 = 42 / 25; d/dy = x^3 / (x + y)^2 - 1 = 2 / 25.
    assert float(slopes[id(x)]) == pytest.approx(42 / 25, rel=1e-15)
    assert float(slopes[id(y)]) == pytest.approx(2 / 25, rel=1e-14)
    assert float(derivatives(x.log().exp())[id(x)]) == pytest.approx(1.0, rel=1e-15)
    assert float(total([]).value) == 0.0


def test_the_second_source_by_hand():
    inputs = {
        "query": np.array([[2.0], [0.0]]),
        "key": np.array([[0.0], [math.log(3.0)]]),
        "value": np.array([[4.0, 0.0], [0.0, 8.0]]),
    }
    found = second.attention({name: second.box(array) for name, array in inputs.items()}, CALL)
    assert second.unbox(found["weights"]) == pytest.approx(np.array([[0.25, 0.75], [0.5, 0.5]]))
    assert second.unbox(found["out"]) == pytest.approx(np.array([[1.0, 6.0], [2.0, 4.0]]))
    assert second.unbox(found["lse"]) == pytest.approx(np.log([4.0, 2.0]))


def test_gradients_of_the_second_source_are_central_differences():
    rng = np.random.default_rng(7)
    inputs = {"query": rng.normal(size=(2, 3)), "key": rng.normal(size=(4, 3)), "value": rng.normal(size=(4, 2))}
    inputs["mask"] = np.tri(2, 4, 1, dtype=bool)
    cotangent = {"out": rng.normal(size=(2, 2)), "lse": rng.normal(size=2)}

    def objective(arrays):
        found = second.attention(arrays, CALL)
        terms = (found[n][i] * number(float(c[i])) for n, c in cotangent.items() for i in np.ndindex(c.shape))
        return total(terms).value

    boxes = {name: second.box(array) for name, array in inputs.items()}
    names = ("query", "key", "value")
    slopes = second.gradients(second.attention(boxes, CALL), cotangent, boxes, names)
    step = CONTEXT.mpf(10) ** -12
    for name in names:
        for index in ((0, 0), (1, 1)):
            sides = []
            for sign in (1, -1):
                moved = {key: box.copy() for key, box in boxes.items()}
                moved[name][index] = number(boxes[name][index].value + sign * step)
                sides.append(objective(moved))
            numeric = (sides[0] - sides[1]) / (2 * step)
            assert abs(slopes[f"gradient.{name}"][index].value - numeric) < 1e-18


def test_the_article_says_life_with_a_capital():
    from conformance.record.article import vocabulary

    assert vocabulary() == {"Life": 0, "dessert": 1, "eat": 2, "first": 3, "is": 4, "short": 5}


@pytest.mark.torch
def test_check_agrees_with_the_article(record):
    done = record("--check", "--group", "article-")
    assert done.returncode == 0, done.stderr
    assert "23 cases: inputs identical, outputs within 4 scaled ulp" in done.stdout


@pytest.mark.slow
@pytest.mark.torch
def test_check_agrees_with_the_committed_vectors(record):
    done = record("--check")
    assert done.returncode == 0, done.stderr
    cases = sum(len(group.cases) for group in read_groups())
    assert f"{cases} cases: inputs identical, outputs within 4 scaled ulp" in done.stdout


@pytest.mark.slow
@pytest.mark.torch
def test_check_finds_a_changed_input_and_a_changed_output(record, tmp_path):
    groups = list(read_groups())
    first = groups[0].cases[0]
    inputs = {**first.inputs, "weight": np.nextafter(first.inputs["weight"], np.float32(9))}
    groups[0] = dataclasses.replace(groups[0], cases=(dataclasses.replace(first, inputs=inputs),))
    write_groups(groups, tmp_path)
    done = record("--check", "--group", "article-", "--vectors", tmp_path)
    assert done.returncode == 1
    assert "article-embedding-sentence: input `weight` is drawn otherwise" in " ".join(done.stderr.split())

    groups = list(read_groups())
    case = groups[2].cases[0]
    moved = dataclasses.replace(case.expected["out"], truth=case.expected["out"].truth + 1e-14)
    changed = dataclasses.replace(case, expected={**case.expected, "out": moved})
    groups[2] = dataclasses.replace(groups[2], cases=(changed,))
    write_groups(groups, tmp_path)
    done = record("--check", "--group", "article-", "--vectors", tmp_path)
    assert done.returncode == 1
    assert "article-attention-second-word: out in float64 differs by 9.99e-15" in " ".join(done.stderr.split())


@pytest.mark.slow
@pytest.mark.torch
def test_recording_again_writes_what_is_committed_up_to_the_stamp(record, tmp_path):
    shutil.copytree(VECTORS, tmp_path, dirs_exist_ok=True)
    done = record("--group", "article-", "--group", "heads", "--vectors", tmp_path)
    assert done.returncode == 0, done.stderr
    for mine, saved in zip(read_groups(tmp_path), read_groups(), strict=True):
        for case, known in zip(mine.cases, saved.cases, strict=True):
            for name, array in known.inputs.items():
                assert case.inputs[name].tobytes() == array.tobytes()


@pytest.mark.torch
def test_torch_loaded_with_other_kernels_is_refused(fresh_python):
    program = """
import torch
from conformance.errors import RecordError
from conformance.record.portable import portable_torch
if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
    print("start a new process")
else:
    try:
        portable_torch()
    except RecordError as error:
        print(error)
"""
    assert "start a new process" in fresh_python(program)


def test_vectors_are_read_without_torch_or_jax(fresh_python):
    program = """
import sys
from conformance.format import read_groups
read_groups()
import conformance.cli
print(sorted({"torch", "jax", "mpmath", "attention_core", "attention_np"} & sys.modules.keys()))
"""
    assert fresh_python(program).strip() == "[]"


def test_the_schema_refuses_what_the_format_does_not_say(tmp_path):
    import jsonschema

    schema = json.loads((VECTORS / "schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    shutil.copy(VECTORS / "article-embedding.json", tmp_path)
    document = json.loads((tmp_path / "article-embedding.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    assert list(validator.iter_errors(document)) == []
    for change in ({"format": 2}, {"surprise": 1}, {"cases": []}, {"title": ""}):
        assert list(validator.iter_errors(document | change)), change
