"""A small decoder writes on, with a cache: in a loop on NumPy, and as one compiled scan on JAX.

    python examples/decode.py

Two blocks of grouped-query attention with rotary positions, the second within a window, and a gated network; weights
are random, so what it writes means nothing. Three prompts of unequal lengths are padded on the left. Both writings call
the same `read`, and neither computes a position, a length or a mask: the caches know them.
"""

import argparse
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run from a checkout, installed or not

import attention_jax  # makes layers and caches pytrees
import attention_np as attention
from attention_core.variants import Linear, RMSNorm

WORDS, WIDTH, HEADS, KV_HEADS, WINDOW = 50, 32, 4, 2, 6
PROMPTS = [[3, 14, 15, 9, 2], [27, 18], [31, 41, 5, 8]]


class Block(NamedTuple):
    """Attention and a gated network, each behind a norm and added to its input."""

    attention: attention.GroupedQueryAttention
    before_attention: RMSNorm
    before_network: RMSNorm
    gate: Linear
    up: Linear
    down: Linear


class Decoder(NamedTuple):
    """Words ``(WORDS, WIDTH)``, blocks, the last norm, and the map to a logit a word."""

    words: Any
    blocks: tuple[Block, ...]
    last: RMSNorm
    logits: Linear


def draw(rng: np.random.Generator) -> Decoder:
    def linear(d_in: int, d_out: int) -> Linear:
        return attention.init(Linear, rng, d_in=d_in, d_out=d_out, bias=False)

    def block(**options: Any) -> Block:
        sizes = {"d_in": WIDTH, "num_heads": HEADS, "num_kv_heads": KV_HEADS, "d_head": WIDTH // HEADS}
        layer = attention.init(attention.GroupedQueryAttention, rng, **sizes, rotary=attention.Rotary(), **options)
        norms = (attention.init(RMSNorm, rng, d_in=WIDTH) for _ in range(2))
        return Block(layer, *norms, linear(WIDTH, 3 * WIDTH), linear(WIDTH, 3 * WIDTH), linear(3 * WIDTH, WIDTH))

    words, blocks = 0.3 * rng.normal(size=(WORDS, WIDTH)), (block(), block(window=WINDOW))
    return Decoder(words.astype(np.float32), blocks, attention.init(RMSNorm, rng, d_in=WIDTH), linear(WIDTH, WORDS))


def read(xp: ModuleType, decoder: Decoder, caches: tuple, tokens: Any, **padding: Any) -> tuple[Any, tuple]:
    """Read tokens ``(batch, L)``; return the most probable next one of each item, ``(batch, 1)``, and the caches."""
    x, after = xp.take(decoder.words, tokens, axis=0), []
    for block, cache in zip(decoder.blocks, caches, strict=True):
        out, longer = block.attention(block.before_attention(x), cache=cache, **padding)
        after.append(longer)
        x = x + out
        hidden = block.before_network(x)
        gate = block.gate(hidden)
        x = x + block.down(gate / (1 + xp.exp(-gate)) * block.up(hidden))
    return xp.argmax(decoder.logits(decoder.last(x[:, -1:])), axis=-1), tuple(after)


def padded(prompts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the prompts as one array, padded on the left, and their lengths."""
    longest = max(map(len, prompts))
    return np.array([[0] * (longest - len(p)) + p for p in prompts]), np.array(list(map(len, prompts)))


def write_numpy(decoder: Decoder, count: int) -> np.ndarray:
    """Write ``count`` words in a loop; the caches grow, that of the window stays."""
    tokens, lengths = padded(PROMPTS)
    kinds = attention.cache.GrowingCache, attention.cache.SlidingCache
    layers = [block.attention for block in decoder.blocks]
    caches = tuple(layer.new_cache(kind, batch=lengths.shape) for layer, kind in zip(layers, kinds, strict=True))
    token, caches = read(np, decoder, caches, tokens, lengths=lengths, padding="left")
    written = [token]
    for _ in range(count - 1):
        token, caches = read(np, decoder, caches, token)
        written.append(token)
    return np.concatenate(written, axis=1)


@jax.jit
def prefill(decoder: Decoder, caches: tuple, tokens: jax.Array, lengths: jax.Array) -> tuple[jax.Array, tuple]:
    return read(jnp, decoder, caches, tokens, lengths=lengths, padding="left")


def write_jax(decoder: Decoder, count: int) -> np.ndarray:
    """Write ``count`` words as one compiled scan; all caches have fixed shapes."""
    tokens, lengths = padded(PROMPTS)
    decoder = jax.tree.map(jnp.asarray, decoder)
    full, window = (block.attention for block in decoder.blocks)
    capacity = tokens.shape[1] + count
    caches = (
        full.new_cache(attention_jax.cache.StaticCache, batch=lengths.shape, capacity=capacity),
        window.new_cache(attention_jax.cache.SlidingCache, batch=lengths.shape),
    )
    first, caches = prefill(decoder, caches, jnp.asarray(tokens), jnp.asarray(lengths))

    @jax.jit
    def rest(decoder: Decoder, caches: tuple, first: jax.Array) -> jax.Array:
        def step(state, _):
            token, caches = read(jnp, decoder, *state)
            return (caches, token), token[:, 0]

        return jax.lax.scan(step, (caches, first), length=count - 1)[1].T

    return np.concatenate([first, rest(decoder, caches, first)], axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=12, help="words to write (default 12)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default 0)")
    arguments = parser.parse_args()
    decoder = draw(np.random.default_rng(arguments.seed))
    written = {"NumPy": write_numpy(decoder, arguments.words), "JAX": write_jax(decoder, arguments.words)}
    for name, tokens in written.items():
        for prompt, row in zip(PROMPTS, tokens.tolist(), strict=True):
            print(f"{name:6} {' '.join(map(str, prompt))} | {' '.join(map(str, row))}")
    same = bool((written["NumPy"] == written["JAX"]).all())
    print(f"the same words: {same}")


if __name__ == "__main__":
    main()
