"""What each head looks at: the attention maps of a layer, drawn head by head.

    python examples/head_maps.py [--file head_maps.png]

T5's encoder and decoder and BLOOM's decoder side by side, with weights as they are drawn before training: what shows is
their positions. T5 learns a number a distance and a head, so that each head has stripes of its own; its decoder's are
cut off behind the diagonal; BLOOM's slopes let each head forget at a rate of its own.
"""

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run from a checkout, installed or not

import attention_np as attention

WIDTH, HEADS, LENGTH = 24, 6, 24


def layers(rng: np.random.Generator) -> dict[str, attention.variants.Layer]:
    sizes = {"d_model": WIDTH, "num_heads": HEADS, "d_kv": 4}
    buckets = {"num_buckets": 16, "max_distance": LENGTH}
    made = {
        "T5, encoder": attention.init(attention.T5Attention, rng, **sizes, **buckets),
        "T5, decoder": attention.init(attention.T5Attention, rng, **sizes, **buckets, causal=True),
        "BLOOM": attention.init(attention.BloomAttention, rng, hidden_size=WIDTH, num_heads=HEADS),
    }
    for name in ("T5, encoder", "T5, decoder"):  # the first law of T5's table is narrow: let its stripes show
        weights = made[name].state_dict()
        weights["relative_attention_bias.weight"] = weights["relative_attention_bias.weight"] * 6
        options = {option: getattr(made[name], option) for option in made[name].option_names()}
        made[name] = attention.T5Attention.from_state_dict(weights, **options)
    return made


def maps(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the weights ``(HEADS, LENGTH, LENGTH)`` of each layer, on the same random tokens."""
    tokens = 0.3 * rng.normal(size=(LENGTH, WIDTH)).astype(np.float32)
    return {name: layer(tokens, return_weights=True).weights for name, layer in layers(rng).items()}


def draw(weights: dict[str, np.ndarray], file: Path) -> None:
    figure, axes = plt.subplots(len(weights), HEADS, figsize=(1.6 * HEADS, 1.8 * len(weights)), layout="constrained")
    for row, (name, heads) in zip(axes, weights.items(), strict=True):
        for h, (axis, weight) in enumerate(zip(row, heads, strict=True)):
            axis.imshow(weight, cmap="viridis", vmin=0, vmax=weight.max())
            axis.set(xticks=[], yticks=[], title=f"head {h}")
        row[0].set_ylabel(f"{name}\nquery")
    figure.supxlabel("key")
    figure.savefig(file, dpi=120)
    plt.close(figure)


def reach(weights: np.ndarray) -> np.ndarray:
    """Return how far back or ahead each head looks on average, in tokens."""
    query, key = np.indices((LENGTH, LENGTH))
    return (weights * abs(query - key)).sum(-1).mean(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=Path("head_maps.png"), help="where the drawing goes")
    file = parser.parse_args().file
    weights = maps(np.random.default_rng(0))
    for name, heads in weights.items():
        print(f"{name:12s} mean distance by head  {'  '.join(f'{tokens:4.1f}' for tokens in reach(heads))}")
    draw(weights, file)
    print(f"drew {file}")


if __name__ == "__main__":
    main()
