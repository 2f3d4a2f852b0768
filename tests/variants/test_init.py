"""Drawing layers: shapes, laws, determinism and the order of drawing, the same words in both backends."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attention_np
from attention_core.variants import Layer, MultiHeadAttentionWrapper, SelfAttention
from tests.variants.samples import ALL, D_IN, D_KQ, D_V, HEADS, Library, inputs, sizes

every_layer = pytest.mark.parametrize("layer", ALL, ids=lambda layer: layer.__name__)
LARGE = {"d_in": 60, "d_out_kq": 50, "d_out_v": 40}


@dataclass(frozen=True)
class Backend:
    """`attention_np` or `attention_jax`, drawing from a seed."""

    name: str

    def init(self, layer: type[Layer], seed: int, **more: Any) -> Any:
        if self.name == "numpy":
            return attention_np.init(layer, np.random.default_rng(seed), **more)
        import jax

        import attention_jax

        return attention_jax.init(layer, jax.random.key(seed), **more)


@pytest.fixture(params=["numpy", "jax"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "jax":
        pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    return Backend(request.param)


@every_layer
def test_shapes(layer: type[Layer], backend: Backend) -> None:
    made = backend.init(layer, 0, **sizes(layer))
    head = {"W_query": (D_IN, D_KQ), "W_key": (D_IN, D_KQ), "W_value": (D_IN, D_V)}
    shapes = {name: tuple(array.shape) for name, array in made.state_dict().items()}
    if layer is MultiHeadAttentionWrapper:
        assert shapes == {f"heads.{h}.{name}": shape for h in range(HEADS) for name, shape in head.items()}
    else:
        assert shapes == head
    assert {str(array.dtype) for array in made.state_dict().values()} == {"float32"}
    given = map(Library(backend.name).put, inputs(layer, (), np.float32))
    assert made(*given).shape == (6, D_V * (HEADS if layer is MultiHeadAttentionWrapper else 1))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_weights_are_uniform_on_the_half_open_unit_interval(backend: Backend, dtype: Any) -> None:
    if np.dtype(dtype) == np.float64 and backend.name == "jax":
        pytest.skip("JAX has float64 only where x64 is enabled")
    made = backend.init(SelfAttention, 0, dtype=dtype, **LARGE)
    for array in made.state_dict().values():
        assert np.dtype(array.dtype) == np.dtype(dtype)
        drawn = np.sort(np.asarray(array).astype(np.float64).ravel())
        assert drawn[0] >= 0
        assert drawn[-1] < 1
        # Kolmogorov-Smirnov: 1.95 / sqrt(n) is passed by chance once in a thousand laws; the seed is fixed
        steps = (np.arange(drawn.size) + 0.5) / drawn.size
        assert abs(drawn - steps).max() < 1.95 / np.sqrt(drawn.size) + 2.0**-8


@every_layer
def test_the_same_seed_draws_the_same_layer(layer: type[Layer], backend: Backend) -> None:
    first, again, other = (backend.init(layer, seed, **sizes(layer)).state_dict() for seed in (1, 1, 2))
    for name in first:
        np.testing.assert_array_equal(np.asarray(first[name]), np.asarray(again[name]))
        assert (np.asarray(first[name]) != np.asarray(other[name])).all()


@every_layer
def test_no_two_matrices_are_drawn_alike(layer: type[Layer], backend: Backend) -> None:
    state = backend.init(layer, 0, **(sizes(layer) | {"d_out_v": D_KQ})).state_dict()
    drawn = {np.asarray(array).tobytes() for array in state.values()}
    assert len(drawn) == len(state)


@pytest.mark.parametrize("layer", ALL, ids=lambda layer: layer.__name__)
def test_numpy_draws_head_by_head_in_the_order_of_the_state_dict(layer: type[Layer]) -> None:
    rng = np.random.default_rng(7)
    state = attention_np.init(layer, np.random.default_rng(7), dtype=np.float64, **sizes(layer)).state_dict()
    heads = HEADS if layer is MultiHeadAttentionWrapper else 1
    for h in range(heads):
        for name, depth in (("W_query", D_KQ), ("W_key", D_KQ), ("W_value", D_V)):
            key = f"heads.{h}.{name}" if layer is MultiHeadAttentionWrapper else name
            np.testing.assert_array_equal(state[key], rng.random((D_IN, depth)))


def test_jax_gives_every_matrix_its_own_key_in_the_order_of_the_state_dict() -> None:
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax

    state = attention_jax.init(
        MultiHeadAttentionWrapper, jax.random.key(7), **sizes(MultiHeadAttentionWrapper)
    ).state_dict()
    for key, array in zip(jax.random.split(jax.random.key(7), len(state)), state.values(), strict=True):
        np.testing.assert_array_equal(array, jax.random.uniform(key, array.shape))


GOOD = {"d_in": 3, "d_out_kq": 2, "d_out_v": 4}
WRONG: list[tuple[type[Layer], dict[str, Any], type[Exception], str]] = [
    (
        SelfAttention,
        {"d_in": 3, "d_out_kq": 2},
        TypeError,
        "SelfAttention needs the size `d_out_v`; its sizes are d_in, d_out_kq",
    ),
    (SelfAttention, GOOD | {"num_heads": 4}, TypeError, "SelfAttention has no size `num_heads`"),
    (MultiHeadAttentionWrapper, GOOD, TypeError, "MultiHeadAttentionWrapper needs the size `num_heads`"),
    (SelfAttention, GOOD | {"d_in": 0}, ValueError, "`d_in` must be at least 1; got 0"),
    (SelfAttention, GOOD | {"d_out_kq": -2}, ValueError, "`d_out_kq` must be at least 1; got -2"),
    (SelfAttention, GOOD | {"d_out_v": 4.0}, TypeError, "`d_out_v` must be a Python integer; got a float"),
    (SelfAttention, GOOD | {"d_out_v": True}, TypeError, "`d_out_v` must be a Python integer; got a bool"),
    (SelfAttention, GOOD | {"d_out_v": "4"}, TypeError, "`d_out_v` must be a Python integer; got a str"),
]


@pytest.mark.parametrize(("layer", "given", "kind", "message"), WRONG)
def test_bad_sizes_are_refused(
    backend: Backend, layer: type[Layer], given: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        backend.init(layer, 0, **given)


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.complex64])
def test_layers_have_real_weights_only(backend: Backend, dtype: Any) -> None:
    with pytest.raises(TypeError, match="`dtype` must be a real floating-point one; got"):
        backend.init(SelfAttention, 0, dtype=dtype, **GOOD)


@pytest.mark.parametrize("rng", [0, None, np.random.RandomState(0)])
def test_numpy_wants_a_generator(rng: Any) -> None:
    with pytest.raises(TypeError, match=r"`rng` must be a numpy.random.Generator; got a"):
        attention_np.init(SelfAttention, rng, **GOOD)
