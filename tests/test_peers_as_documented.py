"""What docs/conventions.md says of PyTorch 2.13 and JAX 0.10 is what they do; other versions are not run."""

import importlib
import warnings
from types import ModuleType
from typing import Any

import numpy as np
import pytest

Q = np.array([[1.0, 0], [0, 1]], np.float32)
K = np.array([[1.0, 0], [0, 1], [1, 1]], np.float32)
V = np.array([[1.0, 2], [3, 4], [5, 6]], np.float32)
MEAN = [[3, 4], [3, 4]]
ZERO = [[0, 0], [0, 0]]
UPPER_LEFT = [[1, 2], [2.3395231, 3.3395231]]
WITHOUT_LAST_KEY = [[1.6604769, 2.6604769], [2.3395231, 3.3395231]]
KEEP = np.array([[True, True, False]] * 2)
NOTHING = np.zeros((2, 3), dtype=bool)


def of_version(name: str, version: str) -> ModuleType:
    module = pytest.importorskip(name, reason=f"the page speaks of {name} {version}, not installed here")
    if not module.__version__.startswith(version + "."):
        pytest.skip(f"the page speaks of {name} {version}; {module.__version__} is installed")
    return module


@pytest.fixture(scope="module")
def torch() -> ModuleType:
    return of_version("torch", "2.13")


@pytest.fixture(scope="module")
def jax() -> ModuleType:
    return of_version("jax", "0.10")


def sdpa(torch: ModuleType, query: Any = Q, key: Any = K, value: Any = V, **call: Any) -> np.ndarray:
    """SDPA of plain (L, D) arrays, arrays in the call as tensors."""
    given = {name: torch.tensor(x) if isinstance(x, np.ndarray) else x for name, x in call.items()}
    arrays = [torch.tensor(np.asarray(x))[None, None] for x in (query, key, value)]
    return torch.nn.functional.scaled_dot_product_attention(*arrays, **given)[0, 0].numpy()


def jax_nn(jax: ModuleType, query: Any = Q, key: Any = K, value: Any = V, **call: Any) -> Any:
    """``jax.nn.dot_product_attention`` of plain (L, D) arrays."""
    arrays = [jax.numpy.asarray(x)[None, :, None, :] for x in (query, key, value)]
    found = jax.nn.dot_product_attention(*arrays, **call)
    return jax.tree.map(lambda x: np.asarray(x)[0, :, 0], found)


