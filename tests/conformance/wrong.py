"""One-line wrong attentions, one a convention, and a right one. Each must fail and be named by the runner."""

import numpy as np


def softmax(scores, axis=-1, base=np.e):
    with np.errstate(invalid="ignore", divide="ignore"):
        powers = base ** (scores - np.max(scores, axis=axis, keepdims=True, initial=-1e9))
        return powers / powers.sum(axis=axis, keepdims=True)


def logits(query, key, mask=None, scale=None, fill=-np.inf):
    scores = query @ np.swapaxes(key, -1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    return scores if mask is None else np.where(mask, scores, np.asarray(fill, scores.dtype))


def right(query, key, value, *, mask=None, scale=None):
    return softmax(logits(query, key, mask, scale)) @ value


def no_scale(query, key, value, *, mask=None):
    return softmax(logits(query, key, mask, 1.0)) @ value


def scale_by_depth(query, key, value, *, mask=None):
    return softmax(logits(query, key, mask, 1.0 / query.shape[-1])) @ value


def base_two(query, key, value, *, mask=None):
    return softmax(logits(query, key, mask), base=2.0) @ value


def no_softmax(query, key, value, *, mask=None):
    return logits(query, key, mask, fill=0.0) @ value


def sigmoid(query, key, value, *, mask=None):
    return 1 / (1 + np.exp(-logits(query, key, mask))) @ value


def softmax_over_queries(query, key, value, *, mask=None):
    return softmax(logits(query, key, mask), axis=-2) @ value


def mean_of_values(query, key, value, *, mask=None):
    return np.broadcast_to(value.mean(-2, keepdims=True), (*query.shape[:-1], value.shape[-1]))


def roles_swapped(query, key, value, *, mask=None):
    return softmax(logits(key, query, mask)) @ value


def mask_ignored(query, key, value, *, mask=None):
    return softmax(logits(query, key)) @ value


def mask_inverted(query, key, value, *, mask=None):
    return softmax(logits(query, key, None if mask is None else ~mask)) @ value


def mask_inverted_safe(query, key, value, *, mask=None):
    return np.nan_to_num(softmax(logits(query, key, None if mask is None else ~mask))) @ value


def mask_inverted_finite(query, key, value, *, mask=None):
    return softmax(logits(query, key, None if mask is None else ~mask, fill=-1e9)) @ value


def mask_zero_fill(query, key, value, *, mask=None):
    return softmax(logits(query, key, mask, fill=0.0)) @ value


def mask_without_renormalising(query, key, value, *, mask=None):
    return softmax(logits(query, key)) * (1 if mask is None else mask) @ value


def mask_above_for_below(query, key, value, *, mask=None):
    return softmax(logits(query, key, None if mask is None else np.swapaxes(mask, -1, -2))) @ value


def mask_without_self(query, key, value, *, mask=None):
    return softmax(logits(query, key, None if mask is None else np.tril(mask, -1))) @ value


def always_causal(query, key, value, *, mask=None):
    return softmax(logits(query, key, np.tri(query.shape[-2], key.shape[-2], dtype=bool))) @ value


def heads_reversed(query, key, value, *, mask=None):
    return right(query, key, value, mask=mask)[::-1] if query.ndim == 3 else right(query, key, value, mask=mask)


def softmax_over_heads(query, key, value, *, mask=None):
    return softmax(logits(query, key, mask), axis=-3 if query.ndim == 3 else -1) @ value


def base_two_lse(query, key, value, *, mask=None):
    scores = logits(query, key, mask)
    return {"out": softmax(scores) @ value, "lse": np.log2(np.exp(scores).sum(-1))}


def first_row_nan(query, key, value, *, mask=None):
    out = right(query, key, value, mask=mask)
    out[..., 0, :] = np.nan
    return out


def no_mask_taken(query, key, value):
    return right(query, key, value)


NAMED = {
    "no_scale": "scale=1",
    "scale_by_depth": "scale=1/D",
    "base_two": "softmax=base_2",
    "no_softmax": "softmax=none",
    "sigmoid": "softmax=sigmoid",
    "softmax_over_queries": "softmax=over_queries",
    "mean_of_values": "out=mean_of_v",
    "roles_swapped": "roles=query_key_swapped",
    "mask_ignored": "mask=none",
    "mask_inverted": "mask=inverted,empty_row=nan",
    "mask_inverted_safe": "mask=inverted",
    "mask_inverted_finite": "mask=inverted,empty_row=mean_of_v",
    "mask_zero_fill": "mask=zero_fill",
    "mask_without_renormalising": "mask=without_renormalising",
    "mask_above_for_below": "causal=above_the_diagonal",
    "mask_without_self": "causal=without_self,empty_row=nan",
    "always_causal": "mask=causal",
    "heads_reversed": "heads=reversed",
    "softmax_over_heads": "softmax=over_heads",
    "base_two_lse": "lse=base_2",
}


class WrongLayers:
    """An adapter of a user's own layers; each subclass makes one mistake in them."""

    name = "wrong-layers"
    version = "0"

    def supports(self, case):
        return "" if case.op in ("SelfAttention", "MultiHeadAttentionWrapper", "CrossAttention") else "no such layer"

    def compute(self, case, dtype):
        inputs = case.inputs_as(dtype)
        x_1, x_2 = self.sources(inputs.get("x_1", inputs.get("x")), inputs.get("x_2", inputs.get("x")))
        heads = [self.head(x_1, x_2, inputs, prefix) for prefix in self.prefixes(case)]
        return {"out": self.join(heads)}

    def prefixes(self, case):
        return [f"heads.{h}." for h in range(case.parameters["num_heads"])] if "heads" in case.features else [""]

    def sources(self, x_1, x_2):
        return x_1, x_2

    def head(self, x_1, x_2, inputs, prefix):
        query, key, value = (inputs[f"{prefix}W_{name}"] for name in ("query", "key", "value"))
        return right(x_1 @ query, x_2 @ key, x_2 @ value)

    def join(self, heads):
        return np.concatenate(heads, axis=-1)


class HeadsReversed(WrongLayers):
    def join(self, heads):
        return np.concatenate(heads[::-1], axis=-1)


class HeadsInterleaved(WrongLayers):
    def join(self, heads):
        return np.stack(heads, axis=-1).reshape(heads[0].shape[0], -1)


class HeadsNotTransposed(WrongLayers):
    def join(self, heads):
        return np.stack(heads).reshape(heads[0].shape[0], -1)


class InputsExchanged(WrongLayers):
    def sources(self, x_1, x_2):
        return x_2, x_1


class FirstInputOnly(WrongLayers):
    def sources(self, x_1, x_2):
        return x_1, x_1


class LinearLayout(WrongLayers):
    def head(self, x_1, x_2, inputs, prefix):
        reread = {name: array.reshape(array.shape[::-1]).T for name, array in inputs.items() if "W_" in name}
        return super().head(x_1, x_2, reread, prefix)


NAMED_LAYERS = {
    "HeadsReversed": "heads=reversed",
    "HeadsInterleaved": "heads=interleaved",
    "HeadsNotTransposed": "heads=not_transposed",
    "InputsExchanged": "inputs=exchanged",
    "FirstInputOnly": "inputs=first_only",
    "LinearLayout": "weights=output_rows",
}
