"""Vectors survive the way to disk bit for bit; a damaged, stale or missing file says what to run."""

import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest

from conformance import VECTORS, tensors
from conformance.cases import Case, Coincidence, Expected, Group, Stamp, Variant, worst_errors
from conformance.errors import UsageError, VectorError
from conformance.format import FORMAT, RECORDER, encode_group, group_names, read_groups, write_groups

RUN = "attention-conformance record"


def example_group(name="example"):
    x = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5
    half = np.array([[1.5, -0.0, np.inf], [np.nan, 2.0, -1e-3]])
    case = Case(
        id=f"{name}-one",
        name="a name",
        group=name,
        section=None,
        why="why",
        failure="failure",
        since="0.1.0",
        op="attention",
        inputs={
            "query": x,
            "mask": x > 0,
            "ids": np.array([3, -1], dtype=np.int64),
            "none": np.zeros((0, 5), np.float32),
        },
        parameters={"scale": 0.1, "mask": {"rule": "dense"}, "bias": None},
        dtypes=("float64", "float32", "bfloat16", "float16"),
        expected={
            "out": Expected(
                half,
                {"bfloat16": half.astype(ml_dtypes.bfloat16), "float16": half.astype(np.float16), "float32": x},
                {"float64": 1e-16, "bfloat16": 0.01},
                "context_vec",
            )
        },
        cotangents={"out": x},
        variants=(Variant("scale=1", "no scaling", {"out": half + 1}),),
        coincidences=(Coincidence(("expected", "scale=1"), "because"),),
        features=("mask",),
        flags=("article",),
        reports=("https://example.org/1",),
    )
    return Group(name, "A title", Stamp(RECORDER, "2", "3", "cpu"), worst_errors((case,)), (case,))


