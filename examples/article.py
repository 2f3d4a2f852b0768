"""The article's walk through self-, multi-head, cross- and causal attention, section by section, on NumPy or on JAX.

    python examples/article.py                            on NumPy
    python examples/article.py --jax                      on JAX
    python examples/article.py --plot attention.png       and draw the attention weights

Sentence, weights and second input are PyTorch's own for `torch.manual_seed(123)`, from the saved test vectors; all else
is computed here. What is printed is what the article prints, by the article's names.
"""

import argparse
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run from a checkout, installed or not

from conformance.format import read_groups

SENTENCE = "Life is short, eat dessert first"
D_OUT_KQ = 2


@dataclass(frozen=True)
class Backend:
    """attention_np with numpy, or attention_jax with jax.numpy, and the saved inputs of the article's cases."""

    attention: ModuleType
    xp: ModuleType
    inputs: Mapping[str, Mapping[str, np.ndarray]]

    def arrays(self, case: str) -> dict[str, Any]:
        """The inputs of a case, as arrays of this backend."""
        return {name: self.xp.asarray(array) for name, array in self.inputs[case].items()}

    def layer(self, name: str, case: str) -> Any:
        """A layer with the weights of a case, by the article's `state_dict` names."""
        weights = {name: array for name, array in self.arrays(case).items() if "W_" in name}
        return getattr(self.attention, name).from_state_dict(weights)


def backend(jax: bool) -> Backend:
    names = ("attention_jax", "jax.numpy") if jax else ("attention_np", "numpy")
    attention, xp = map(importlib.import_module, names)
    return Backend(attention, xp, {case.id: case.inputs for group in read_groups() for case in group.cases})


def words() -> list[str]:
    return SENTENCE.replace(",", "").split()


def section(title: str) -> None:
    print(f"\n{title}\n{'-' * len(title)}")


def show(name: str, array: Any) -> None:
    """Print an array as the article does: four decimals, its name and its shape."""
    numbers = np.asarray(array)
    kind = {"precision": 4, "floatmode": "fixed", "suppress_small": True} if numbers.dtype.kind == "f" else {}
    text = np.array2string(numbers, separator=", ", max_line_width=120, **kind)
    print(f"{name}: {numbers.shape}\n{text}" if numbers.ndim > 1 else f"{name}: {text}")


def embedding(b: Backend) -> Any:
    section("Embedding the input sentence")
    dc = {word: index for index, word in enumerate(sorted(words()))}
    print(f"dc: {dc}")
    sentence_int = b.xp.asarray([dc[word] for word in words()])
    show("sentence_int", sentence_int)
    embedded_sentence = b.arrays("article-embedding-sentence")["weight"][sentence_int]
    show("embedded_sentence", embedded_sentence)
    return embedded_sentence


def second_word(b: Backend, embedded_sentence: Any) -> None:
    w = b.arrays("article-projections-sentence")
    section("Projections")
    x_2 = embedded_sentence[1]
    query_2, key_2, value_2 = x_2 @ w["W_query"], x_2 @ w["W_key"], x_2 @ w["W_value"]
    keys, values = embedded_sentence @ w["W_key"], embedded_sentence @ w["W_value"]
    for name, array in (
        ("query_2", query_2),
        ("key_2", key_2),
        ("value_2", value_2),
        ("keys", keys),
        ("values", values),
    ):
        print(f"{name}.shape: {array.shape}")

    section("Unnormalised attention weights")
    omega_2 = b.attention.attention_scores(query_2[None], keys, scale=1.0)[0]
    show("omega_24", omega_2[4])
    show("omega_2", omega_2)

    section("Attention weights")
    result = b.attention.dot_product_attention(query_2[None], keys, values, return_weights=True)
    show("attention_weights_2", result.weights[0])
    print(f"context_vector_2.shape: {result.out[0].shape}")
    show("context_vector_2", result.out[0])


def self_attention(b: Backend, embedded_sentence: Any) -> None:
    section("Self-attention")
    show("sa(embedded_sentence)", b.layer("SelfAttention", "article-self-attention-layer-dv4")(embedded_sentence))


def multi_head_attention(b: Backend, embedded_sentence: Any) -> None:
    section("Multi-head attention")
    one = b.layer("SelfAttention", "article-self-attention-layer-dv1")
    show("one head, d_out_v = 1", one(embedded_sentence))
    mha = b.layer("MultiHeadAttentionWrapper", "article-multi-head-layer")
    show("context_vecs", mha(embedded_sentence))


