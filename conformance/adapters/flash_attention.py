"""FlashAttention 2's `flash_attn_func` and `flash_attn_varlen_func`, forward, on a CUDA device.

https://github.com/Dao-AILab/flash-attention
"""

import importlib
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np

from conformance import rules
from conformance.adapters.base import Adapter, Lacking, Unsupported, quoted
from conformance.adapters.question import INVALID, NOT_ATTENTION, Question, and_parts
from conformance.cases import Case

SIGNATURE = (
    "flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
    "alibi_slopes=None, deterministic=False, return_attn_probs=False)"
)
LOWER_RIGHT = "causal, windows and ALiBi are aligned to the bottom right corner of the attention matrix"
ALIGNED = ("causal", "causal_lower_right", "sliding_window")
FORWARD = "this adapter asks out and lse only"
REFUSALS = (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError)


class FlashAttention:
    """The adapter; a subclass puts other arrays behind `attend` and `attend_packed`, which give out and lse."""

    name = "flash-attention"

    def __init__(self) -> None:
        self.module = importlib.import_module("flash_attn")
        self.version = metadata.version("flash-attn")

    def supports(self, case: Case) -> str:
        """Say yes to attention and packed sequences by what the documented calls have arguments for."""
        if not case.valid or case.op not in ("attention", "packed"):
            return NOT_ATTENTION if case.valid else INVALID
        missing = [name for name in ("sinks", "dropout") if case.parameters[name] is not None]
        return f"no `{missing[0]}` in its documented call, {SIGNATURE}" if missing else _unaligned(case)

    def compute(self, case: Case, dtype: str) -> Mapping[str, Any]:
        """Call it once."""
        inputs = case.inputs_as(dtype)
        try:
            found = self._packed(case, inputs) if case.op == "packed" else self._batch(case, inputs)
        except REFUSALS as error:
            raise Unsupported(quoted(error)) from error
        return {**found, "weights": Lacking(FORWARD), **{f"gradient.{n}": Lacking(FORWARD) for n in case.gradients()}}

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, **settings: Any) -> tuple[Any, Any]:
        """Call `flash_attn_func` on `(B, L, H, D)`."""
        found = self.module.flash_attn_func(*map(_to_device, (q, k, v)), **_tensors(settings), return_attn_probs=True)
        return _from_device(found[0]), _from_device(found[1])

    def attend_packed(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, *offsets: np.ndarray, **settings: Any
    ) -> tuple[Any, Any]:
        """Call `flash_attn_varlen_func` on `(total, H, D)`."""
        longest = (int(np.diff(x).max(initial=0)) for x in offsets)
        arrays = map(_to_device, (q, k, v, *(x.astype(np.int32) for x in offsets)))
        settings = {**_tensors(settings), "return_attn_probs": True}
        found = self.module.flash_attn_varlen_func(*arrays, *longest, **settings)
        return _from_device(found[0]), _from_device(found[1])

    def _batch(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
        question = Question(case, inputs, np)
        out, lse = self.attend(*(x.swapaxes(1, 2) for x in question.arrays()), **_settings(case))
        return {"out": question.out(np.asarray(out).swapaxes(1, 2)), "lse": question.per_pair(np.asarray(lse))}

    def _packed(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
        offsets = (np.asarray(case.parameters[f"{name}_offsets"]) for name in ("query", "key"))
        arrays = (inputs[name] for name in ("query", "key", "value"))
        return dict(zip(("out", "lse"), self.attend_packed(*arrays, *offsets, **_settings(case)), strict=True))


def _settings(case: Case) -> dict[str, Any]:
    parameters = case.parameters
    parts = {rule["rule"]: rule for rule in and_parts(parameters["mask"])}
    window = parts.get("sliding_window", {"left": None, "right": None})
    bounds = tuple(-1 if window[side] is None else window[side] for side in ("left", "right"))
    slopes = None if parameters["bias"] is None else np.asarray(parameters["bias"]["slopes"], np.float32)
    return {
        "softmax_scale": parameters["scale"],
        "causal": "causal" in parts or "causal_lower_right" in parts,
        "window_size": bounds,
        "softcap": parameters["softcap"] or 0.0,
        "alibi_slopes": slopes,
    }


def _unaligned(case: Case) -> str:
    """Say why a mask or bias has no argument, or an empty string."""
    bias, parts = case.parameters["bias"], and_parts(case.parameters["mask"])
    other = [rule["rule"] for rule in parts if rule["rule"] not in ALIGNED]
    if other or len({rule["rule"] == "sliding_window" for rule in parts}) < len(parts):
        return f"no argument for the mask `{(other or ['several masks'])[0]}` in {SIGNATURE}"
    if bias is not None and (bias["rule"] != "alibi" or not isinstance(bias["slopes"], list)):
        return f"no argument for the bias `{bias['rule']}` in {SIGNATURE}"
    return "" if (not parts and bias is None) or all(_distances(case)) else LOWER_RIGHT


def _distances(case: Case) -> list[bool]:
    """Whether the last query stands at the last key, in each sequence."""
    parameters = case.parameters
    first, key = parameters["query_positions"], parameters["key_positions"]
    if case.op == "packed":
        sizes = [np.diff(parameters[f"{name}_offsets"]) for name in ("query", "key")]
    else:
        sizes = [np.array([size]) for size in rules.lengths(case)]
    if rules.sets_positions(parameters["mask"]):
        return [True]
    if key != 0 or (case.op != "packed" and not isinstance(first, int)):
        return [False]
    aligned: list[bool] = (np.broadcast_to(first, sizes[0].shape) == sizes[1] - sizes[0]).tolist()
    return aligned


def _tensors(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _to_device(x) if isinstance(x, np.ndarray) else x for name, x in settings.items()}


def _to_device(x: np.ndarray) -> Any:
    from conformance.adapters.torch_peer import to_torch

    return to_torch(np.ascontiguousarray(x)).cuda()


def _from_device(x: Any) -> np.ndarray:
    from conformance.adapters.torch_peer import to_numpy

    return to_numpy(x.cpu())


def make() -> Adapter:
    """Import flash_attn."""
    return FlashAttention()
