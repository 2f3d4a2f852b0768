"""`torch.nn.MultiheadAttention` with identity projections: its inverted masks are translated, nothing else is.

https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html
"""

from typing import Any

import numpy as np

from conformance.adapters.base import Adapter, Lacking
from conformance.adapters.question import DEPTHS, Question
from conformance.adapters.torch_peer import TorchPeer
from conformance.cases import Case

SPLIT = (
    "one depth and one number of heads for query, key and value: "
    '"embed_dim will be split across num_heads (i.e. each head will have dimension embed_dim // num_heads)"'
)


class MultiheadAttention(TorchPeer):
    """The module with weights that leave query, key and value as they are."""

    name = "torch.mha"
    signature = (
        "MultiheadAttention.forward(query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None, "
        "average_attn_weights=True, is_causal=False)"
    )
    lacks = ("softcap", "sinks", "dropout")
    one_depth = True

    def supports(self, case: Case) -> str:
        """Say yes to heads of one depth with the default scale."""
        refused = super().supports(case)
        if refused:
            return refused
        question = Question(case, case.inputs, np)
        if not question.default_scale():
            return f"no `scale` in its documented call, {self.signature}"
        query, key, value = (question.array(name).shape for name in ("query", "key", "value"))
        fits = query[1] == key[1] and (query[3] == value[3] or (query[3] > value[3] and case.group != DEPTHS))
        return "" if fits else SPLIT

    def call(self, question: Question) -> dict[str, Any]:
        """Lay the heads side by side, call the module, take them apart again."""
        query, key, value = question.arrays()
        batch, heads, length, depth = query.shape
        joined = (x.swapaxes(1, 2).reshape(batch, x.shape[2], heads * depth) for x in (query, key, value))
        out, weights = self._module(heads, depth, query.dtype)(
            *joined, need_weights=True, average_attn_weights=False, **self._masks(question, query, key)
        )
        out = out.reshape(batch, length, heads, depth).swapaxes(1, 2)
        absent = Lacking("MultiheadAttention returns output and weights")
        return {"out": question.out(out), "weights": question.per_pair(weights), "lse": absent}

    def _module(self, heads: int, depth: int, dtype: Any) -> Any:
        module = self.torch.nn.MultiheadAttention(heads * depth, heads, bias=False, batch_first=True, dtype=dtype)
        eye = self.torch.eye(heads * depth, dtype=dtype)
        module.in_proj_weight.data.copy_(self.torch.cat([eye, eye, eye]))
        module.out_proj.weight.data.copy_(eye)
        return module.eval()

    def _masks(self, question: Question, query: Any, key: Any) -> dict[str, Any]:
        """`attn_mask (B * heads, L, S)`: of booleans, where True hides, or of numbers, which are added."""
        shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        _, table = question.mask()
        bias = question.bias()
        hidden = None if table is None else ~self.torch.broadcast_to(self.tensor(table), shape)
        if bias is None:
            return {} if hidden is None else {"attn_mask": hidden.reshape(-1, *shape[2:])}
        tensor = bias if isinstance(bias, self.torch.Tensor) else self.tensor(bias)
        added = self.torch.broadcast_to(tensor.to(query.dtype), shape)
        added = added if hidden is None else added.masked_fill(hidden, -self.torch.inf)
        return {"attn_mask": added.reshape(-1, *shape[2:])}


def make() -> Adapter:
    """Import torch."""
    return MultiheadAttention()