def cross_attention(b: Backend, embedded_sentence: Any) -> None:
    section("Cross-attention")
    second_input = b.arrays("article-cross-attention-layer")["x_2"]
    print(f"first input shape: {embedded_sentence.shape}")
    print(f"second input shape: {second_input.shape}")
    crossattn = b.layer("CrossAttention", "article-cross-attention-layer")
    show("context_vectors", crossattn(embedded_sentence, second_input))


def causal_attention(b: Backend, x: Any) -> tuple[Any, Any]:
    """Print the last section; return the weights of all words, and those that look back only."""
    section("Causal self-attention")
    w = b.arrays("article-causal-layer")
    queries, keys, values = x @ w["W_query"], x @ w["W_key"], x @ w["W_value"]
    show("attn_scores", b.attention.attention_scores(queries, keys, scale=1.0))
    attn_weights = b.attention.dot_product_attention(queries, keys, values, return_weights=True).weights
    show("attn_weights", attn_weights)

    section("Causal, the first way: mask the weights, then renormalise")
    causal = b.attention.masks.causal()
    mask_simple = causal.array(len(x), len(x), xp=b.xp)[0].astype(x.dtype)
    show("mask_simple", mask_simple)
    masked_simple = attn_weights * mask_simple
    show("masked_simple", masked_simple)
    row_sums = masked_simple.sum(axis=1, keepdims=True)
    show("masked_simple_norm", masked_simple / row_sums)

    section("Causal, the second way: -inf before the softmax")
    show("masked", b.attention.attention_scores(queries, keys, scale=1.0, mask=causal))
    causal_weights = b.attention.dot_product_attention(queries, keys, values, mask=causal, return_weights=True).weights
    show("attn_weights, causal", causal_weights)
    steps = b.layer("CausalSelfAttention", "article-causal-layer").steps(x)
    ways = abs(steps["masked_simple_norm"] - steps["attn_weights"]).max()
    print(f"CausalSelfAttention.steps holds all of these; its two ways differ by at most {ways:.0e}")
    return attn_weights, causal_weights


INK, LINE = "#7c858f", "#8b949e55"  # between the page colours of light and dark themes
COLOURS = ("#e6eefb", "#9cc1f5", "#4a86e0", "#1d4fa8", "#0d2b66")


def plot(file: Path, panels: Mapping[str, Any]) -> None:
    """Draw attention weights as tables: who looks (down) at whom (across)."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.4, 5.1), layout="constrained")
    figure.get_layout_engine().set(wspace=0.08, h_pad=0.12)
    colours, norm = LinearSegmentedColormap.from_list("weights", COLOURS), PowerNorm(0.7, 0, 1)
    for axes, (title, weights) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        table(axes, title, np.asarray(weights), lambda weight: colours(norm(weight)))
    figure.savefig(file, dpi=115, transparent=True, metadata={"Software": None})


def table(axes: Any, title: str, weights: np.ndarray, colour: Any) -> None:
    from matplotlib.patches import FancyBboxPatch

    for (i, j), weight in np.ndenumerate(weights):
        seen = weight > 0
        style = {"facecolor": colour(weight), "edgecolor": "none"} if seen else {"facecolor": "none", "edgecolor": LINE}
        axes.add_patch(FancyBboxPatch((j - 0.43, i - 0.43), 0.86, 0.86, "round,pad=0,rounding_size=0.12", **style))
        if seen:
            ink = "white" if weight > 0.26 else "#0b1c3a"
            axes.text(j, i, f"{weight:.2f}", ha="center", va="center", color=ink, fontsize=10.5)
    axes.set(xlim=(-0.5, len(weights) - 0.5), ylim=(len(weights) - 0.5, -0.5), aspect="equal")
    axes.set_xticks(range(len(weights)), words(), fontsize=11.5, color=INK)
    axes.set_yticks(range(len(weights)), words(), fontsize=11.5, color=INK)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=5)
    axes.spines[:].set_visible(False)
    axes.set_title(title, color=INK, fontsize=13, fontweight="bold", pad=14)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jax", action="store_true", help="compute with JAX instead of NumPy")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the attention weights into FILE (.png, .svg, .pdf)"
    )
    arguments = parser.parse_args()
    b = backend(arguments.jax)
    embedded_sentence = embedding(b)
    second_word(b, embedded_sentence)
    self_attention(b, embedded_sentence)
    multi_head_attention(b, embedded_sentence)
    cross_attention(b, embedded_sentence)
    weights, causal_weights = causal_attention(b, embedded_sentence)
    if arguments.plot:
        plot(arguments.plot, {"every word sees every word": weights, "no word sees ahead (causal)": causal_weights})
        print(f"\ndrew {arguments.plot}")


if __name__ == "__main__":
    main()
