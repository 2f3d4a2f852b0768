"""Read and write groups of test vectors: `<group>.json` (everything said) beside `<group>.safetensors` (every tensor).

`index.json` lists the groups in their order with the sha256 of each JSON file, and each JSON file holds the sha256 of
its tensors: what is missing, cut short, changed or of another format is refused, with what to run. The layout is
written down in `vectors/schema.json`. Reading executes nothing.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from conformance import VECTORS, tensors
from conformance.cases import Arrays, Case, Coincidence, Expected, Group, Stamp, Variant
from conformance.errors import RECORD, REPAIR, UsageError, VectorError

FORMAT = 1
# Counts up whenever the recorder gives other inputs, cases or truths, so that vectors left from before are refused.
RECORDER = 1
INDEX = "index.json"
NAME = re.compile("[a-z0-9]+(-[a-z0-9]+)*")
LINE = 120


def group_names(folder: Path = VECTORS) -> tuple[str, ...]:
    """Return the names of the groups in `folder`, in their order."""
    return tuple(entry["group"] for entry in _index(folder))


def read_groups(folder: Path = VECTORS, names: Iterable[str] = ()) -> tuple[Group, ...]:
    """Read the groups of `folder` whose names begin with one of `names`, or all of them.

    Raises:
        UsageError: a name that begins no group's name.
        VectorError: a file that is missing, damaged, stale or newer than this reader; it says what to run.
    """
    entries, names = _index(folder), tuple(names)
    for name in names:
        if not any(entry["group"].startswith(name) for entry in entries):
            known = ", ".join(entry["group"] for entry in entries)
            raise UsageError(f"no group begins with `{name}`; the groups are {known}")
    wanted = [entry for entry in entries if not names or entry["group"].startswith(names)]
    return tuple(read_group(folder, entry["group"], entry["sha256"]) for entry in wanted)


def read_group(folder: Path, name: str, sha256: str | None = None) -> Group:
    """Read one group; `sha256` is what its JSON file must hash to, as the index says."""
    path = folder / f"{name}.json"
    text = _bytes(path)
    document = _parse(path, text)
    _check_format(path, document)
    if sha256 is not None and _sha256(text) != sha256:
        raise VectorError(
            f"{path.name} is not the file that {INDEX} lists (its sha256 differs): it was changed. {REPAIR}"
        )
    try:
        return _group(document, _tensors(folder, document["tensors"]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise VectorError(f"{path.name} is damaged: {type(error).__name__} {error}. {REPAIR}") from error


def write_groups(groups: Iterable[Group], folder: Path = VECTORS) -> None:
    """Write groups and the index that lists them, in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for group in groups:
        text, data = encode_group(group)
        (folder / f"{group.name}.safetensors").write_bytes(data)
        (folder / f"{group.name}.json").write_bytes(text)
        entries.append({"group": group.name, "sha256": _sha256(text)})
    (folder / INDEX).write_bytes(_dump({"format": FORMAT, "groups": entries}))


def encode_group(group: Group) -> tuple[bytes, bytes]:
    """Return the two files of a group: the JSON text, and the tensors."""
    pool = _Pool()
    cases = [_case_document(case, pool) for case in group.cases]
    means = _means(group)
    data = tensors.dump(pool.arrays)
    document = {
        "$schema": "schema.json",
        "format": FORMAT,
        "recorded_by": vars(group.stamp),
        "group": group.name,
        "title": group.title,
        "tensors": {
            "file": f"{group.name}.safetensors",
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        },
        "pytorch_error": dict(group.worst),
        "variants": means,
        "cases": cases,
    }
    return _dump(document), data


class _Pool:
    """The tensors of a file, by short names; equal tensors are kept once."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def add(self, array: np.ndarray) -> str:
        identity = (array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes())
        name = self._names.setdefault(identity, f"t{len(self._names)}")
        self.arrays.setdefault(name, array)
        return name

    def all(self, arrays: Arrays) -> dict[str, str]:
        return {name: self.add(array) for name, array in arrays.items()}


def _means(group: Group) -> dict[str, str]:
    """What each variant's name means, once for the group."""
    means: dict[str, str] = {}
    for case in group.cases:
        for variant in case.variants:
            if means.setdefault(variant.name, variant.means) != variant.means:
                raise ValueError(f"`{variant.name}` has two meanings in {group.name}")
    return means


def _case_document(case: Case, pool: _Pool) -> dict[str, Any]:
    expected = {name: _expected_document(value, pool) for name, value in case.expected.items()}
    # What most cases lack is left out.
    rare = {"tangents": pool.all(case.tangents), "memory": dict(case.memory), "fixed": dict(case.fixed)}
    return {
        "id": case.id,
        "name": case.name,
        "section": case.section,
        "why": case.why,
        "failure": case.failure,
        "flags": list(case.flags),
        "reports": list(case.reports),
        "since": case.since,
        "valid": case.valid,
        "op": case.op,
        "features": list(case.features),
        "dtypes": list(case.dtypes),
        "inputs": pool.all(case.inputs),
        "parameters": dict(case.parameters),
        "cotangents": pool.all(case.cotangents),
        "expected": expected,
        "variants": {variant.name: pool.all(variant.tensors) for variant in case.variants},
        "coincidences": [{"names": list(pair.names), "because": pair.because} for pair in case.coincidences],
        **{name: value for name, value in rare.items() if value},
    }


