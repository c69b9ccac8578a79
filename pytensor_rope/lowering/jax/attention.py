"""Attention over a sink cache on JAX."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from pytensor.link.jax.dispatch.basic import jax_funcify

from pytensor_rope.attention import SinkAttention
from pytensor_rope.base import computation_dtype, pinned

# Below every score: finite, so that subtracting a row's maximum from it gives no NaN.
_HIDDEN = -1e30


@jax_funcify.register(SinkAttention)
def _(op: SinkAttention, **kwargs: Any) -> Callable[..., Any]:
    def attend(q: Any, q_sink: Any, k: Any, v: Any, positions: Any, *cache: Any) -> Any:
        """
        Attend as the op's inner graph does, but to the cache and to the chunk without joining the two.

        Copies of what is read would take longer than all that is computed from it.
        """
        _check_shapes(q, q_sink, k, v, positions, cache)
        if q.size == 0:
            return q
        batch, n_head, seq, head_dim = q.shape
        n_kv_head = k.shape[1]
        dtype = computation_dtype(str(q.dtype))
        scale = pinned(1 / np.sqrt(head_dim) if op.scale is None else op.scale, dtype)
        by_kv_head = (batch, n_kv_head, n_head // n_kv_head * seq, head_dim)
        queries, sink_queries = ((x.astype(dtype) * scale).reshape(by_kv_head) for x in (q, q_sink))

        chunk_scores = _chunk_scores(queries, sink_queries, k.astype(dtype), positions, op.sinks)
        runs = [(chunk_scores, v, positions)]
        if cache and cache[0].shape[2]:
            keys, values, slot_positions = cache
            cache_scores = _cache_scores(queries, sink_queries, keys.astype(dtype), op.sinks, seq)
            runs.insert(0, (cache_scores, values, slot_positions))

        by_head = (batch, n_kv_head, n_head // n_kv_head, seq, -1)
        visible = [_visible(op, positions, of_keys)[:, None, None] for _, _, of_keys in runs]
        shown = [
            jnp.where(seen, _capped(scores, op.softcap).reshape(by_head), pinned(_HIDDEN, dtype))
            for seen, (scores, _, _) in zip(visible, runs, strict=True)
        ]
        top = shown[0].max(axis=-1, keepdims=True)
        for scores in shown[1:]:
            top = jnp.maximum(top, scores.max(axis=-1, keepdims=True))
        weights = [
            jnp.where(seen, jnp.exp(scores - top), pinned(0, dtype))
            for seen, scores in zip(visible, shown, strict=True)
        ]
        total = sum(of_run.sum(axis=-1, dtype=dtype) for of_run in weights)
        attended: Any = sum(
            jnp.einsum("bhqk,bhkd->bhqd", of_run.reshape((*by_kv_head[:3], -1)), values.astype(dtype))
            for of_run, (_, values, _) in zip(weights, runs, strict=True)
        )
        # The largest weight of a row that sees anything is 1, so only an empty row's total is below 1.
        attended = attended / jnp.maximum(total, pinned(1, dtype)).reshape((*by_kv_head[:3], 1))
        return attended.reshape(q.shape).astype(q.dtype)

    return attend


def _cache_scores(queries: Any, sink_queries: Any, keys: Any, sinks: int, seq: int) -> Any:
    """Score the cached keys, whose first slots are the sinks."""
    if not sinks:
        return _scores(queries, keys)
    if seq > 1:
        sink_scores = _scores(sink_queries, keys[:, :, :sinks])
        return _scores(queries, keys).at[..., :sinks].set(sink_scores)
    # A second product of few rows costs nothing beside reading the keys.
    n_row = queries.shape[2]
    both = _scores(jnp.concatenate([queries, sink_queries], axis=2), keys)
    is_sink = np.arange(keys.shape[2]) < sinks
    return jnp.where(is_sink, both[:, :, n_row:], both[:, :, :n_row])


def _chunk_scores(queries: Any, sink_queries: Any, keys: Any, positions: Any, sinks: int) -> Any:
    """Score the chunk's own keys, of which only the first few rows can be sinks."""
    scores = _scores(queries, keys)
    # A single token sees of its chunk only itself, at distance 0 either way.
    if not sinks or keys.shape[2] == 1:
        return scores
    sink_scores = _scores(sink_queries, keys[:, :, :sinks])
    is_sink = positions[:, None, None, :sinks] < sinks
    return scores.at[..., :sinks].set(jnp.where(is_sink, sink_scores, scores[..., :sinks]))


def _scores(queries: Any, keys: Any) -> Any:
    return jnp.einsum("bhqd,bhkd->bhqk", queries, keys)


def _capped(scores: Any, softcap: float | None) -> Any:
    if softcap is None:
        return scores
    bound = pinned(softcap, str(scores.dtype))
    return bound * jnp.tanh(scores / bound)


def _visible(op: SinkAttention, query_positions: Any, key_positions: Any) -> Any:
    """Return which query sees which key, ``(batch, seq, keys)``."""
    i, j = query_positions[:, :, None], key_positions[:, None, :]
    visible = (j >= 0) & (j <= i)
    if op.window is None:
        return visible
    return visible & ((i - j < op.window) | (j < op.sinks))


def _check_shapes(q: Any, q_sink: Any, k: Any, v: Any, positions: Any, cache: tuple[Any, ...]) -> None:
    """Refuse arrays whose shapes don't fit, which might broadcast."""
    batch, n_head, seq, head_dim = q.shape
    n_kv_head = k.shape[1]
    if n_kv_head == 0 or n_head % n_kv_head:
        raise ValueError(f"k's heads must divide q's; got {n_kv_head} and {n_head}.")
    rows = (batch, n_kv_head, seq, head_dim)
    expected = [("q_sink", q_sink, q.shape), ("k", k, rows), ("v", v, rows), ("positions", positions, (batch, seq))]
    if cache:
        keys, values, slot_positions = cache
        slots = keys.shape[2]
        cached = (batch, n_kv_head, slots, head_dim)
        expected += [
            ("the cached keys", keys, cached),
            ("the cached values", values, cached),
            ("the slots' positions", slot_positions, (batch, slots)),
        ]
    for name, x, shape in expected:
        if tuple(x.shape) != shape:
            raise ValueError(f"{name} must be {shape}, to fit q and k; got {tuple(x.shape)}.")
