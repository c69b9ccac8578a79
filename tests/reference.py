"""Independent references: NumPy and the standard library alone, straight from the definitions."""

import math

import numpy as np


def rotate(x, positions, base=10_000.0, pairing="half", rotary_dim=None, stretch=1.0):
    """Rotate ``x (..., seq, head_dim)`` pair by pair, in Python floats."""
    x = np.asarray(x, dtype="float64")
    out = x.copy()
    d = x.shape[-1] if rotary_dim is None else rotary_dim
    for t, position in enumerate(positions):
        for i in range(d // 2):
            angle = float(position) / stretch * base ** (-2 * i / d)
            a, b = (i, i + d // 2) if pairing == "half" else (2 * i, 2 * i + 1)
            c, s = math.cos(angle), math.sin(angle)
            out[..., t, a] = x[..., t, a] * c - x[..., t, b] * s
            out[..., t, b] = x[..., t, b] * c + x[..., t, a] * s
    return out


def rms_norm(x, weight=None, epsilon=1e-6):
    """Divide by the root mean square, in float64."""
    x = np.asarray(x, dtype="float64")
    out = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon)
    return out if weight is None else out * np.asarray(weight, dtype="float64")


def visible_keys(i, sinks, window):
    """Return the positions that a query at position ``i`` sees."""
    return [j for j in range(i + 1) if j < sinks or i - j < window]


def stream_attention(q, k, v, sinks, window, positions="cache", base=10_000.0, pairing="half", scale=None):
    """
    Attend as StreamingLLM defines it, keeping every key.

    ``q (n_head, seq, head_dim)``, ``k`` and ``v (n_kv_head, seq, head_dim)``, none rotated. For each query
    the visible keys are gathered, numbered (inside the cache, or by their true positions), and rotated.
    """
    q, k, v = (np.asarray(x, dtype="float64") for x in (q, k, v))
    n_head, seq, d = q.shape
    group = n_head // k.shape[0]
    scale = 1 / math.sqrt(d) if scale is None else scale
    out = np.zeros((n_head, seq, v.shape[-1]))
    for i in range(seq):
        seen = visible_keys(i, sinks, window)
        numbers = seen if positions == "absolute" else list(range(len(seen)))
        for h in range(n_head):
            query = rotate(q[h, i][None], [numbers[-1]], base, pairing)[0]
            keys = rotate(k[h // group][seen], numbers, base, pairing)
            scores = keys @ query * scale
            weights = np.exp(scores - scores.max())
            out[h, i] = (weights / weights.sum()) @ v[h // group][seen]
    return out