def _expected_document(value: Expected, pool: _Pool) -> dict[str, Any]:
    document: dict[str, Any] = {"truth": pool.add(value.truth)}
    if value.article is not None:
        document["article"] = value.article
    return {**document, "pytorch": pool.all(value.pytorch), "error": dict(value.error)}


def _group(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Group:
    means = document["variants"]
    cases = tuple(_case(document["group"], case, means, arrays) for case in document["cases"])
    stamp = Stamp(**document["recorded_by"])
    return Group(document["group"], document["title"], stamp, document["pytorch_error"], cases)


def _case(group: str, document: dict[str, Any], means: dict[str, str], arrays: dict[str, np.ndarray]) -> Case:
    def named(keys: dict[str, str]) -> dict[str, np.ndarray]:
        return {name: arrays[key] for name, key in keys.items()}

    plain = {key: document[key] for key in ("id", "name", "section", "why", "failure", "since", "op", "valid")}
    return Case(
        **plain,
        group=group,
        parameters=dict(document["parameters"]),
        inputs=named(document["inputs"]),
        cotangents=named(document["cotangents"]),
        tangents=named(document.get("tangents", {})),
        memory=document.get("memory", {}),
        fixed=document.get("fixed", {}),
        expected={
            name: Expected(arrays[value["truth"]], named(value["pytorch"]), value["error"], value.get("article"))
            for name, value in document["expected"].items()
        },
        variants=tuple(Variant(name, means[name], named(keys)) for name, keys in document["variants"].items()),
        coincidences=tuple(Coincidence(tuple(c["names"]), c["because"]) for c in document["coincidences"]),
        dtypes=tuple(document["dtypes"]),
        features=tuple(document["features"]),
        flags=tuple(document["flags"]),
        reports=tuple(document["reports"]),
    )


def _index(folder: Path) -> list[dict[str, str]]:
    path = folder / INDEX
    document = _parse(path, _bytes(path))
    _check_format(path, document)
    try:
        entries = [{"group": entry["group"], "sha256": entry["sha256"]} for entry in document["groups"]]
    except (KeyError, TypeError) as error:
        raise VectorError(f"{path.name} is damaged: {type(error).__name__} {error}. {REPAIR}") from error
    for entry in entries:
        if not isinstance(entry["group"], str) or not NAME.fullmatch(entry["group"]):
            raise VectorError(f"{path.name} is damaged: {entry['group']!r} is no group's name. {REPAIR}")
    return entries


def _tensors(folder: Path, entry: dict[str, Any]) -> dict[str, np.ndarray]:
    # Only the name, never a path: a file of vectors cannot make the reader open anything else.
    path = folder / Path(entry["file"]).name
    data = _bytes(path)
    if len(data) != entry["bytes"]:
        raise VectorError(
            f"{path.name} has {len(data)} of {entry['bytes']} bytes: it was cut short or exchanged. {REPAIR}"
        )
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise VectorError(f"{path.name} is damaged: its sha256 is not the recorded one. {REPAIR}")
    return tensors.load(data)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise VectorError(f"{path.name} is missing in {path.parent}. {REPAIR}") from None
    except OSError as error:
        raise VectorError(f"{path.name} cannot be read in {path.parent}: {error.strerror}. {REPAIR}") from error


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VectorError(f"{path.name} is not JSON: it was cut short or damaged ({error}). {REPAIR}") from error
    if not isinstance(document, dict):
        raise VectorError(f"{path.name} is damaged: it holds no JSON object. {REPAIR}")
    return document


def _check_format(path: Path, document: dict[str, Any]) -> None:
    found = document.get("format")
    if type(found) is int and found > FORMAT:
        raise VectorError(
            f"{path.name} has format {found}; this reader knows {FORMAT}. Run `pip install --upgrade array-attention`."
        )
    if type(found) is not int or found != FORMAT:
        raise VectorError(f"{path.name} has format {found!r}; this reader knows {FORMAT}. Run {RECORD}.")
    recorded = document.get("recorded_by", {})
    if not isinstance(recorded, dict):
        raise VectorError(f"{path.name} is damaged: `recorded_by` is no JSON object. {REPAIR}")
    recorder = recorded.get("recorder", RECORDER)
    if recorder != RECORDER:
        older = isinstance(recorder, int) and recorder < RECORDER
        age = "stale" if older else "newer than this reader"
        what = f"Run {RECORD}." if older else "Run `pip install --upgrade array-attention`."
        raise VectorError(f"{path.name} is {age}: recorder {recorder} wrote it, this is recorder {RECORDER}. {what}")


def _sha256(text: bytes) -> str:
    # A checkout may have turned the line ends; the meaning is the same.
    return hashlib.sha256(text.replace(b"\r\n", b"\n")).hexdigest()


def _dump(document: dict[str, Any]) -> bytes:
    return (_layout(document, "") + "\n").encode()


def _layout(value: Any, indent: str) -> str:
    """JSON with whatever fits on a line on one line: a person reads it, and git shows what changed."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(indent) + len(line) <= LINE or not isinstance(value, dict | list) or not value:
        return line
    deeper = indent + " "
    if isinstance(value, list):
        return "[\n" + ",\n".join(deeper + _layout(each, deeper) for each in value) + f"\n{indent}]"
    rows = (f"{deeper}{json.dumps(key, ensure_ascii=False)}: {_layout(each, deeper)}" for key, each in value.items())
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
