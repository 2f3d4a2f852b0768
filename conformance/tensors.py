"""Named arrays to and from the bytes of a safetensors file, bit for bit, bfloat16 and float16 included.

Format: https://huggingface.co/docs/safetensors (a length, a JSON header, raw little-endian data; nothing is executed).
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "BOOL": "bool",
}
CODES = {name: code for code, name in DTYPES.items()}


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the little-endian NumPy dtype of a name, `bfloat16` from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name).newbyteorder("<")


def load(data: bytes) -> dict[str, np.ndarray]:
    """Read every tensor of a safetensors file.

    Raises:
        ValueError: the bytes are not a safetensors file, or hold a dtype that the vectors never use.
    """
    from safetensors import SafetensorError, deserialize

    try:
        entries = deserialize(data)
    except SafetensorError as error:
        raise ValueError(f"not a safetensors file ({error})") from error
    return {name: _array(name, entry) for name, entry in entries}


def dump(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Write named arrays as a safetensors file: the same arrays give the same bytes everywhere."""
    header: dict[str, Any] = {}
    body = bytearray()
    # Widest first, so that every tensor starts at a multiple of its own item size, as the format recommends.
    for name in sorted(arrays, key=lambda key: (-arrays[key].dtype.itemsize, key)):
        array = arrays[name]
        raw = np.ascontiguousarray(array, dtype_named(array.dtype.name)).tobytes()
        offsets = [len(body), len(body) + len(raw)]
        header[name] = {"dtype": CODES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        body += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(body)


def _array(name: str, entry: Mapping[str, Any]) -> np.ndarray:
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"tensor `{name}` has dtype {entry['dtype']}, which vectors never use")
    return np.frombuffer(entry["data"], dtype_named(DTYPES[entry["dtype"]])).reshape(entry["shape"])
