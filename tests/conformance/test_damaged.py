"""Files that were cut, changed, exchanged or made by others: each is read as it was or refused in a sentence."""

import json
import random
import shutil
from contextlib import suppress

import numpy as np
import pytest
from safetensors.numpy import save_file

from conformance import VECTORS
from conformance.dumps import read_dump
from conformance.errors import UsageError, VectorError
from conformance.expectations import read_expectations
from conformance.format import read_groups

QUERY = np.arange(6.0).reshape(2, 3)
FILES = ("index.json", "merge.json", "merge.safetensors")
RUBBISH = (b"", b"null", b"5", b"[]", b"\xff\xfe\0", b"[" * 100_000, b'{"format": true}', b'{"format": ' + b"9" * 5000)


@pytest.fixture
def folder(tmp_path):
    for name in FILES[1:]:
        shutil.copy(VECTORS / name, tmp_path)
    index = json.loads((VECTORS / "index.json").read_text())
    index["groups"] = [entry for entry in index["groups"] if entry["group"] == "merge"]
    (tmp_path / "index.json").write_text(json.dumps(index))
    return tmp_path


def damaged(data, draw):
    """A copy with one bit turned, or cut."""
    at = draw.randrange(len(data))
    return (
        data[:at] if draw.random() < 0.3 else data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
    )


@pytest.mark.parametrize("name", FILES)
def test_vectors_are_refused_or_as_they_were(folder, name):
    whole, draw = (folder / name).read_bytes(), random.Random(name)
    for _ in range(25):
        (folder / name).write_bytes(damaged(whole, draw))
        if name == "index.json":
            # A group may be misnamed, another key ignored; nothing else may come of it.
            with suppress(VectorError):
                read_groups(folder)
        else:
            with pytest.raises(VectorError):
                read_groups(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("rubbish", RUBBISH, ids=range(len(RUBBISH)))
def test_rubbish_says_what_to_run(folder, name, rubbish):
    (folder / name).write_bytes(rubbish)
    with pytest.raises(VectorError, match=r"`attention-conformance record` \(with PyTorch"):
        read_groups(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"groups": 5}, "index.json is damaged: TypeError"),
        ({"groups": [5]}, "index.json is damaged: TypeError"),
        ({"groups": [{"group": "../merge", "sha256": "0"}]}, r"'\.\./merge' is no group's name"),
        ({"groups": [{"group": 5, "sha256": "0"}]}, "5 is no group's name"),
        ({"format": "1"}, "has format '1'; this reader knows 1"),
        ({"format": 2}, "has format 2; this reader knows 1. Run `pip install --upgrade array-attention`"),
    ],
)
def test_an_index_of_another_kind_is_refused(folder, changes, words):
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, **changes}))
    with pytest.raises(VectorError, match=words):
        read_groups(folder)


@pytest.mark.parametrize("value", [None, 5, "x", [], ["a"]])
def test_a_group_that_names_no_recorder_is_refused(folder, value):
    group = json.loads((folder / "merge.json").read_text())
    (folder / "merge.json").write_text(json.dumps({**group, "recorded_by": value}))
    with pytest.raises(VectorError, match=r"merge\.json is damaged: `recorded_by` is no JSON object"):
        read_groups(folder)


def test_a_folder_that_is_none_is_refused(folder):
    with pytest.raises(VectorError, match=r"index\.json cannot be read in"):
        read_groups(folder / "merge.json")


def dumps(folder):
    """A file of every kind that holds `QUERY`."""
    np.save(folder / "a.npy", QUERY)
    np.savez(folder / "a.npz", query=QUERY)
    save_file({"query": QUERY}, folder / "a.safetensors")
    return ["npy", "npz", "safetensors"]


def test_dumps_that_are_damaged_are_refused_or_read(tmp_path):
    for kind in dumps(tmp_path):
        whole, draw = (tmp_path / f"a.{kind}").read_bytes(), random.Random(kind)
        for _ in range(60):
            (tmp_path / f"b.{kind}").write_bytes(damaged(whole, draw))
            with suppress(UsageError):
                read_dump(f"{tmp_path}/b.{kind}", "query")


def test_dumps_of_one_kind_under_the_name_of_another(tmp_path):
    kinds = dumps(tmp_path)
    for kind in kinds:
        for other in kinds:
            shutil.copy(tmp_path / f"a.{kind}", tmp_path / f"b.{other}")
            if kind == other or {kind, other} == {"npy", "npz"}:
                assert np.array_equal(read_dump(f"{tmp_path}/b.{other}", "query"), QUERY)
                continue
            with pytest.raises(
                UsageError, match=rf"not readable as \.{other}: it was cut short, damaged, or is another"
            ):
                read_dump(f"{tmp_path}/b.{other}", "query")


@pytest.mark.torch
def test_tensors_of_pytorch_that_are_damaged_or_of_no_known_kind(tmp_path):
    torch = pytest.importorskip("torch")
    path, query = tmp_path / "a.pt", torch.from_numpy(QUERY)
    torch.save({"query": query, "layer": 3}, path)
    assert np.array_equal(read_dump(str(path), "query"), QUERY)
    whole = path.read_bytes()
    others = [{"query": query.to_sparse()}, {"query": query.to(torch.float8_e4m3fn)}, [query], 5]
    for other in (*others, b"", whole[:9], whole[: len(whole) // 2]):
        path.write_bytes(other) if isinstance(other, bytes) else torch.save(other, path)
        with pytest.raises(UsageError, match=r"not readable as \.pt: it was cut short"):
            read_dump(str(path), "query")


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("skip = 5", "e.toml", "`skip` must be a list of entries"),
        ('[skip]\ncase = "a"', "e.toml", r"each \[\[skip\]\] in TOML"),
        ("[]", "e.json", "must be an object of lists, skip and expected_failure"),
        ('{"skip": [5]}', "e.json", "`skip` must be a list of entries"),
        ('[[skip]]\ncase = "a"\nreason = "b"\ndtype = 5', "e.toml", "skip 1: `dtype` must be words, and is 5"),
        ("[" * 100_000, "e.json", "not JSON"),
    ],
)
def test_expectations_of_another_shape_say_what_they_must_be(tmp_path, text, name, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=words):
        read_expectations(tmp_path / name)


def test_a_folder_of_expectations_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: "):
        read_expectations(tmp_path)
