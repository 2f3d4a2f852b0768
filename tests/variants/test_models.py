"""Our layers give what the attention of real models gives, with its weights by its names, on every array library."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_core.variants import T5Attention
from conformance import tensors

from .models import EPS, FOLDER, NAMES, Case, case
from .samples import DTYPES, Library, has_bfloat16

LIBRARIES = [
    pytest.param(Library("numpy"), id="numpy"),
    pytest.param(Library("array_api_strict"), id="array_api_strict"),
    pytest.param(Library("torch"), id="torch", marks=pytest.mark.torch),
]
OPTIONAL = ("relative_attention_bias.weight", "o_proj.weight")  # the latter is `out_proj` elsewhere
COMPILED_QUICKLY = ("stable-diffusion-cross",)
every_model = pytest.mark.parametrize("name", NAMES)
in_jax = pytest.mark.parametrize(
    "name", [name if name in COMPILED_QUICKLY else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)


def in_library(recorded: Case, library: Library, dtype: str) -> tuple[Any, list[Any]]:
    def put(x: np.ndarray) -> Any:
        return library.put(np.array(x, DTYPES[dtype]))

    return recorded.layer(put), [put(x) for x in recorded.part("inputs").values()]


def check(recorded: Case, out: np.ndarray, dtype: str) -> None:
    assert out.shape == recorded.out.shape
    assert recorded.difference(out) <= recorded.tolerance(dtype), recorded.diagnosis(out)


def test_twenty_seven_modules_are_recorded() -> None:
    assert len(NAMES) == 27
    assert len({case(name).about["source"] for name in NAMES}) >= 25


@every_model
def test_wrong_variants_are_far_from_the_truth(name: str) -> None:
    recorded = case(name)
    wrong = recorded.part("wrong")
    assert set(wrong) == set(recorded.about["wrong"])
    assert wrong
    for variant, out in wrong.items():
        assert recorded.difference(out) > 10 * recorded.tolerance("float32"), variant


@every_model
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_layer_is_the_module(name: str, library: Library, dtype: str) -> None:
    if dtype == "bfloat16" and not has_bfloat16(library.name):
        return
    recorded = case(name)
    layer, inputs = in_library(recorded, library, dtype)
    out = recorded.call(layer, *inputs)
    assert str(out.dtype).rpartition(".")[2] == dtype
    check(recorded, library.get(out), dtype)


@every_model
def test_one_item_without_a_batch(name: str) -> None:
    recorded = case(name)
    for item in range(2):
        inputs = [x[item] for x in recorded.part("inputs").values()]
        out = recorded.call(recorded.layer(), *inputs, item=item)
        np.testing.assert_allclose(out, recorded.out[item], rtol=0, atol=recorded.tolerance("float64"))


@every_model
def test_weights_come_out_by_the_names_of_the_module(name: str) -> None:
    recorded = case(name)
    saved, weights = recorded.layer().state_dict(), recorded.part("weights")
    assert set(saved) == set(weights)
    assert all(saved[each] is x for each, x in weights.items())


@every_model
def test_missing_unexpected_and_misshapen_weights_are_named(name: str) -> None:
    recorded = case(name)
    weights = recorded.part("weights")

    def load(changed: dict[str, np.ndarray]) -> None:
        Case(recorded.about, {f"weights/{each}": x for each, x in changed.items()}).layer()

    for each in sorted(each for each, x in weights.items() if x.ndim == 2 and each not in OPTIONAL):
        with pytest.raises(ValueError, match=each.replace(".", r"\.")):
            load({other: x for other, x in weights.items() if other != each})
        with pytest.raises(ValueError, match=rf"`{each}` must"):
            load({**weights, each: weights[each][None]})
    with pytest.raises(ValueError, match=r"not expected: \['rotary_emb.cos'\]"):
        load(weights | {"rotary_emb.cos": np.ones(3)})


@pytest.mark.parametrize("name", [name for name in NAMES if "x_2" in case(name).about["inputs"]])
def test_keys_and_values_are_projected_once_for_many_calls(name: str) -> None:
    recorded = case(name)
    layer, (x, x_2) = recorded.layer(), recorded.part("inputs").values()
    prepared = layer.keys_values(x_2)
    for start in (0, 2):
        out = recorded.call(layer, x[:, start:], prepared)
        np.testing.assert_allclose(out, recorded.out[:, start:], rtol=0, atol=recorded.tolerance("float64"))


@pytest.mark.parametrize("name", [name for name in NAMES if case(name).about["layer"] != "GroupedQueryAttention"])
def test_weights_of_a_query_sum_to_one(name: str) -> None:
    recorded = case(name)
    layer, inputs = recorded.layer(), recorded.part("inputs").values()
    result = recorded.call(layer, *inputs, return_weights=True)
    check(recorded, result.out, "float64")
    whole = 1 - float(layer.factor()) if name == "diffllama" else 1.0
    np.testing.assert_allclose(result.weights.sum(-1), np.full(result.weights.shape[:-1], whole), rtol=1e-12)


def test_later_layers_of_t5_take_the_bias_of_the_first() -> None:
    recorded = case("t5-decoder")
    first = recorded.layer()
    weights = {name: x for name, x in first.state_dict().items() if name != "relative_attention_bias.weight"}
    later = T5Attention.from_state_dict(weights, num_heads=3, causal=True)
    (x,) = recorded.part("inputs").values()
    check(recorded, later(x, bias=first.position_bias()), "float64")
    assert recorded.difference(later(x)) > 0.1
    with pytest.raises(ValueError, match="this layer has no `relative_attention_bias`"):
        later.position_bias()


@pytest.mark.slow
@pytest.mark.torch
def test_the_packages_give_what_is_recorded(tmp_path: Path) -> None:
    for package in ("transformers", "diffusers"):
        pytest.importorskip(package, reason=f"recording needs {package}")
    command = [sys.executable, "-m", "conformance.record.models", str(tmp_path)]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
    subprocess.run(command, check=True, cwd=FOLDER.parents[2], env=environment, capture_output=True)
    for name in NAMES:
        again = tensors.load((tmp_path / f"{name}.safetensors").read_bytes())
        recorded = case(name)
        assert set(again) == set(recorded.arrays)
        for each, x in recorded.arrays.items():
            np.testing.assert_allclose(again[each], x, rtol=0, atol=1e-12 * max(1.0, np.abs(x).max(initial=0)))


@every_model
@pytest.mark.torch
def test_gradients_by_torch(name: str) -> None:
    import torch

    recorded = case(name)
    given = {each: torch.from_numpy(x.copy()).requires_grad_() for each, x in recorded.part("inputs").items()}
    layer = recorded.layer(lambda x: torch.from_numpy(x.copy()).requires_grad_())
    out = recorded.call(layer, *given.values())
    leaves = {**given, **layer.state_dict()}
    cotangent = torch.from_numpy(recorded.arrays["cotangent"].copy())
    gradients = torch.autograd.grad((out * cotangent).sum(), list(leaves.values()))
    check_gradients(recorded, dict(zip(leaves, gradients, strict=True)))


@in_jax
def test_output_vmap_and_gradients_in_jax(name: str) -> None:
    jax = pytest.importorskip("jax", reason="attention_jax needs the `jax` extra")
    import attention_jax  # noqa: F401  makes layers pytrees

    recorded = case(name)

    def loss(layer: Any, inputs: list[Any]) -> tuple[Any, Any]:
        out = recorded.call(layer, *inputs)
        return (out * recorded.arrays["cotangent"]).sum(), (out, an_item_each(layer, inputs))

    def an_item_each(layer: Any, inputs: list[Any]) -> Any:
        if "mask" in recorded.about["call"]:  # lengths are an array of the batch
            return None
        return jax.vmap(lambda *given: recorded.call(layer, *given))(*inputs)

    with jax.enable_x64(True):
        layer, inputs = in_library(recorded, Library("jax"), "float64")
        gradients, (out, mapped) = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(layer, inputs)
        check(recorded, np.asarray(out), "float64")
        if mapped is not None:
            check(recorded, np.asarray(mapped), "float64")
        named = dict(zip(recorded.part("inputs"), gradients[1], strict=True)) | gradients[0].state_dict()
        check_gradients(recorded, {each: np.asarray(x) for each, x in named.items()})


def check_gradients(recorded: Case, found: dict[str, Any]) -> None:
    wanted = recorded.part("gradients")
    assert set(found) == set(wanted)
    for name, gradient in wanted.items():
        # cotangents are of the size of the output's, so are the errors that they multiply
        atol = 64 * recorded.tolerance("float64", gradient) + 64 * EPS["float64"] * float(np.abs(gradient).max())
        np.testing.assert_allclose(np.asarray(found[name]), gradient, rtol=0, atol=atol, err_msg=name)
