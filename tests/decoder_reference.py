"""A Llama-family decoder written out in NumPy float64, keeping every key."""

import numpy as np
import reference


def decoder_logits(weights, config, ids, sinks, window, positions="cache", at_length=None):
    """Return the logits after each of ``ids``, ``(n, vocab_size)``."""
    caches = [(sinks, window, positions)] * config.n_layer
    return decoder_logits_by_layer(weights, config, ids, caches, at_length)


def decoder_logits_by_layer(weights, config, ids, caches, at_length=None):
    """
    Return the logits after each of ``ids``; each layer has its own sinks, window and positions.

    ``at_length`` is as ``reference.stream_attention`` takes it.
    """
    weights = {name: np.asarray(value, "float64") for name, value in weights.items()}
    rotation = {"pairing": config.pairing, "rotary_dim": config.rotary_dim, "base": config.base}
    x = weights["embedding"][np.asarray(ids)]
    for i, cache in enumerate(caches):
        w = {name: weights[f"layers.{i}.{name}"] for name in LAYER}
        h = reference.rms_norm(x, w["attention_norm"], config.epsilon)
        q, k, v = (split(h @ w[name], config.head_dim) for name in ("query", "key", "value"))
        attended = reference.stream_attention(q, k, v, *cache, at_length=at_length, **rotation)
        x = x + attended.swapaxes(0, 1).reshape(len(ids), -1) @ w["output"]
        h = reference.rms_norm(x, w["feed_forward_norm"], config.epsilon)
        gate = h @ w["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["up"])) @ w["down"]
    x = reference.rms_norm(x, weights["final_norm"], config.epsilon)
    return x @ (weights["embedding"].T if config.tied else weights["head"])


LAYER = (
    *("attention_norm", "query", "key", "value", "output"),
    *("feed_forward_norm", "gate", "up", "down"),
)


def split(x, head_dim):
    """Turn ``(seq, heads * head_dim)`` into ``(heads, seq, head_dim)``."""
    return x.reshape(len(x), -1, head_dim).swapaxes(0, 1)
