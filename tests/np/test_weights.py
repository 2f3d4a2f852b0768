"""Safetensors files are read as the package of that name writes them, and what is broken is said."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attention_np import MultiHeadAttention
from attention_np.weights import load_safetensors

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def drawn(dtype: str, *shape: int) -> np.ndarray:
    numbers = np.random.default_rng(sum(shape)).normal(0, 30, shape)
    return numbers.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype), casting="unsafe")


def written(path: Path, header: Any, body: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_every_dtype_as_the_package_writes_it(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy", reason="pip install safetensors")
    arrays = {dtype: drawn(dtype, 3, n) for n, dtype in enumerate(DTYPES)}
    path = tmp_path / "model.safetensors"
    package.save_file(arrays, path, metadata={"format": "np"})
    found = load_safetensors(path)
    assert set(found) == set(DTYPES)
    for name, x in arrays.items():
        assert found[name].dtype == x.dtype
        assert found[name].shape == x.shape
        assert found[name].tobytes() == x.tobytes()
        assert not found[name].flags.writeable


@pytest.mark.torch
def test_a_module_saved_by_torch_becomes_our_layer(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    module = torch.nn.MultiheadAttention(12, 4, batch_first=True)
    saved = {f"encoder.layers.1.self_attn.{name}": x for name, x in module.state_dict().items()}
    save_file({**saved, "encoder.norm.weight": torch.ones(12)}, tmp_path / "model.safetensors")
    weights = load_safetensors(tmp_path / "model.safetensors", "encoder.layers.1.self_attn")
    layer = MultiHeadAttention.from_state_dict(weights, num_heads=4)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32))
    np.testing.assert_allclose(layer(x.numpy()), module(x, x, x)[0].detach(), rtol=1e-4, atol=1e-5)


def test_a_file_in_parts_and_an_odd_header(tmp_path: Path) -> None:
    parts = {"a.safetensors": ("x.W", 1.0), "b.safetensors": ("x.b", 2.0)}
    for n, (file, (name, value)) in enumerate(parts.items()):
        header = json.dumps({name: {"dtype": "F64", "shape": [], "data_offsets": [0, 8]}}).encode() + b" " * n
        written(tmp_path / file, header, np.float64(value).tobytes())
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: file for file, (name, _) in parts.items()}}))
    found = load_safetensors(index, "x")
    assert {name: float(x) for name, x in found.items()} == {"W": 1.0, "b": 2.0}
    assert all(x.flags.aligned for x in found.values())


def test_each_name_comes_from_its_own_part_and_no_other_is_opened(tmp_path: Path) -> None:
    """A part that was saved anew may hold an old array too; one that is not asked for need not be there."""
    both = {
        name: {"dtype": "F64", "shape": [], "data_offsets": [8 * n, 8 * n + 8]} for n, name in enumerate(["x.W", "x.b"])
    }
    written(tmp_path / "a.safetensors", both, np.array([1.0, 2.0]).tobytes())
    written(tmp_path / "b.safetensors", both, np.array([3.0, 4.0]).tobytes())
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {"x.W": "a.safetensors", "x.b": "b.safetensors", "y.W": "c.safetensors"}})
    )
    assert {name: float(x) for name, x in load_safetensors(index, "x").items()} == {"W": 1.0, "b": 4.0}
    index.write_text(json.dumps({"weight_map": {"x.W": "a.safetensors", "x.c": "b.safetensors"}}))
    with pytest.raises(ValueError, match=r"says that `b\.safetensors` holds `x\.c`, which it does not"):
        load_safetensors(index, "x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "it has no `weight_map`"),
        ("[]", "it has no `weight_map`"),
        ('{"weight_map": []}', "it has no `weight_map`"),
        ("{", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ('{"weight_map": {"x": 3, "y": "a"}}', "must name files beside it; got 3"),
        ('{"weight_map": {"x": ["a"]}}', "must name files beside it"),
        ('{"weight_map": {"x": "../a"}}', "must name files beside it"),
        ('{"weight_map": {"x": "/a"}}', "must name files beside it"),
    ],
)
def test_a_broken_index_is_said(tmp_path: Path, text: str, words: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(ValueError, match=words):
        load_safetensors(index)


FINE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"not json", "its header is no JSON"),
        (b"[" * 100_000, "its header is no JSON"),
        (b"[1]", "its header is no object"),
        ({"x": {**FINE, "shape": [3]}}, r"`x` of .* is \(3,\) of float32, but its data is bytes 0 to 8"),
        ({"x": {**FINE, "data_offsets": [4, 12]}}, "its data is bytes 4 to 12"),
        ({"x": {**FINE, "data_offsets": [-8, 0]}}, "must have counts as shape and data_offsets"),
        ({"x": {**FINE, "shape": [-1, -2]}}, "must have counts as shape and data_offsets"),
        ({"x": {**FINE, "shape": ["2"]}}, "must have counts as shape and data_offsets"),
        ({"x": {**FINE, "shape": [True, 2]}}, "must have counts as shape and data_offsets"),
        ({"x": {**FINE, "shape": [10**30]}}, "but its data is bytes 0 to 8"),
        ({"x": {**FINE, "shape": [2**32, 2**32], "data_offsets": [0, 0]}}, "but its data is bytes 0 to 0"),
        ({"x": {**FINE, "dtype": "F4"}}, "`x` has the dtype 'F4'; known are F64"),
        ({"x": {**FINE, "dtype": ["F32"]}}, r"`x` has the dtype \['F32'\]; known are F64"),
        ({"x": {"dtype": "F32"}}, "must have dtype, shape and data_offsets"),
    ],
)
def test_a_broken_file_is_said(tmp_path: Path, header: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_safetensors(written(tmp_path / "broken.safetensors", header, bytes(8)))


def test_no_file_and_no_such_name(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    path.write_bytes(b"abc")
    with pytest.raises(ValueError, match="it has 3 bytes"):
        load_safetensors(path)
    path.write_bytes((10**6).to_bytes(8, "little") + b"{}")
    with pytest.raises(ValueError, match="its header would have 1000000 bytes of 10"):
        load_safetensors(path)
    written(path, {"x": FINE}, bytes(8))
    with pytest.raises(ValueError, match="stands below `decoder`"):
        load_safetensors(path, "decoder")


def test_bfloat16_without_ml_dtypes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "x.safetensors", {"x": {**FINE, "dtype": "BF16", "shape": [4]}}, bytes(8))
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(ModuleNotFoundError, match="`x` is BF16, which NumPy has from ml_dtypes: pip install"):
        load_safetensors(path)
