"""`MultiHeadAttention` beside `torch.nn.MultiheadAttention`: every option, outputs, weights, gradients, and names."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attention_core import dropout, masks
from attention_core.variants import KeysValues, MultiHeadAttention
from attention_core.variants.added_keys import attend_with_added
from attention_np import init

WIDTH, HEADS, DEPTH, L, L_2, KDIM, VDIM, BATCH = 12, 4, 3, 5, 7, 10, 8, 2


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def module(**options: Any) -> Any:
    """PyTorch's module in float64, with every weight drawn: its own biases start as zeros."""
    import torch

    made = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64, **options)
    for n, parameter in enumerate(made.parameters()):
        parameter.data = torch.from_numpy(np.random.default_rng(n).normal(0.1, 0.5, tuple(parameter.shape)))
    return made


def ours(made: Any) -> MultiHeadAttention:
    return MultiHeadAttention.from_state_dict(
        dict(made.named_parameters()), num_heads=HEADS, add_zero_attn=made.add_zero_attn
    )


def tensors(*arrays: np.ndarray) -> list[Any]:
    import torch

    return [torch.from_numpy(array.copy()).requires_grad_() for array in arrays]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": False},
    {"kdim": KDIM, "vdim": VDIM},
    {"vdim": VDIM, "bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"kdim": KDIM, "add_bias_kv": True, "add_zero_attn": True},
]


@pytest.mark.torch
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "plain")
@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_as_the_module(options: dict[str, Any], masked: bool) -> None:
    import torch

    made = module(**options)
    layer = ours(made)
    given = tensors(
        drawn(BATCH, L, WIDTH), drawn(BATCH, L_2, made.kdim or WIDTH), drawn(BATCH, L_2, made.vdim or WIDTH)
    )
    lengths = torch.tensor([4, 6])
    hidden = drawn(L, L_2) > 0.5
    hidden[:, 0] = False
    theirs: dict[str, Any] = {}
    call: dict[str, Any] = {}
    if masked:
        theirs = {"key_padding_mask": torch.arange(L_2) >= lengths[:, None], "attn_mask": torch.from_numpy(hidden)}
        call = {"mask": masks.key_lengths(lengths) & torch.from_numpy(~hidden)}
    out, weights = made(*given, average_attn_weights=False, **theirs)
    result = layer(*given, return_weights=True, **call)
    torch.testing.assert_close(result.out, out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(result.weights, weights, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer(*given, **call), out, rtol=1e-12, atol=1e-12)
    cotangent = torch.from_numpy(drawn(BATCH, L, WIDTH))
    inputs = [*given, *made.parameters()]
    wanted = torch.autograd.grad((out * cotangent).sum(), inputs)
    for mine, theirs_ in zip(torch.autograd.grad((result.out * cotangent).sum(), inputs), wanted, strict=True):
        torch.testing.assert_close(mine, theirs_, rtol=1e-11, atol=1e-11)


@pytest.mark.torch
def test_averaged_weights_a_mask_a_head_numbers_and_causal() -> None:
    import torch

    made = module()
    layer, (x,) = ours(made), tensors(drawn(BATCH, L, WIDTH))
    out, weights = made(x, x, x, average_attn_weights=True)
    averaged = layer(x, average_weights=True)
    torch.testing.assert_close(averaged.weights, weights)
    torch.testing.assert_close(averaged.out, out)

    hidden = drawn(BATCH * HEADS, L, L) > 1
    out = made(x, x, x, attn_mask=torch.from_numpy(hidden))[0]
    a_head = torch.from_numpy(~hidden).reshape(BATCH, HEADS, L, L)
    torch.testing.assert_close(layer(x, mask=a_head), out)

    (bias,) = tensors(drawn(L, L))
    torch.testing.assert_close(layer(x, bias=bias), made(x, x, x, attn_mask=bias)[0])

    upper = torch.nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64)
    torch.testing.assert_close(layer(x, mask=masks.causal()), made(x, x, x, attn_mask=upper, is_causal=True)[0])


@pytest.mark.torch
def test_one_sequence_and_the_batch_last() -> None:
    import torch

    made = module()
    layer, (x,) = ours(made), tensors(drawn(BATCH, L, WIDTH))
    torch.testing.assert_close(layer(x[0]), made(x[0], x[0], x[0])[0])
    made.batch_first = False
    last = x.movedim(0, 1)
    torch.testing.assert_close(layer(last.movedim(1, 0)).movedim(0, 1), made(last, last, last)[0])