def same(one, other):
    """Equal values, arrays to the bit."""
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and same(vars(one), vars(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.fixture
def folder(tmp_path):
    write_groups([example_group(), example_group("second")], tmp_path)
    return tmp_path


def test_groups_come_back_as_they_were(folder):
    found = read_groups(folder)
    assert same(found, (example_group(), example_group("second")))
    assert group_names(folder) == ("example", "second")


def test_the_same_group_gives_the_same_bytes():
    assert encode_group(example_group()) == encode_group(example_group())


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", ml_dtypes.bfloat16, "int64", "int32", "bool"])
def test_every_dtype_is_bit_exact(dtype):
    rng = np.random.default_rng(5)
    array = rng.integers(0, 256, (3, 16), dtype=np.uint8)
    array = array.astype(bool) if dtype == "bool" else array.view(dtype)
    back = tensors.load(tensors.dump({"a": array, "b": array[:0], "scalar": array[0, 0].reshape(())}))
    assert same(back["a"], array)
    assert back["b"].shape == array[:0].shape
    assert back["scalar"].shape == ()


def test_the_file_is_what_the_safetensors_library_reads():
    from safetensors.numpy import load

    found = load(tensors.dump({"x": np.arange(6.0).reshape(2, 3), "y": np.array([True])}))
    assert np.array_equal(found["x"], [[0, 1, 2], [3, 4, 5]])
    assert found["y"].dtype == bool


def test_big_endian_arrays_are_written_little_endian():
    back = tensors.load(tensors.dump({"a": np.array([1.0, 2.0], dtype=">f4")}))
    assert back["a"].tolist() == [1.0, 2.0]


def test_groups_by_the_beginning_of_their_names(folder):
    assert [group.name for group in read_groups(folder, ["sec"])] == ["second"]
    with pytest.raises(UsageError, match="no group begins with `third`; the groups are example, second"):
        read_groups(folder, ["third"])


def edit(path, **changes):
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | changes))


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = {
    "index missing": (lambda f: (f / "index.json").unlink(), "index.json is missing"),
    "group missing": (lambda f: (f / "second.json").unlink(), "second.json is missing"),
    "tensors missing": (lambda f: (f / "second.safetensors").unlink(), "second.safetensors is missing"),
    "tensors cut": (
        lambda f: cut(f / "example.safetensors", 100),
        r"example.safetensors has 100 of \d+ bytes: it was cut",
    ),
    "tensors empty": (lambda f: cut(f / "example.safetensors", 0), r"has 0 of \d+ bytes"),
    "tensors changed": (lambda f: flip(f / "example.safetensors"), "its sha256 is not the recorded one"),
    "group cut": (lambda f: cut(f / "example.json", 300), "example.json is not JSON: it was cut short or damaged"),
    "group no object": (lambda f: (f / "example.json").write_text("[1]"), "holds no JSON object"),
    "group changed": (lambda f: edit(f / "example.json", title="other"), "is not the file that index.json lists"),
    "index no groups": (lambda f: edit(f / "index.json", groups=[{}]), "index.json is damaged"),
    "older format": (lambda f: edit(f / "example.json", format=0), "example.json has format 0; this reader knows 1"),
    "no format": (lambda f: edit(f / "example.json", format=None), "has format None"),
    "stale": (
        lambda f: edit(f / "example.json", recorded_by={"recorder": RECORDER - 1}),
        f"example.json is stale: recorder {RECORDER - 1} wrote it, this is recorder {RECORDER}",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_file_that_is_not_right_says_what_to_run(folder, damage, message):
    damage(folder)
    with pytest.raises(VectorError, match=message) as raised:
        read_groups(folder)
    assert RUN in str(raised.value)


def test_a_newer_format_asks_for_a_newer_reader(folder):
    edit(folder / "example.json", format=FORMAT + 1)
    with pytest.raises(VectorError, match="pip install --upgrade array-attention"):
        read_groups(folder)


def test_a_group_that_lacks_something_is_damaged(folder):
    from conformance.format import read_group

    document = json.loads((folder / "example.json").read_text())
    del document["cases"][0]["op"]
    (folder / "example.json").write_text(json.dumps(document))
    with pytest.raises(VectorError, match=r"example.json is damaged: KeyError 'op'.*record"):
        read_group(folder, "example")


def test_a_group_cannot_name_a_file_elsewhere(folder, tmp_path_factory):
    from conformance.format import read_group

    elsewhere = tmp_path_factory.mktemp("elsewhere") / "example.safetensors"
    elsewhere.write_bytes(b"x" * 20)
    document = json.loads((folder / "example.json").read_text())
    document["tensors"]["file"] = str(elsewhere)
    (folder / "example.json").write_text(json.dumps(document))
    assert read_group(folder, "example").name == "example"


def test_a_tensor_file_of_rubbish_is_refused():
    for rubbish in (b"", b"\x80\x04K\x01.", b"\xff" * 64):
        with pytest.raises(ValueError, match="not a safetensors file"):
            tensors.load(rubbish)


def test_turned_line_ends_do_not_matter(folder):
    path = folder / "example.json"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert len(read_groups(folder)) == 2


def test_one_name_has_one_meaning_in_a_group():
    group = example_group()
    other = dataclasses.replace(group.cases[0], id="two", variants=(Variant("scale=1", "something else", {}),))
    with pytest.raises(ValueError, match="`scale=1` has two meanings"):
        encode_group(dataclasses.replace(group, cases=(*group.cases, other)))


def test_inputs_are_given_as_fresh_copies_in_the_dtype():
    case = example_group().cases[0]
    given = case.inputs_as("bfloat16")
    assert given["query"].dtype == ml_dtypes.bfloat16
    assert given["mask"].dtype == bool
    assert given["ids"].dtype == np.int64
    given["query"][:] = 0
    assert case.inputs["query"][0, 0] == -2.5


def test_the_committed_vectors_are_small():
    assert sum(path.stat().st_size for path in VECTORS.glob("article-*")) < 200_000
