"""Attention over a sink cache on MLX."""

from collections.abc import Callable
from math import e, log2
from typing import Any

import mlx.core as mx
import numpy as np
from pytensor.link.mlx.dispatch.basic import mlx_funcify

from pytensor_rope.attention import HIDDEN, SinkAttention, check_shapes
from pytensor_rope.base import computation_dtype
from pytensor_rope.lowering.mlx.generic import mlx_dtype, on_cpu
from pytensor_rope.lowering.mlx.products import product, product_by_columns


@mlx_funcify.register(SinkAttention)
def _(op: SinkAttention, **kwargs: Any) -> Callable[..., Any]:
    dtype = mlx_dtype(computation_dtype(op.input_types[0].dtype))

    def attend(q: Any, q_sink: Any, k: Any, v: Any, positions: Any, *cache: Any) -> Any:
        check_shapes(*(x.shape for x in (q, q_sink, k, v, positions, *cache)))
        if q.size == 0:
            return q
        if not cache and not op.sinks and op.softcap is None and not on_cpu():
            return _fused(op, q, k, v, positions)
        batch, n_head, seq, head_dim = q.shape
        n_kv_head = k.shape[1]
        by_kv_head = (batch, n_kv_head, n_head // n_kv_head * seq, head_dim)
        scale = _scale(op, head_dim)
        queries, sink_queries = ((x.astype(dtype) * scale).reshape(by_kv_head) for x in (q, q_sink))

        scores = [_chunk_scores(op, queries, sink_queries, k.astype(dtype), positions)]
        values, key_positions = [v.astype(dtype)], positions
        if cache:
            keys, cached_values, slot_positions = cache
            scores = [*_cache_scores(op, queries, sink_queries, keys.astype(dtype)), *scores]
            values = [cached_values.astype(dtype), *values]
            key_positions = mx.concatenate([slot_positions, positions], axis=1)

        joined = mx.concatenate(scores, axis=-1) if len(scores) > 1 else scores[0]
        if op.softcap is not None:
            joined = op.softcap * mx.tanh(joined / op.softcap)
        visible = _visible(op, positions, key_positions)[:, None, None]
        by_head = (batch, n_kv_head, n_head // n_kv_head, seq, key_positions.shape[1])
        weights, total = (
            x.reshape(*by_kv_head[:-1], x.shape[-1]) for x in _exponentials(joined.reshape(by_head), visible)
        )
        # The largest weight of a row that sees anything is 1, so only an empty row's total is below 1.
        attended = _weighted_sum(weights, values) / mx.maximum(total, 1)
        return attended.reshape(q.shape).astype(q.dtype)

    return attend


def _fused(op: SinkAttention, q: Any, k: Any, v: Any, positions: Any) -> Any:
    """Attend to a chunk alone by MLX's own kernel, which leaves open what a row gets that sees nothing."""
    visible = _visible(op, positions, positions)[:, None]
    attended = mx.fast.scaled_dot_product_attention(q, k, v, scale=_scale(op, q.shape[-1]), mask=visible)
    return mx.where(visible.any(axis=-1, keepdims=True), attended, 0).astype(q.dtype)


def _scale(op: SinkAttention, head_dim: int) -> float:
    return float(1 / np.sqrt(head_dim)) if op.scale is None else op.scale


def _cache_scores(op: SinkAttention, queries: Any, sink_queries: Any, keys: Any) -> list[Any]:
    """Score the cached keys, whose first slots are the sinks."""
    scores = product_by_columns(queries, keys.swapaxes(-1, -2))
    if not op.sinks:
        return [scores]
    sink_scores = sink_queries @ keys[:, :, : op.sinks].swapaxes(-1, -2)
    return [sink_scores, scores[..., op.sinks :]]


def _chunk_scores(op: SinkAttention, queries: Any, sink_queries: Any, keys: Any, positions: Any) -> Any:
    """Score the chunk's own keys, of which only the first few rows can be sinks."""
    scores = queries @ keys.swapaxes(-1, -2)
    # A single token sees of its chunk only itself, at distance 0 either way.
    if not op.sinks or keys.shape[2] == 1:
        return scores
    sink_scores = sink_queries @ keys[:, :, : op.sinks].swapaxes(-1, -2)
    is_sink = positions[:, None, None, : op.sinks] < op.sinks
    first = mx.where(is_sink, sink_scores, scores[..., : op.sinks])
    return mx.concatenate([first, scores[..., op.sinks :]], axis=-1)


def _visible(op: SinkAttention, query_positions: Any, key_positions: Any) -> Any:
    """Return which query sees which key, ``(batch, seq, keys)``."""
    i, j = query_positions[:, :, None], key_positions[:, None, :]
    visible = (j >= 0) & (j <= i)
    return visible if op.window is None else visible & ((i - j < op.window) | (j < op.sinks))


def _exponentials(scores: Any, visible: Any) -> tuple[Any, Any]:
    """Return the softmax's numerators over the last axis, 0 for what isn't visible, and their sums."""
    shown = mx.where(visible, scores, HIDDEN)
    below = shown - shown.max(axis=-1, keepdims=True)
    # MLX's exponential is slow on a CPU, and takes float64 in float32.
    exponentials = mx.power(2, below * log2(e)) if on_cpu() else mx.exp(below)
    weights = mx.where(visible, exponentials, 0)
    return weights, weights.sum(axis=-1, keepdims=True)


def _weighted_sum(weights: Any, values: list[Any]) -> Any:
    """Multiply each run of weights with its values, and add up."""
    if len(values) == 1:
        return weights @ values[0]
    cached, chunk = values
    slots = cached.shape[2]
    return product(weights[..., :slots], cached) + weights[..., slots:] @ chunk
