"""
Independent references, straight from the definitions.

NumPy, mpmath and the standard library alone: nothing here imports PyTensor or this package.
"""

import math
from functools import cache

import frequency_reference
import mpmath
import numpy as np


def inverse_frequency(i, rotary_dim, base=10_000.0, scaling="none", factor=1.0):
    """Return the inverse frequency of pair ``i``, an mpf."""
    if scaling == "none":
        return frequency_reference.table(rotary_dim, base)[i]
    return frequency_reference.table(rotary_dim, base, scaling, factor=factor)[i]


@cache
def cos_sin(position, i, rotary_dim, base=10_000.0, scaling="none", factor=1.0):
    """Return cosine and sine of one angle, each correctly rounded to float64."""
    with mpmath.workdps(60):
        angle = mpmath.mpf(position) * inverse_frequency(i, rotary_dim, base, scaling, factor)
        return float(mpmath.cos(angle)), float(mpmath.sin(angle))


def cos_sin_table(positions, rotary_dim, **scheme):
    """Return cosines and sines, each ``(position, rotary_dim // 2)``."""
    rows = [
        [cos_sin(position, i, rotary_dim, **scheme) for i in range(rotary_dim // 2)]
        for position in np.asarray(positions).tolist()
    ]
    table = np.array(rows)
    return table[..., 0], table[..., 1]


def rotate(x, positions, pairing="half", rotary_dim=None, thetas=None, magnitude=1.0, decay=None, **scheme):
    """
    Rotate ``x (..., seq, head_dim)`` by ``positions (seq,)``, pair by pair.

    ``thetas`` gives the inverse frequencies in place of a scheme; ``magnitude`` multiplies what is rotated,
    and ``decay`` does with its power of the position, one a pair.
    """
    x = np.asarray(x, dtype="float64")
    out = x.copy()
    d = x.shape[-1] if rotary_dim is None else rotary_dim
    for t, position in enumerate(np.asarray(positions).tolist()):
        for i in range(d // 2):
            a, b = (i, i + d // 2) if pairing == "half" else (2 * i, 2 * i + 1)
            if thetas is None:
                c, s = cos_sin(position, i, d, **scheme)
            else:
                c, s = math.cos(position * thetas[i]), math.sin(position * thetas[i])
            factor = magnitude if decay is None else magnitude * decay[i] ** position
            c, s = factor * c, factor * s
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


def number_keys(seen, sinks, window, positions):
    """Return the numbers that rotate the visible keys, the last of which is the query's."""
    if positions == "cache":
        return list(range(len(seen)))
    if positions == "absolute":
        return list(seen)
    # ExecuTorch's: from the sinks on, around a ring of two windows.
    return [j if j < sinks else sinks + (j - sinks) % (2 * window) for j in seen]


def stream_attention(
    q, k, v, sinks, window, positions="cache", scale=None, first=0, at_length=None, **rotation
):
    """
    Attend as StreamingLLM defines it, keeping every key.

    ``q (n_head, seq, head_dim)``, ``k`` and ``v (n_kv_head, seq, head_dim)``, none rotated. For each query
    from the ``first`` on, the visible keys are gathered, numbered as ``positions`` says, and rotated.
    ``at_length`` gives a scheme's arguments of :func:`rotate` for queries and for keys, at the length that
    the last number tells.
    """
    q, k, v = (np.asarray(x, dtype="float64") for x in (q, k, v))
    n_head, seq, d = q.shape
    group = n_head // k.shape[0]
    scale = 1 / math.sqrt(d) if scale is None else scale
    out = np.zeros((n_head, seq - first, v.shape[-1]))
    for i in range(first, seq):
        seen = visible_keys(i, sinks, window)
        numbers = number_keys(seen, sinks, window, positions)
        of_query, of_keys = ({}, {}) if at_length is None else at_length(numbers[-1] + 1)
        queries = rotate(q[:, i : i + 1], numbers[-1:], **rotation, **of_query)[:, 0]
        keys = rotate(k[:, seen], numbers, **rotation, **of_keys)
        for h in range(n_head):
            scores = keys[h // group] @ queries[h] * scale
            weights = np.exp(scores - scores.max())
            out[h, i - first] = (weights / weights.sum()) @ v[h // group][seen]
    return out


class SlotSimulation:
    """A sink cache's slots as a dict, filled by one token at a time."""

    def __init__(self, sinks, window, headroom):
        self.sinks, self.ring = sinks, window + headroom
        self.slots = {}
        self.length = 0

    def append(self):
        """Put the next token into a free slot, or into that of the oldest token that is no sink."""
        if len(self.slots) < self.sinks + self.ring:
            slot = len(self.slots)
        else:
            slot = min((held, slot) for slot, held in self.slots.items() if held >= self.sinks)[1]
        self.slots[slot] = self.length
        self.length += 1

    def positions(self):
        return [self.slots.get(slot, -1) for slot in range(self.sinks + self.ring)]


def numeric_gradient(f, x, step=1e-6):
    """Return the gradient of the scalar ``f`` at ``x``, by central differences in float64."""
    x = np.array(x, dtype="float64")
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        value = x[index]
        x[index] = value + step
        above = f(x)
        x[index] = value - step
        below = f(x)
        x[index] = value
        gradient[index] = (above - below) / (2 * step)
    return gradient