@pytest.mark.torch
def test_the_three_uses_in_the_transformer() -> None:
    """One encoder layer and one decoder layer of `torch.nn.Transformer`, their attention replaced by ours."""
    import torch

    class Ours(torch.nn.Module):
        """Stands in for a module of attention; PyTorch's masks are turned round."""

        def __init__(self, made: Any) -> None:
            super().__init__()
            self.layer, self.batch_first, self.calls = ours(made), made.batch_first, 0

        def forward(self, query: Any, key: Any, value: Any, attn_mask: Any = None, **_: Any) -> Any:
            self.calls += 1
            return self.layer(query, key, value, mask=None if attn_mask is None else attn_mask >= 0), None

    theirs = torch.nn.Transformer(WIDTH, HEADS, 1, 1, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    source, target = tensors(drawn(BATCH, L_2, WIDTH), drawn(BATCH, L, WIDTH))
    upper = torch.nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64)
    wanted = theirs(source, target, tgt_mask=upper)
    encoder, decoder = theirs.encoder.layers[0], theirs.decoder.layers[0]
    replaced = [(encoder, "self_attn"), (decoder, "self_attn"), (decoder, "multihead_attn")]
    for owner, name in replaced:
        setattr(owner, name, Ours(getattr(owner, name)))
    torch.testing.assert_close(theirs(source, target, tgt_mask=upper), wanted)
    assert [getattr(owner, name).calls for owner, name in replaced] == [1, 1, 1]


@pytest.mark.torch
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "plain")
def test_state_dict_goes_in_and_comes_out_as_the_module_has_it(options: dict[str, Any]) -> None:
    import torch

    made = module(**options)
    saved = made.state_dict()
    layer = MultiHeadAttention.from_state_dict(saved, num_heads=HEADS)
    assert list(layer.state_dict()) == list(saved)
    module(**options).load_state_dict(layer.state_dict())
    shapes = MultiHeadAttention.parameters(embed_dim=WIDTH, num_heads=HEADS, **options)
    assert {name: p.shape for name, p in shapes.items()} == {name: tuple(x.shape) for name, x in saved.items()}
    assert all(isinstance(x, torch.Tensor) for x in layer.state_dict().values())


def weights(**options: Any) -> dict[str, np.ndarray]:
    shapes = MultiHeadAttention.parameters(embed_dim=WIDTH, num_heads=HEADS, **options)
    return {name: drawn(*parameter.shape) for name, parameter in shapes.items()}


def loaded(state: dict[str, np.ndarray], **options: Any) -> MultiHeadAttention:
    return MultiHeadAttention.from_state_dict(state, **{"num_heads": HEADS} | options)


@pytest.mark.parametrize("seeded", [True, False], ids=["seeded", "explicit"])
def test_added_keys_are_dropped_as_keys_of_the_call_are(seeded: bool) -> None:
    """Dropping goes on at the index where the given keys end: with open masks, one call over all keys is the same."""
    layer = loaded(weights(add_bias_kv=True), add_zero_attn=True)
    x = drawn(BATCH, L, WIDTH)
    queries, given = layer.queries(x), layer.keys_values(x)
    bias_k, bias_v = (
        np.broadcast_to(b.reshape(HEADS, 1, DEPTH), (BATCH, HEADS, 1, DEPTH)) for b in (layer.bias_k, layer.bias_v)
    )
    zero = np.zeros((BATCH, HEADS, 1, DEPTH))
    keep = drawn(BATCH, HEADS, L, L + 2) > 0
    drop = dropout(0.5, seed=3) if seeded else dropout(0.5, keep=keep)
    scores = queries @ np.concatenate([given.keys, bias_k, zero], axis=-2).swapaxes(-1, -2) / np.sqrt(DEPTH)
    p = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    if seeded:
        from attention_core import dot_product_attention

        eye = np.broadcast_to(np.eye(L + 2), (BATCH, HEADS, L + 2, L + 2))
        keep = (
            dot_product_attention(np.zeros_like(queries), np.zeros((BATCH, HEADS, L + 2, DEPTH)), eye, dropout=drop) > 0
        )
    heads = (p * keep * 2) @ np.concatenate([given.values, bias_v, zero], axis=-2)
    joined = heads.swapaxes(1, 2).reshape(BATCH, L, WIDTH)
    wanted = joined @ layer.out_proj.weight.T + layer.out_proj.bias
    np.testing.assert_allclose(layer(x, dropout=drop), wanted, rtol=1e-10)


