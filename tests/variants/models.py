"""The recorded attention of real models: what each case is, and the call of our layer that must equal it."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attention_core import Rotary, masks, rotary, variants
from attention_core.arrays import array_namespace
from attention_core.variants import Layer, lambda_init_of
from conformance import tensors

FOLDER = Path(__file__).resolve().parent.parent / "data" / "models"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7}


@dataclass(frozen=True)
class Case:
    """One recorded module: its description, and its tensors by what they are and their name."""

    about: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def part(self, kind: str) -> dict[str, np.ndarray]:
        start = f"{kind}/"
        found = {name.removeprefix(start): x for name, x in self.arrays.items() if name.startswith(start)}
        return {name: found[name] for name in self.about["inputs"]} if kind == "inputs" else found

    @property
    def out(self) -> np.ndarray:
        return self.arrays["out"]

    def tolerance(self, dtype: str, truth: np.ndarray | None = None) -> float:
        """Four times the module's own worst error in that dtype, and four units of the largest number."""
        own = self.about["errors"].get(dtype, self.about["errors"]["float32"] * EPS["float64"] / EPS["float32"])
        return 4 * own + 4 * EPS[dtype] * float(np.abs(self.out if truth is None else truth).max())

    def layer(self, put: Callable[[np.ndarray], Any] = lambda x: x) -> Any:
        """Our layer with the module's weights, in whatever library and dtype `put` makes."""
        cls: type[Layer] = getattr(variants, self.about["layer"])
        weights = {name: put(x) for name, x in self.part("weights").items()}
        return cls.from_state_dict(weights, **_options(self.about["options"]))

    def call(self, layer: Any, *inputs: Any, item: int | None = None, **more: Any) -> Any:
        """Call our layer as the module was run; `item` takes that item of a batch alone."""
        call = dict(self.about["call"])
        lengths = call.pop("mask", {}).get("key_lengths")
        if lengths is not None:
            xp = array_namespace(("x", inputs[0]))
            call["mask"] = masks.key_lengths(xp.asarray(lengths) if item is None else lengths[item])
        return layer(*inputs, **call, **more)

    def difference(self, out: np.ndarray) -> float:
        return float(np.abs(np.asarray(out, dtype=np.float64) - self.out).max())

    def diagnosis(self, out: np.ndarray) -> str:
        """Which wrong variant this output is closest to, for the message of a failing test."""
        distances = {name: float(np.abs(out - wrong).max()) for name, wrong in self.part("wrong").items()}
        nearest = min(distances, key=distances.__getitem__)
        return f"{self.about['name']}: error {self.difference(out):.3g}, from {nearest!r} {distances[nearest]:.3g}"


@functools.cache
def case(name: str) -> Case:
    """Read one case."""
    about = json.loads((FOLDER / f"{name}.json").read_text())
    arrays = tensors.load((FOLDER / f"{name}.safetensors").read_bytes())
    return Case(about, dict(sorted(arrays.items())))


def _options(given: dict[str, Any]) -> dict[str, Any]:
    options = dict(given)
    if "names" in options:
        options["names"] = tuple(options["names"])
    if "lambda_init_of" in options:
        options["lambda_init"] = lambda_init_of(options.pop("lambda_init_of"))
    if "rotary" in options:
        options["rotary"] = _rotary(**options["rotary"])
    return options


def _rotary(base: float, scaling: dict[str, Any] | None = None, **pairs: Any) -> Rotary:
    if scaling is None:
        return Rotary(base, **pairs)
    ((name, arguments),) = scaling.items()
    positional = arguments.get("args", [])
    named = {key: value for key, value in arguments.items() if key != "args"}
    return Rotary(base, scaling=getattr(rotary, name)(*positional, **named), **pairs)
