"""`torch.nn.functional.scaled_dot_product_attention`, by the `MATH` and by the flash backend.

https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

import warnings
from typing import Any

from conformance.adapters.base import Adapter, Lacking, Unsupported
from conformance.adapters.question import Question
from conformance.adapters.torch_peer import TorchPeer

ONLY_OUT = "scaled_dot_product_attention returns the output only"


class Sdpa(TorchPeer):
    """One backend of SDPA, chosen by `torch.nn.attention.sdpa_kernel`."""

    signature = (
        "scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, "
        "enable_gqa=False)"
    )
    lacks = ("softcap", "sinks", "dropout")

    def __init__(self, name: str, backend: str) -> None:
        super().__init__()
        self.name = name
        self.backend = backend
        self.one_depth = backend == "FLASH_ATTENTION"
        self.attend = self.torch.nn.functional.scaled_dot_product_attention

    def call(self, question: Question) -> dict[str, Any]:
        """Pass `is_causal`, or a boolean or additive `attn_mask`: there is one argument for mask and bias."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        query, key, value = question.arrays()
        arguments = {"scale": question.case.parameters["scale"], "enable_gqa": question.grouped()}
        # Why a backend cannot do a call stands in its warnings.
        with warnings.catch_warnings(record=True) as reasons, sdpa_kernel(getattr(SDPBackend, self.backend)):
            warnings.simplefilter("always")
            arguments |= self._masks(question, query.dtype)
            try:
                out = self.attend(query, key, value, **arguments)
            except RuntimeError as error:
                words = [str(reason.message).split(" (Triggered")[0] for reason in reasons]
                raise Unsupported(" ".join([str(error), *words])) from error
        absent = dict.fromkeys(("lse", "weights"), Lacking(ONLY_OUT))
        return {"out": question.out(out), **absent}

    def _masks(self, question: Question, dtype: Any) -> dict[str, Any]:
        bias = self._bias(question, dtype)
        if bias is None and question.case.parameters["mask"] == {"rule": "causal_lower_right"}:
            return {"attn_mask": self._lower_right(question)}
        native, table = question.mask(("causal",))
        if native and table is None and bias is None:
            return {"is_causal": True}
        _, table = question.mask()
        mask = self.tensor(table)
        if bias is None:
            return {"attn_mask": mask}
        return {"attn_mask": bias if mask is None else bias.masked_fill(~mask, -self.torch.inf)}

    def _bias(self, question: Question, dtype: Any) -> Any:
        bias = question.bias()
        if bias is None:
            return None
        # An additive attn_mask must have query's dtype.
        return (bias if isinstance(bias, self.torch.Tensor) else self.tensor(bias)).to(dtype)

    def _lower_right(self, question: Question) -> Any:
        from torch.nn.attention.bias import causal_lower_right

        return causal_lower_right(question.array("query").shape[2], question.array("key").shape[2])


def make_math() -> Adapter:
    """Import torch, for the `MATH` backend."""
    return Sdpa("torch.sdpa-math", "MATH")


def make_flash() -> Adapter:
    """Import torch, for the flash backend; PyTorch has one for CPUs too."""
    return Sdpa("torch.sdpa-flash", "FLASH_ATTENTION")
