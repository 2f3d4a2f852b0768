"""A layer of layers has its arrays' dotted names, its options are no arrays, and a wrong name is said."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pytest

from attention_core.variants import GPT2Attention, GroupedQueryAttention, Layer, Linear, Normal, Parameter
from attention_core.variants.layer import option
from attention_core.variants.named import check_named, named_arrays, under


@dataclass(frozen=True, eq=False)
class Pair(Layer):
    """Two maps, one of them without a bias, and an option."""

    first: Linear
    last: Linear
    factor: float = option(default=2.0)

    @classmethod
    def parameters(cls, **sizes: Any) -> dict[str, Parameter]:
        shapes = {"first.weight": (3, 2), "first.bias": (3,), "last.weight": (2, 3)}
        return {name: Parameter(shape, Normal()) for name, shape in shapes.items()}

    @classmethod
    def from_state_dict(cls, weights: Mapping[str, Any], *, factor: float = 2.0) -> Self:
        check_named(weights, cls.parameters())
        first, last = (Linear.from_state_dict(under(name, weights)) for name in ("first", "last"))
        return cls(first, last, factor)


WEIGHTS = {"first.weight": np.ones((3, 2)), "first.bias": np.zeros(3), "last.weight": np.ones((2, 3))}


def test_names_go_in_and_out() -> None:
    layer = Pair.from_state_dict(WEIGHTS, factor=5.0)
    assert layer.option_names() == ("factor",)
    assert list(named_arrays(layer)) == list(WEIGHTS)
    assert all(named_arrays(layer)[name] is x for name, x in WEIGHTS.items())


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"first.bias": None}, ValueError, r"missing: \['first.bias'\]"),
        ({"third": np.zeros(1)}, ValueError, r"not expected: \['third'\]"),
        ({"last.weight": np.ones((3, 2))}, ValueError, r"`last.weight` must have shape \(2, 3\); got \(3, 2\)"),
        ({"first.weight": np.ones((3, 2), int)}, TypeError, "`first.weight` has dtype int"),
    ],
)
def test_a_wrong_name_or_shape_is_said(change: dict[str, Any], kind: type[Exception], words: str) -> None:
    weights = {name: x for name, x in (WEIGHTS | change).items() if x is not None}
    with pytest.raises(kind, match=words):
        Pair.from_state_dict(weights)


def test_options_are_static_under_jax() -> None:
    jax = pytest.importorskip("jax", reason="pip install jax")
    from attention_jax.pytrees import register_layer

    @dataclass(frozen=True, eq=False)
    class Late(Pair):
        """Made after the import that registers all there are."""

    register_layer(Late)
    layer = Late.from_state_dict(WEIGHTS, factor=5.0)
    assert len(jax.tree.leaves(layer)) == 3
    assert jax.tree.map(lambda x: x + 1, layer).factor == 5.0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_linear_rounds_once_and_has_the_orientation_of_torch(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    x, weight, bias = (rng.normal(size=shape).astype(dtype) for shape in ((5, 3), (2, 3), (2,)))
    out = Linear(weight, bias)(x)
    exact = np.array([[sum(float(a) * float(b) for a, b in zip(row, w, strict=True)) for w in weight] for row in x])
    assert out.dtype == dtype
    np.testing.assert_allclose(out, (exact + bias.astype(float)).astype(dtype), rtol=4 * np.finfo(dtype).eps, atol=1e-6)


def test_constants_of_a_checkpoint_are_left_out() -> None:
    """GPT-2's files hold the causal mask beside the weights, Llama's first ones the frequencies."""
    rng = np.random.default_rng(2)
    shapes = {"c_attn.weight": (4, 12), "c_attn.bias": (12,), "c_proj.weight": (4, 4), "c_proj.bias": (4,)}
    weights = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    held = {**weights, "bias": np.tril(np.ones((1, 1, 8, 8), np.uint8)), "masked_bias": np.float32(-1e4)}
    assert list(GPT2Attention.from_state_dict(held, num_heads=2).state_dict()) == list(weights)
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    weights = {f"{name}.weight": rng.normal(size=(4, 4)) for name in names}
    held = {**weights, "rotary_emb.inv_freq": np.ones(1)}
    assert list(GroupedQueryAttention.from_state_dict(held, num_heads=2).state_dict()) == list(weights)
