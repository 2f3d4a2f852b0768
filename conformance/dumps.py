"""A user's dumped tensors: `.npy`, `.npz`, `.safetensors`, `.pt` where PyTorch is installed. Nothing is executed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from conformance import tensors
from conformance.errors import UsageError
from conformance.tensors import dtype_named

KINDS = (".npy", ".npz", ".safetensors", ".pt")


def read_dump(given: str, name: str) -> np.ndarray:
    """Read one array of `PATH` or `PATH:KEY`; without a key, the file's only array, or the one called `name`.

    Raises:
        UsageError: the file is missing, of another kind, damaged, or holds several arrays and none of that name.
    """
    path, key = _path_and_key(given)
    if path.suffix not in KINDS:
        raise UsageError(f"--{name} {given}: known are {', '.join(KINDS)}")
    if not path.exists():
        raise UsageError(f"--{name} {given}: there is no such file")
    try:
        found = _arrays(path)
    except UsageError:
        raise
    except Exception as error:  # foreign readers raise a dozen kinds of errors for what is damaged; all end here
        words = " ".join(str(error).split())[:200] or type(error).__name__
        what = "it was cut short, damaged, or is another kind of file; save it anew"
        raise UsageError(f"--{name} {given}: not readable as {path.suffix}: {what} ({words})") from error
    if len(found) == 1 and key is None:
        (key,) = found
    key = name if key is None else key
    if key not in found:
        raise UsageError(f"--{name} {given}: no array `{key}`; it holds {', '.join(found)}. Write {path}:KEY")
    return _numbers(found[key], given, name)


def _path_and_key(given: str) -> tuple[Path, str | None]:
    head, colon, key = given.rpartition(":")
    if colon and Path(head).suffix in KINDS:
        return Path(head), key
    return Path(given), None


def _arrays(path: Path) -> Mapping[str, np.ndarray]:
    if path.suffix in (".npy", ".npz"):
        with path.open("rb") as file:
            return _of_numpy(np.load(file, allow_pickle=False))
    if path.suffix == ".safetensors":
        return tensors.load(path.read_bytes())
    try:
        from conformance.adapters.torch_dumps import read_pt

        return read_pt(path)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{path}: a .pt file needs PyTorch ({error.name} is missing); save it as .npy instead"
        ) from error


def _of_numpy(found: Any) -> Mapping[str, np.ndarray]:
    if isinstance(found, np.ndarray):
        return {"array": found}
    members = {name: found[name] for name in found.files}
    return {name: array for name, array in members.items() if isinstance(array, np.ndarray)}


def _numbers(array: np.ndarray, given: str, name: str) -> np.ndarray:
    if array.dtype.kind == "V" and array.dtype.itemsize == 2 and array.dtype != dtype_named("bfloat16"):
        # numpy.save knows no bfloat16 and keeps two bytes without a meaning.
        return array.view(dtype_named("bfloat16"))
    if array.dtype.kind in "fbiu" or array.dtype == dtype_named("bfloat16"):
        return array
    raise UsageError(f"--{name} {given}: dtype {array.dtype} is no real number or boolean")
