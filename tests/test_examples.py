"""The examples run, and print what they should: the article's own numbers, and a loss that falls."""

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from conformance.printed import printed as article_prints
from tests.article import printed, shown

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

# What the article prints, by the name under which the example prints it.
PRINTED = {
    "sentence_int": "sentence_int",
    "embedded_sentence": "embedded_sentence",
    "omega_24": "omega_24",
    "omega_2": "omega_2",
    "attention_weights_2": "attention_weights_2",
    "context_vector_2": "context_vector_2",
    "sa(embedded_sentence)": "sa(embedded_sentence), d_out_v 4",
    "one head, d_out_v = 1": "sa(embedded_sentence), d_out_v 1",
    "context_vecs": "context_vecs",
    "context_vectors": "context_vectors",
    "attn_scores": "attn_scores",
    "attn_weights": "attn_weights",
    "mask_simple": "mask_simple",
    "masked_simple": "masked_simple",
    "masked_simple_norm": "masked_simple_norm",
    "masked": "masked",
    "attn_weights, causal": "attn_weights after masking",
}


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run an example's `main` with arguments, and return what it printed."""

    def call(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        example(name).main()
        return capsys.readouterr().out

    return call


def numbers(text: str, name: str) -> list[str]:
    """The numbers that the example printed after `name:`, up to the next name."""
    found = re.search(rf"^{re.escape(name)}: (?:\(.*\)\n)?([^:]+?)$(?!\n \[)", text, re.MULTILINE)
    assert found is not None, f"{name} was not printed"
    return re.findall(r"-?(?:inf|\d+\.?\d*)", found[1])


@pytest.mark.parametrize("flags", [(), pytest.param(("--jax",), marks=pytest.mark.slow)], ids=["numpy", "jax"])
def test_article_prints_what_the_article_prints(run: Callable[..., str], flags: tuple[str, ...]) -> None:
    if flags:
        pytest.importorskip("jax", reason="--jax needs the `jax` extra")
    text = run("article", *flags)
    assert f"dc: {article_prints()['dictionary']['printed']}\n" in text
    for name, what in PRINTED.items():
        wanted = shown(printed(what))
        assert [f"{float(number):.4f}" for number in numbers(text, name)] == wanted, name


def test_every_printed_tensor_and_shape_of_the_article_is_there(run: Callable[..., str]) -> None:
    assert {entry["what"] for entry in article_prints()["tensors"]} == set(PRINTED.values())
    text = run("article")
    shapes = {
        "embedded_sentence: (6, 3)",
        "query_2.shape: (2,)",
        "key_2.shape: (2,)",
        "value_2.shape: (4,)",
        "keys.shape: (6, 2)",
        "values.shape: (6, 4)",
        "context_vector_2.shape: (4,)",
        "context_vecs: (6, 4)",
        "first input shape: (6, 3)",
        "second input shape: (8, 3)",
        "context_vectors: (6, 4)",
        "attn_scores: (6, 6)",
    }
    assert shapes <= set(text.splitlines())
    assert len(shapes) == len(article_prints()["shapes"])


def test_article_draws_its_weights(run: Callable[..., str], tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image", reason="--plot needs matplotlib, of the `test` and `docs` extras")
    file = tmp_path / "attention.png"
    assert f"drew {file}" in run("article", "--plot", str(file))
    pixels = image.imread(file)
    assert pixels.shape[-1] == 4
    assert pixels[0, 0, 3] == 0, "the background must be transparent, for light and dark pages"
    assert np.ptp(pixels[pixels[..., 3] == 1][:, :3], axis=0).min() > 0.3, "the tables have no colours"


@pytest.mark.slow
def test_the_layer_learns_to_look_up(run: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    for needed in ("jax", "optax"):
        pytest.importorskip(needed, reason=f"the training example needs {needed}")
    text = run("train", "--steps", "151")
    losses = [float(found) for found in re.findall(r"^step.* ([\d.]+)$", text, re.MULTILINE)]
    assert len(losses) == 7
    assert losses[2] < losses[0] / 50
    assert losses[-1] < losses[0] / 1000
    share = re.search(r"largest weight in ([\d.]+)%", text)
    assert share is not None
    assert float(share[1]) > 90


@pytest.mark.slow
def test_numpy_and_a_compiled_scan_write_the_same_words(run: Callable[..., str]) -> None:
    pytest.importorskip("jax", reason="the decoding example writes on JAX too")
    lines = run("decode", "--words", "9").splitlines()
    written = {
        name: [line.removeprefix(name).strip() for line in lines if line.startswith(name)] for name in ("NumPy", "JAX")
    }
    assert len(written["NumPy"]) == 3
    assert written["NumPy"] == written["JAX"]
    assert all(len(set(line.split("|")[1].split())) > 2 for line in written["JAX"]), "it only repeats itself"
    assert lines[-1] == "the same words: True"


@pytest.mark.slow
def test_a_decoder_learns_to_copy(run: Callable[..., str]) -> None:
    for needed in ("jax", "optax"):
        pytest.importorskip(needed, reason=f"the example needs {needed}")
    text = run("copy_task", "--steps", "100")
    losses = [float(found) for found in re.findall(r"^step.* loss ([\d.]+)", text, re.MULTILINE)]
    assert losses[0] > 2 > 0.1 > losses[-1]
    share = re.search(r"by itself: ([\d.]+)% of the symbols are right", text)
    assert share is not None
    assert float(share[1]) > 99
    read, wrote = re.findall(r"^(?:read|wrote) +([\d ]+)$", text, re.MULTILINE)
    assert read == wrote


def test_heads_are_drawn(run: Callable[..., str], tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image", reason="matplotlib is of the `test` and `docs` extras")
    file = tmp_path / "heads.png"
    text = run("head_maps", "--file", str(file))
    assert f"drew {file}" in text
    bloom = [float(tokens) for tokens in re.findall(r"[\d.]+", text.split("BLOOM")[1].splitlines()[0])]
    assert len(bloom) == 6
    assert bloom[4] < bloom[0] < bloom[5] < bloom[1], "steeper slopes must look less far"
    assert np.ptp(image.imread(file)[..., :3], axis=(0, 1)).min() > 0.5
