"""`torch.nn.attention.flex_attention`, eager: a `mask_mod` for masks, a `score_mod` for soft cap and bias.

https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html
"""

import warnings
from collections.abc import Callable
from typing import Any

from conformance.adapters.base import Adapter, Lacking
from conformance.adapters.question import Question
from conformance.adapters.torch_peer import TorchPeer


class Flex(TorchPeer):
    """FlexAttention as its documentation uses it; not compiled."""

    name = "torch.flex"
    signature = "flex_attention(query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False)"
    lacks = ("sinks", "dropout")

    def call(self, question: Question) -> dict[str, Any]:
        """Look mask and bias up in tables; the cap is `cap * tanh(score / cap)` in `score_mod`."""
        from torch.nn.attention.flex_attention import AuxRequest, flex_attention

        query, key, value = question.arrays()
        with warnings.catch_warnings():
            # "flex_attention called without torch.compile()": that is what this adapter asks.
            warnings.simplefilter("ignore")
            out, aux = flex_attention(
                query,
                key,
                value,
                score_mod=self._score_mod(question),
                block_mask=self._block_mask(question, query, key),
                scale=question.case.parameters["scale"],
                enable_gqa=question.grouped(),
                return_aux=AuxRequest(lse=True),
            )
        absent = Lacking("flex_attention returns no weights")
        # Without queries or batch items it returns an output, and None for lse.
        lse = Lacking("flex_attention returned no lse") if aux.lse is None else question.per_pair(aux.lse)
        return {"out": question.out(out), "lse": lse, "weights": absent}

    def _score_mod(self, question: Question) -> Callable[..., Any] | None:
        cap, bias = question.case.parameters["softcap"], question.bias()
        if cap is None and bias is None:
            return None
        table = None if bias is None else self._full(question, bias)

        def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            capped = score if cap is None else cap * self.torch.tanh(score / cap)
            return capped if table is None else capped + table[b, h, i, j]

        return score_mod

    def _block_mask(self, question: Question, query: Any, key: Any) -> Any:
        from torch.nn.attention.flex_attention import create_block_mask

        _, table = question.mask()
        if table is None:
            return None
        full = self._full(question, table)
        sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        return create_block_mask(lambda b, h, i, j: full[b, h, i, j], *sizes, device="cpu")

    def _full(self, question: Question, table: Any) -> Any:
        query, key = question.array("query"), question.array("key")
        tensor = table if isinstance(table, self.torch.Tensor) else self.tensor(table)
        return self.torch.broadcast_to(tensor, (*query.shape[:3], key.shape[2]))


def make() -> Adapter:
    """Import torch."""
    return Flex()