def poisoned(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[2] = np.nan
    return x


def same(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_torch_masks(torch: ModuleType) -> None:
    same(sdpa(torch, attn_mask=KEEP), WITHOUT_LAST_KEY)
    same(sdpa(torch, is_causal=True), UPPER_LEFT)
    same(sdpa(torch, attn_mask=NOTHING), ZERO)
    same(sdpa(torch, attn_mask=np.full((2, 3), -np.inf, np.float32)), ZERO)
    assert np.isnan(sdpa(torch, key=poisoned(K), attn_mask=KEEP)).all()
    assert np.isnan(sdpa(torch, value=poisoned(V), attn_mask=KEEP)).all()
    added = sdpa(torch, attn_mask=KEEP.astype(np.float32))
    assert not np.allclose(added, WITHOUT_LAST_KEY)
    assert np.isfinite(added).all()


def test_torch_composes_mask_and_causal_on_one_path_and_refuses_on_another(torch: ModuleType) -> None:
    mask = np.array([[False, True, True]] * 2)
    same(sdpa(torch, attn_mask=mask, is_causal=True), [[0, 0], [3, 4]])
    attention = importlib.import_module("torch.nn.attention")
    with (
        attention.sdpa_kernel(attention.SDPBackend.MATH),
        pytest.raises(RuntimeError, match="attn_mask should not be set"),
    ):
        sdpa(torch, attn_mask=mask, is_causal=True)


def test_torch_lower_right(torch: ModuleType) -> None:
    lower_right = importlib.import_module("torch.nn.attention.bias").causal_lower_right
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it announces NaN for more queries than keys, and gives zeros
        same(sdpa(torch, attn_mask=lower_right(2, 3))[0], WITHOUT_LAST_KEY[0])
        same(sdpa(torch, K, Q, V[:2], attn_mask=lower_right(3, 2))[:2], [[0, 0], [1, 2]])


def test_torch_numbers(torch: ModuleType) -> None:
    q, k, v = (x.astype(np.float64) for x in (Q, K, V))
    exact = np.exp(q @ k.T / np.sqrt(2))
    exact = exact / exact.sum(-1, keepdims=True) @ v
    assert np.abs(sdpa(torch, q, k, v) - exact).max() < 1e-14
    assert sdpa(torch, value=np.ones((3, 5), np.float32)).shape == (2, 5)
    same(sdpa(torch, scale=0.0), MEAN)
    for arrays in ((Q.astype(np.int32), K.astype(np.int32), V.astype(np.int32)), (Q.astype(np.float16), K, V)):
        with pytest.raises(RuntimeError):
            sdpa(torch, *arrays)
    torch.manual_seed(0)
    assert not np.array_equal(sdpa(torch, dropout_p=0.5), sdpa(torch, dropout_p=0.5))


def test_torch_repeats_key_heads(torch: ModuleType) -> None:
    heads = [torch.zeros(1, 4, 1, 1), torch.zeros(1, 2, 1, 1), torch.tensor([[[[0.0]], [[1.0]]]])]
    attention = torch.nn.functional.scaled_dot_product_attention
    assert attention(*heads, enable_gqa=True).flatten().tolist() == [0, 0, 1, 1]


def test_torch_multihead_attention_is_inverted_and_returns_dropped_weights(torch: ModuleType) -> None:
    layer = torch.nn.MultiheadAttention(2, 1, dropout=0.5, batch_first=True)
    x = torch.tensor(K)[None]
    _, weights = layer.eval()(x, x, x, key_padding_mask=torch.tensor([[False, False, True]]))
    assert (weights[..., 2] == 0).all()
    torch.manual_seed(1)
    _, weights = layer.train()(x, x, x)
    assert not np.allclose(weights.sum(-1).detach(), 1)


def test_jax_masks(jax: ModuleType) -> None:
    same(jax_nn(jax, mask=KEEP[None, None]), WITHOUT_LAST_KEY)
    same(jax_nn(jax, is_causal=True), UPPER_LEFT)
    same(jax_nn(jax, mask=np.array([[[[False, True, True]] * 2]]), is_causal=True)[1], [3, 4])
    same(jax_nn(jax, local_window_size=(1, 0)), UPPER_LEFT)
    same(jax_nn(jax, key=poisoned(K), mask=KEEP[None, None]), WITHOUT_LAST_KEY)
    assert np.isnan(jax_nn(jax, value=poisoned(V), mask=KEEP[None, None])).all()
    with pytest.raises(ValueError, match="mask dtype should be bool"):
        jax_nn(jax, mask=KEEP[None, None].astype(np.float32))


@pytest.mark.slow
def test_jax_rows_without_keys(jax: ModuleType) -> None:
    for call in (
        {"mask": NOTHING[None, None]},
        {"key_value_seq_lengths": np.array([0], np.int32)},
        {"local_window_size": (-1, 0)},
    ):
        same(jax_nn(jax, **call), MEAN)
    assert np.isnan(jax_nn(jax, bias=np.full((1, 1, 2, 3), -np.inf, np.float32))).all()
    same(jax_nn(jax, query_seq_lengths=np.array([1], np.int32))[1], [0, 0])
    lse = jax_nn(jax, mask=NOTHING[None, None], return_residual=True)[1]
    np.testing.assert_allclose(lse, -2.38e38, rtol=1e-2)


@pytest.mark.slow
def test_jax_numbers(jax: ModuleType) -> None:
    with jax.enable_x64(True):
        q, k, v = np.random.default_rng(0).normal(size=(3, 5, 8))
        exact = np.exp(q @ k.T / np.sqrt(8))
        exact = exact / exact.sum(-1, keepdims=True) @ v
        found = jax_nn(jax, q, k, v)
        assert found.dtype == np.float64
        assert 1e-9 < np.abs(found - exact).max() < 1e-6
    integers = [np.eye(2, dtype=np.int32), 3 * np.eye(2, dtype=np.int32), np.array([[10, 20], [30, 40]], np.int32)]
    assert not jax_nn(jax, *integers).any()
    with pytest.raises(ValueError, match="dtype should be"):
        jax_nn(jax, query=Q.astype(np.float16))
    with pytest.raises(ValueError, match="value shape should be"):
        jax_nn(jax, value=np.ones((3, 5), np.float32))


def test_jax_shapes(jax: ModuleType) -> None:
    attention, jnp = jax.nn.dot_product_attention, jax.numpy
    heads = jnp.zeros((1, 1, 4, 1)), jnp.zeros((1, 1, 2, 1)), jnp.array([[[[0.0], [1.0]]]])
    assert attention(*heads).flatten().tolist() == [0, 0, 1, 1]
    for one, many in (((1, 2, 1, 2), (3, 3, 1, 2)), ((2, 2, 2, 1, 2), (2, 2, 3, 1, 2))):
        with pytest.raises(ValueError):  # noqa: PT011  two of its messages
            attention(jnp.ones(one), jnp.ones(many), jnp.ones(many))


@pytest.mark.slow
def test_jax_stops_the_gradient_of_its_lse(jax: ModuleType) -> None:
    arrays = [jax.numpy.asarray(x)[None, :, None, :] for x in (Q, K, V)]

    def total(query: Any) -> Any:
        return jax.nn.dot_product_attention(query, *arrays[1:], return_residual=True)[1].sum()

    assert not np.asarray(jax.grad(total)(arrays[0])).any()


@pytest.mark.slow
def test_flex_attention_gives_zero_and_minus_infinity_to_empty_rows(torch: ModuleType) -> None:
    flex = importlib.import_module("torch.nn.attention.flex_attention").flex_attention
    x = torch.ones(1, 1, 2, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises to compile, which is not wanted for one row
        out, lse = flex(x, x, x, score_mod=lambda s, b, h, i, j: torch.where(j < 0, s, -np.inf), return_lse=True)
    assert not out.any()
    assert (lse == -np.inf).all()
