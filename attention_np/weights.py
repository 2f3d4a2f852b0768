"""Weights from safetensors files, without the package of that name and without PyTorch.

Format: https://huggingface.co/docs/safetensors (a length, a JSON header, raw little-endian data; nothing is executed).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["load_safetensors"]

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8",
    "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
_FROM_ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_LONGEST_HEADER = 100_000_000


def load_safetensors(path: str | PathLike[str], prefix: str = "") -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file by name, as a layer's ``from_state_dict`` takes them.

    Args:
        path: a ``.safetensors`` file, or the ``.safetensors.index.json`` of one that was saved in parts.
        prefix: only what stands below this name, without it: ``"model.layers.0.self_attn"`` gives ``q_proj.weight``.

    The arrays are read-only views of the file in memory, read when they are used. bfloat16 and float8 need the package
    ml_dtypes, which JAX brings. To have them in JAX: ``jax.tree.map(jnp.asarray, layer)``.

    Raises:
        ValueError: the file is no safetensors file, or no name stands below the prefix.
        ModuleNotFoundError: a dtype needs ml_dtypes.

    >>> import json, pathlib, struct, tempfile
    >>> header = json.dumps({"attn.W": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    >>> path = pathlib.Path(tempfile.mkdtemp(), "model.safetensors")
    >>> path.write_bytes(len(header).to_bytes(8, "little") + header + struct.pack("<2f", 1, 2)) > 0
    True
    >>> load_safetensors(path, "attn")["W"]
    array([1., 2.], dtype=float32)
    """
    path = Path(path)
    start = f"{prefix}." if prefix else ""
    named = _read_parts(path, start) if path.suffix == ".json" else _read(path, start)
    if start and not named:
        raise ValueError(f"nothing in `{path}` stands below `{prefix}`")
    return {name.removeprefix(start): x for name, x in named.items()}


def _read_parts(index: Path, start: str) -> dict[str, np.ndarray]:
    """Read what the index names, each from the file that it names: files that hold nothing else stay closed."""
    places = {name: file for name, file in _weight_map(index).items() if name.startswith(start)}
    parts = {file: _read(index.parent / file, start) for file in sorted(set(places.values()))}
    for name, file in places.items():
        if name not in parts[file]:
            raise ValueError(f"`{index}` says that `{file}` holds `{name}`, which it does not")
    return {name: parts[file][name] for name, file in places.items()}


def _weight_map(index: Path) -> dict[str, str]:
    content = _parsed(index, index.read_bytes(), "index of safetensors files", "it")
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict):
        raise ValueError(f"`{index}` is no index of safetensors files: it has no `weight_map`")
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"`{index}` must name files beside it; got {name!r}")
    return weight_map


def _read(path: Path, start: str) -> dict[str, np.ndarray]:
    size = path.stat().st_size
    if size < 8:
        raise ValueError(f"`{path}` is no safetensors file: it has {size} bytes")
    data = np.memmap(path, np.uint8, mode="r")
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > min(size - 8, _LONGEST_HEADER):
        raise ValueError(f"`{path}` is no safetensors file: its header would have {length} bytes of {size}")
    header = _parsed(path, data[8 : 8 + length].tobytes(), "safetensors file", "its header")
    if not isinstance(header, dict):
        raise ValueError(f"`{path}` is no safetensors file: its header is no object")
    body = data[8 + length :]
    entries = {name: entry for name, entry in header.items() if name != "__metadata__" and name.startswith(start)}
    return {name: _array(path, name, entry, body) for name, entry in entries.items()}


def _parsed(path: Path, text: bytes, kind: str, part: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`{path}` is no {kind}: {part} is no JSON ({error})") from error


def _array(path: Path, name: str, entry: Mapping[str, Any], body: np.ndarray) -> np.ndarray:
    try:
        code, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"`{name}` of `{path}` must have dtype, shape and data_offsets; got {entry!r}") from error
    dtype = _dtype(name, code)
    if not all(type(number) is int and number >= 0 for number in (*shape, first, last)):
        raise ValueError(f"`{name}` of `{path}` must have counts as shape and data_offsets; got {entry!r}")
    if not first <= last <= body.size or last - first != dtype.itemsize * prod(shape):
        raise ValueError(f"`{name}` of `{path}` is {shape} of {dtype}, but its data is bytes {first} to {last}")
    raw = np.asarray(body[first:last])
    if raw.ctypes.data % dtype.alignment:
        raw = raw.copy()  # a header whose length is no multiple of 8; libraries refuse what is not aligned
        raw.flags.writeable = False
    return raw.view(dtype).reshape(shape)


def _dtype(name: str, code: Any) -> np.dtype[Any]:
    if isinstance(code, str) and code in _DTYPES:
        return np.dtype(_DTYPES[code])
    if not isinstance(code, str) or code not in _FROM_ML_DTYPES:
        raise ValueError(f"`{name}` has the dtype {code!r}; known are {', '.join([*_DTYPES, *_FROM_ML_DTYPES])}")
    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"`{name}` is {code}, which NumPy has from ml_dtypes: pip install ml_dtypes"
        ) from error
    return np.dtype(getattr(ml_dtypes, _FROM_ML_DTYPES[code]))