@pytest.mark.parametrize("batches", [((), (2,)), ((1,), (2,)), ((2,), ())], ids=str)
def test_added_keys_beside_queries_and_keys_that_broadcast(batches: Any) -> None:
    rng = np.random.default_rng(0)
    layer = init(MultiHeadAttention, rng, dtype=np.float64, embed_dim=12, num_heads=3, add_bias_kv=True)
    query, key = (rng.normal(size=(*batch, n, 12)) for batch, n in zip(batches, (5, 6), strict=True))
    result = layer(query, key, return_weights=True)
    whole = layer(np.broadcast_to(query, (2, 5, 12)), np.broadcast_to(key, (2, 6, 12)), return_weights=True)
    np.testing.assert_allclose(result.out, whole.out, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.weights, whole.weights, rtol=0, atol=1e-12)


def test_the_keys_of_self_attention_stand_where_its_queries_do() -> None:
    layer = init(MultiHeadAttention, np.random.default_rng(0), dtype=np.float64, embed_dim=12, num_heads=3)
    x = np.random.default_rng(1).normal(size=(2, 5, 12))
    documents = np.array([0, 1, 2, 0, 1])
    causal = masks.causal()
    np.testing.assert_allclose(layer(x, mask=causal, query_positions=7), layer(x, mask=causal), rtol=0, atol=1e-12)
    out = layer(x, mask=masks.segments(np.array([0, 0, 0, 1, 1])) & causal, query_positions=documents)
    np.testing.assert_allclose(out[:, 3:], layer(x[:, 3:], mask=causal), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_added_keys_are_rounded_once(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(dtype) for shape in [(2, 40, 8)] * 3 + [(2, 1, 8)] * 2]

    def out(numbers: Any) -> np.ndarray:
        query, key, value, *added = (x.astype(numbers) for x in arrays)
        return attend_with_added(query, KeysValues(key, value), KeysValues(*added), False, {}).out

    assert out(dtype).dtype == dtype
    np.testing.assert_array_equal(out(dtype), out(np.float32).astype(dtype))


def test_values_beside_keys_and_values_are_an_error() -> None:
    layer = init(MultiHeadAttention, np.random.default_rng(0), embed_dim=12, num_heads=3)
    x = np.ones((4, 12))
    with pytest.raises(ValueError, match="`value` was given, but `key` holds the values already"):
        layer(x, layer.keys_values(x), x)


def test_a_query_that_sees_nothing_gives_the_bias_of_the_output() -> None:
    layer = loaded(weights())
    x = drawn(L, WIDTH)
    seen = np.ones((L, L), bool)
    seen[2] = False
    np.testing.assert_array_equal(layer(x, mask=seen)[2], layer.out_proj.bias)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: loaded(weights(), num_heads=5), ValueError, "`num_heads` is 5, which does not divide .* width 12"),
        (lambda: loaded(weights(), num_heads=3.0), TypeError, "`num_heads` must be a Python integer; got a float"),
        (lambda: loaded({}), ValueError, "`weights` must hold `out_proj.weight`; it holds nothing"),
        (lambda: loaded(weights() | {"bias_v": drawn(1, 1, 12)}), ValueError, r"missing: \['bias_k'\]"),
        (lambda: loaded(weights() | {"in_proj_bias": drawn(12)}), ValueError, r"`in_proj_bias` must have shape"),
        (lambda: loaded(weights() | {"norm.weight": drawn(12)}), ValueError, r"not expected: \['norm.weight'\]"),
        (lambda: loaded(weights(kdim=KDIM))(drawn(5, 12)), ValueError, "`key` has depth 12, but .* d_in = 10"),
        (lambda: loaded(weights())(drawn(12)), ValueError, r"`query` must have at least the axes \(L, d_in\)"),
    ],
)  # fmt: skip
def test_wrong_calls(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
