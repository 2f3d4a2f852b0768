"""The article's own lines, in its order, with its seeds: every tensor that it computes, by the article's name.

`self_attention.`, `one_dimensional.`, `multi_head.`, `cross.`, `causal.` before a name say which section computes it.
"""

from typing import Any

SENTENCE = "Life is short, eat dessert first"
VOCABULARY_SIZE = 50_000
D_IN, D_OUT_KQ, D_OUT_V, NUM_HEADS, SECOND_LENGTH = 3, 2, 4, 4, 8


def words() -> list[str]:
    """Return the words of the sentence, in their order."""
    return SENTENCE.replace(",", "").split()


def vocabulary() -> dict[str, int]:
    """Return the article's dictionary `dc`: the words sorted, capitals first."""
    return {word: index for index, word in enumerate(sorted(words()))}


def article_tensors() -> dict[str, Any]:
    """Run the article, section by section."""
    found = _embedding()
    sentence = found["embedded_sentence"]
    found |= _second_word(sentence)
    found |= _layers(sentence)
    found |= _causal(sentence)
    return {name: tensor.detach() for name, tensor in found.items()}


def _embedding() -> dict[str, Any]:
    import torch

    sentence_int = torch.tensor([vocabulary()[word] for word in words()])
    torch.manual_seed(123)
    embed = torch.nn.Embedding(VOCABULARY_SIZE, D_IN)
    embedded_sentence = embed(sentence_int).detach()
    return {
        "sentence_int": sentence_int,
        "embed.weight[:6]": embed.weight[:6].clone(),
        "embedded_sentence": embedded_sentence,
    }


def _second_word(embedded_sentence: Any) -> dict[str, Any]:
    from torch.nn import functional

    found = _projection_matrices()
    x_2 = embedded_sentence[1]
    query_2, key_2, value_2 = (x_2 @ found[f"W_{name}"] for name in ("query", "key", "value"))
    keys, values = embedded_sentence @ found["W_key"], embedded_sentence @ found["W_value"]
    omega_24 = query_2.dot(keys[4])
    omega_2 = query_2 @ keys.T
    attention_weights_2 = functional.softmax(omega_2 / D_OUT_KQ**0.5, dim=0)
    context_vector_2 = attention_weights_2 @ values
    steps = {"query_2": query_2, "key_2": key_2, "value_2": value_2, "keys": keys, "values": values}
    results = {"omega_24": omega_24, "omega_2": omega_2, "attention_weights_2": attention_weights_2}
    return {**found, "x_2": x_2, **steps, **results, "context_vector_2": context_vector_2}


def _projection_matrices() -> dict[str, Any]:
    import torch

    torch.manual_seed(123)
    return {
        "W_query": torch.rand(D_IN, D_OUT_KQ),
        "W_key": torch.rand(D_IN, D_OUT_KQ),
        "W_value": torch.rand(D_IN, D_OUT_V),
    }


def layer_classes() -> tuple[Any, Any, Any]:
    """Return the article's classes `SelfAttention`, `MultiHeadAttentionWrapper` and `CrossAttention`."""
    import torch
    from torch import nn

    class Projected(nn.Module):
        def __init__(self, d_in: int, d_out_kq: int, d_out_v: int) -> None:
            super().__init__()
            self.d_out_kq = d_out_kq
            self.W_query = nn.Parameter(torch.rand(d_in, d_out_kq))
            self.W_key = nn.Parameter(torch.rand(d_in, d_out_kq))
            self.W_value = nn.Parameter(torch.rand(d_in, d_out_v))

        def attend(self, x_1: Any, x_2: Any) -> Any:
            keys, queries, values = x_2 @ self.W_key, x_1 @ self.W_query, x_2 @ self.W_value
            attn_weights = torch.softmax(queries @ keys.T / self.d_out_kq**0.5, dim=-1)
            return attn_weights @ values

    class SelfAttention(Projected):
        def forward(self, x: Any) -> Any:
            return self.attend(x, x)

    class MultiHeadAttentionWrapper(nn.Module):
        def __init__(self, d_in: int, d_out_kq: int, d_out_v: int, num_heads: int) -> None:
            super().__init__()
            self.heads = nn.ModuleList([SelfAttention(d_in, d_out_kq, d_out_v) for _ in range(num_heads)])

        def forward(self, x: Any) -> Any:
            return torch.cat([head(x) for head in self.heads], dim=-1)

    class CrossAttention(Projected):
        def forward(self, x_1: Any, x_2: Any) -> Any:
            return self.attend(x_1, x_2)

    return SelfAttention, MultiHeadAttentionWrapper, CrossAttention


def _layers(embedded_sentence: Any) -> dict[str, Any]:
    import torch

    self_attention, multi_head, cross_attention = layer_classes()
    sizes = {
        "self_attention.": (self_attention, (D_IN, D_OUT_KQ, D_OUT_V)),
        "one_dimensional.": (self_attention, (D_IN, D_OUT_KQ, 1)),
        "multi_head.": (multi_head, (D_IN, D_OUT_KQ, 1, NUM_HEADS)),
    }
    found: dict[str, Any] = {}
    for prefix, (layer, arguments) in sizes.items():
        torch.manual_seed(123)
        made = layer(*arguments)
        found |= _named(prefix, made.state_dict(), context_vecs=made(embedded_sentence))
    torch.manual_seed(123)
    crossattn = cross_attention(D_IN, D_OUT_KQ, D_OUT_V)
    second_input = torch.rand(SECOND_LENGTH, D_IN)
    context_vectors = crossattn(embedded_sentence, second_input)
    return found | _named("cross.", crossattn.state_dict(), second_input=second_input, context_vectors=context_vectors)


def _causal(x: Any) -> dict[str, Any]:
    import torch

    matrices = _projection_matrices()
    keys, queries, values = x @ matrices["W_key"], x @ matrices["W_query"], x @ matrices["W_value"]
    attn_scores = queries @ keys.T
    attn_weights = torch.softmax(attn_scores / D_OUT_KQ**0.5, dim=1)
    block_size = attn_scores.shape[0]
    mask_simple = torch.tril(torch.ones(block_size, block_size))
    masked_simple = attn_weights * mask_simple
    row_sums = masked_simple.sum(dim=1, keepdim=True)
    masked_simple_norm = masked_simple / row_sums
    mask = torch.triu(torch.ones(block_size, block_size), diagonal=1)
    masked = attn_scores.masked_fill(mask.bool(), -torch.inf)
    masked_weights = torch.softmax(masked / D_OUT_KQ**0.5, dim=1)
    scores = {
        "queries": queries,
        "keys": keys,
        "values": values,
        "attn_scores": attn_scores,
        "attn_weights": attn_weights,
    }
    first = {"mask_simple": mask_simple, "masked_simple": masked_simple, "row_sums": row_sums}
    second = {
        "masked_simple_norm": masked_simple_norm,
        "mask": mask,
        "masked": masked,
        "masked_attn_weights": masked_weights,
    }
    return _named("causal.", {**matrices, **scores, **first, **second})


def _named(prefix: str, tensors: Any, **more: Any) -> dict[str, Any]:
    return {prefix + name: tensor for name, tensor in {**tensors, **more}.items()}
