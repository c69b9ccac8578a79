"""
The sink cache by definition: a row keeps every key, not rotated, and gathers what each query sees.

NumPy float64 and the standard library alone: nothing here imports PyTensor or this package.
"""

import math

import numpy as np
import reference


def turn(x, positions, base=10_000.0):
    """Rotate ``x (..., n, d)`` by ``positions (n,)``, the first half of each vector with the second."""
    half = x.shape[-1] // 2
    theta = base ** (-2 * np.arange(half) / x.shape[-1])
    angle = np.asarray(positions, "float64")[:, None] * theta
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class Row:
    """One row of a stream, read a token at a time."""

    def __init__(self, sinks, window, positions="cache", base=10_000.0):
        self.sinks, self.window, self.positions, self.base = sinks, window, positions, base
        self.keys, self.values = [], []

    def __len__(self):
        return len(self.keys)

    def read(self, q, k, v):
        """Attend with a token's ``q (n_head, d)``, ``k`` and ``v (n_kv_head, d)``; tell what it sees too."""
        self.keys.append(np.asarray(k, "float64"))
        self.values.append(np.asarray(v, "float64"))
        seen = reference.visible_keys(len(self) - 1, self.sinks, self.window)
        numbered = reference.number_keys(seen, self.sinks, self.window, self.positions)
        group = q.shape[0] // k.shape[0]
        keys = turn(np.stack([self.keys[j] for j in seen], axis=1), numbered, self.base)
        queries = turn(np.asarray(q, "float64")[:, None], numbered[-1:], self.base)
        scores = (np.repeat(keys, group, axis=0) * queries).sum(axis=-1) / math.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        values = np.repeat(np.stack([self.values[j] for j in seen], axis=1), group, axis=0)
        return (weights[..., None] * values).sum(axis=1), seen

    def rewind(self, n):
        kept = len(self) - n
        del self.keys[kept:], self.values[kept:]


def rewindable(length, longest, sinks, window, headroom):
    """Return how many tokens a row can take back: all until a slot was overwritten, then the headroom."""
    if longest <= sinks + window + headroom:
        return length
    return max(0, headroom - (longest - length))
