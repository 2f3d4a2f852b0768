"""A small decoder learns to copy: it reads a sequence and a sign, and writes the sequence again.

    python examples/copy_task.py

Two blocks of grouped-query attention with rotary positions and a network, written in layers of this library, trained
with JAX and optax on sequences that are drawn anew at each step. Chance is one symbol in sixteen; within a minute on a
CPU it copies unseen sequences without a mistake. At last it writes with a cache, from what it has written itself.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run from a checkout, installed or not

import attention_jax as attention
from attention_core.variants import Linear, RMSNorm

SYMBOLS, LENGTH, WIDTH, HEADS, KV_HEADS, BATCH = 16, 12, 64, 4, 2, 64
SIGN = SYMBOLS  # one more word: now write


class Block(NamedTuple):
    """Attention and a network, each behind a norm and added to its input."""

    attention: attention.GroupedQueryAttention
    norms: tuple[RMSNorm, RMSNorm]
    up: Linear
    down: Linear


class Decoder(NamedTuple):
    """Words ``(SYMBOLS + 1, WIDTH)``, blocks, and the map to a logit a symbol."""

    words: jax.Array
    blocks: tuple[Block, ...]
    logits: Linear


def draw(key: jax.Array, blocks: int = 2) -> Decoder:
    keys = iter(jax.random.split(key, 5 * blocks + 2))

    def block() -> Block:
        sizes = {"d_in": WIDTH, "num_heads": HEADS, "num_kv_heads": KV_HEADS, "d_head": WIDTH // HEADS}
        layer = attention.init(attention.GroupedQueryAttention, next(keys), **sizes, rotary=attention.Rotary(100.0))
        norms = (attention.init(RMSNorm, next(keys), d_in=WIDTH), attention.init(RMSNorm, next(keys), d_in=WIDTH))
        up = attention.init(Linear, next(keys), d_in=WIDTH, d_out=2 * WIDTH)
        return Block(layer, norms, up, attention.init(Linear, next(keys), d_in=2 * WIDTH, d_out=WIDTH))

    words = jax.random.normal(next(keys), (SYMBOLS + 1, WIDTH))
    return Decoder(
        words, tuple(block() for _ in range(blocks)), attention.init(Linear, next(keys), d_in=WIDTH, d_out=SYMBOLS)
    )


def read(decoder: Decoder, tokens: jax.Array, caches: tuple | None = None) -> tuple[jax.Array, tuple]:
    """Return logits ``(batch, L, SYMBOLS)`` of the word after each of ``tokens (batch, L)``, and the longer caches."""
    x, after = decoder.words[tokens], []
    for n, block in enumerate(decoder.blocks):
        out = block.attention(block.norms[0](x), cache=None if caches is None else caches[n])
        if caches is not None:
            out, longer = out
            after.append(longer)
        x = x + out
        x = x + block.down(jax.nn.gelu(block.up(block.norms[1](x))))
    return decoder.logits(x), tuple(after)


def sequences(key: jax.Array, count: int = BATCH) -> jax.Array:
    return jax.random.randint(key, (count, LENGTH), 0, SYMBOLS)


def with_sign(wanted: jax.Array) -> jax.Array:
    return jnp.concatenate([wanted, jnp.full((len(wanted), 1), SIGN)], axis=1)


def loss_and_accuracy(decoder: Decoder, wanted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy of the copied symbols, and the share that is right, each told all before it."""
    logits = read(decoder, jnp.concatenate([with_sign(wanted), wanted[:, :-1]], axis=1))[0][:, LENGTH:]
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, wanted).mean()
    return loss, jnp.mean(jnp.argmax(logits, axis=-1) == wanted)


def train(steps: int, rate: float, report: Callable[[int, float, float], None]) -> Decoder:
    """Return the trained decoder; each step's number, loss and accuracy are reported."""
    decoder = draw(jax.random.key(0))
    optimiser = optax.adam(optax.warmup_cosine_decay_schedule(0.0, rate, steps // 10, steps))

    @jax.jit
    def step(decoder: Decoder, state: optax.OptState, key: jax.Array) -> tuple:
        value, gradient = jax.value_and_grad(loss_and_accuracy, has_aux=True)(decoder, sequences(key))
        updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(decoder, updates), state, *value

    state = optimiser.init(decoder)
    for number in range(steps):
        decoder, state, loss, accuracy = step(decoder, state, jax.random.fold_in(jax.random.key(1), number))
        report(number, float(loss), float(accuracy))
    return decoder


@jax.jit
def write(decoder: Decoder, wanted: jax.Array) -> jax.Array:
    """Let the decoder copy by itself: each symbol it writes is what it reads next."""
    kind = attention.cache.StaticCache
    caches = tuple(b.attention.new_cache(kind, batch=(len(wanted),), capacity=2 * LENGTH) for b in decoder.blocks)
    logits, caches = read(decoder, with_sign(wanted), caches)

    def next_symbol(state: tuple, _: None) -> tuple:
        symbol, caches = state
        logits, caches = read(decoder, symbol[:, None], caches)
        return (jnp.argmax(logits[:, -1], axis=-1), caches), symbol

    first = jnp.argmax(logits[:, -1], axis=-1)
    (last, _), written = jax.lax.scan(next_symbol, (first, caches), length=LENGTH - 1)
    return jnp.concatenate([written.T, last[:, None]], axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="steps of Adam (default 120)")
    parser.add_argument("--rate", type=float, default=4e-3, help="highest learning rate (default 0.004)")
    arguments = parser.parse_args()
    begun = time.perf_counter()

    def report(number: int, loss: float, accuracy: float) -> None:
        if number % 20 == 0 or number == arguments.steps - 1:
            seconds = time.perf_counter() - begun
            print(f"step {number:4d}   loss {loss:.4f}   accuracy {accuracy:6.1%}   {seconds:5.1f} s")

    decoder = train(arguments.steps, arguments.rate, report)
    unseen = sequences(jax.random.key(2), 128)
    copied = write(decoder, unseen)
    print(f"unseen, by itself: {jnp.mean(copied == unseen):.1%} of the symbols are right")
    print("read ", *unseen[0].tolist())
    print("wrote", *copied[0].tolist())


if __name__ == "__main__":
    main()
