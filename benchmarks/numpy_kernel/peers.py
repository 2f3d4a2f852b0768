"""The peers' own documented calls, each made ready once for a case and then only timed."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .cases import Case

Run = Callable[[], Any]


def plain(case: Case) -> Run:
    """Scores, softmax, product, as everybody writes them."""
    q, k, v = case.arrays()
    mask, bias = case.dense_mask(), case.dense_bias()
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))

    def run() -> Any:
        s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
        if bias is not None:
            s += bias
        if mask is not None:
            s[..., ~mask] = -np.inf
        s -= s.max(axis=-1, keepdims=True)
        np.exp(s, out=s)
        s /= s.sum(axis=-1, keepdims=True)
        return s @ v

    return run


def torch_sdpa(case: Case) -> Run:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = (torch.from_numpy(x) for x in case.arrays())
    options: dict[str, Any] = {"enable_gqa": True} if case.group > 1 else {}
    if case.mask == "causal" and case.bias is None:
        options["is_causal"] = True
    elif case.mask is not None:
        options["attn_mask"] = torch.from_numpy(case.float_mask())
    if not case.backward:
        return lambda: scaled_dot_product_attention(q, k, v, **options)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], **options)
    cotangent = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, leaves, cotangent, retain_graph=True)


def flex(case: Case) -> Run:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    ids: Any = torch.from_numpy(case.ids())
    rules = {
        "window": lambda b, h, i, j: (i >= j) & (i - j < 256),
        "documents": lambda b, h, i, j: ids[i] == ids[j],
        "prefix": lambda b, h, i, j: (i >= j) | (j < 1024),
        "causal": lambda b, h, i, j: i >= j,
    }
    q, k, v = (torch.from_numpy(x) for x in case.arrays())
    seen = create_block_mask(rules[str(case.mask)], None, None, case.queries, case.keys, device="cpu")
    compiled = _compiled(flex_attention)
    compiled(q, k, v, block_mask=seen)  # a compiler that is missing is missed here
    return lambda: compiled(q, k, v, block_mask=seen)


@functools.cache
def _compiled(function: Any) -> Any:
    import torch

    return torch.compile(function, dynamic=False)


def onnx_runtime(case: Case) -> Run:
    import onnxruntime
    from onnx import TensorProto, helper

    names = ("q", "k", "v")
    shapes = [x.shape for x in case.arrays()]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, shapes, strict=True)]
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    node = helper.make_node("Attention", names, ["out"], is_causal=int(case.mask == "causal"))
    graph = helper.make_graph([node], "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = case.threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = dict(zip(names, case.arrays(), strict=True))
    return lambda: session.run(None, feed)


PEERS: dict[str, tuple[str, Callable[[Case], Run]]] = {
    "torch": ("torch", torch_sdpa),
    "flex": ("torch", flex),
    "onnxruntime": ("onnxruntime", onnx_runtime),
    "plain": ("numpy", plain),
    "ordinary": ("numpy", lambda case: case.ordinary().ours()),
}
