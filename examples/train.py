"""A layer learns to look up: the README's ten lines of JAX and optax in full.

    python examples/train.py

Each of 256 sentences has 5 words; a word is a name of 8 signs and a content of 2 numbers. A question holds the name of
one word and nothing else, and the answer is that word's content. Cross-attention from question to sentence learns it
from examples: queries and keys to compare names, values to hand over contents.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run from a checkout, installed or not

import attention_jax as attention

SENTENCES, WORDS, NAME, CONTENT = 256, 5, 8, 2


class Questions(NamedTuple):
    """Questions ``(sentences, 1, NAME + CONTENT)``, sentences ``(sentences, WORDS, NAME + CONTENT)`` and answers."""

    question: jax.Array
    sentence: jax.Array
    answer: jax.Array


def draw(key: jax.Array) -> Questions:
    words = jax.random.normal(key, (SENTENCES, WORDS, NAME + CONTENT))
    sentence = words.at[..., :NAME].set(jnp.sign(words[..., :NAME]))
    asked = sentence[jnp.arange(SENTENCES), jnp.arange(SENTENCES) % WORDS][:, None]
    return Questions(asked.at[..., NAME:].set(0), sentence, asked[..., NAME:])


def mean_square(layer: attention.CrossAttention, data: Questions) -> jax.Array:
    return jnp.mean((layer(data.question, data.sentence) - data.answer) ** 2)


def train(steps: int, rate: float = 0.1) -> tuple[attention.CrossAttention, list[float]]:
    """Return the trained layer and its loss before each step, on the same examples every time."""
    weights_key, data_key = jax.random.split(jax.random.key(0))
    data = draw(data_key)
    layer = attention.init(attention.CrossAttention, weights_key, d_in=NAME + CONTENT, d_out_kq=NAME, d_out_v=CONTENT)
    optimiser = optax.adam(rate)

    @jax.jit
    def step(layer, state):
        loss, gradient = jax.value_and_grad(mean_square)(layer, data)
        updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(layer, updates), state, loss

    state, losses = optimiser.init(layer), []
    for _ in range(steps):
        layer, state, loss = step(layer, state)
        losses.append(float(loss))
    return layer, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps of Adam (default 200)")
    layer, losses = train(parser.parse_args().steps)
    for i in range(0, len(losses), 25):
        print(f"step {i:4d}   mean square error {losses[i]:.5f}")
    unseen = draw(jax.random.key(1))
    right = jnp.argmax(layer.steps(unseen.question, unseen.sentence)["attn_weights"], axis=-1)[:, 0]
    found = jnp.mean(right == jnp.arange(SENTENCES) % WORDS)
    print(f"unseen      mean square error {mean_square(layer, unseen):.5f}")
    print(f"unseen      the word asked for has the largest weight in {found:.1%} of the questions")


if __name__ == "__main__":
    main()
