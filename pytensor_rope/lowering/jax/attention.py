"""Attention over a sink cache on JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.link.jax.dispatch.basic import jax_funcify

from pytensor_rope.attention import HIDDEN, SinkAttention, check_shapes
from pytensor_rope.base import computation_dtype, pinned

# Parts of the cache that attention of a chunk is compiled for: it takes the smallest that holds all tokens.
_PARTS = (0, 1 / 4, 1 / 2, 1)


@jax_funcify.register(SinkAttention)
def _(op: SinkAttention, **kwargs: Any) -> Callable[..., Any]:
    def attend(q: Any, q_sink: Any, k: Any, v: Any, positions: Any, *cache: Any) -> Any:
        check_shapes(*(x.shape for x in (q, q_sink, k, v, positions, *cache)))
        if q.size == 0:
            return q
        chunk = (q, q_sink, k, v, positions)
        if not cache or q.shape[2] == 1:
            return attend_to(*chunk, *cache)
        keys, values, slot_positions = cache
        slots = keys.shape[2]
        ends = np.unique([int(np.ceil(part * slots)) for part in _PARTS]).astype("int32")
        numbers = np.arange(1, slots + 1, dtype="int32")
        used = jnp.where(slot_positions >= 0, numbers, np.int32(0)).max(initial=0)

        def of_part(end: int) -> Callable[..., Any]:
            return lambda chunk, keys, values, slot_positions: attend_to(
                *chunk, keys[:, :, :end], values[:, :, :end], slot_positions[:, :end]
            )

        parts = [of_part(int(end)) for end in ends]
        return jax.lax.switch((used > ends).sum(dtype="int32"), parts, chunk, keys, values, slot_positions)

    def attend_to(q: Any, q_sink: Any, k: Any, v: Any, positions: Any, *cache: Any) -> Any:
        """
        Attend as the op's inner graph does, but to the cache and to the chunk without joining the two.

        Copies of what is read would take longer than all that is computed from it.
        """
        batch, n_head, seq, head_dim = q.shape
        n_kv_head = k.shape[1]
        group = n_head // n_kv_head
        dtype = computation_dtype(str(q.dtype))
        scale = pinned(1 / np.sqrt(head_dim) if op.scale is None else op.scale, dtype)
        by_kv_head = (batch, n_kv_head, group * seq, head_dim)
        queries, sink_queries = ((x.astype(dtype) * scale).reshape(by_kv_head) for x in (q, q_sink))

        scores = [_chunk_scores(queries, sink_queries, k.astype(dtype), positions, op.sinks)]
        values, key_positions = [v], [positions]
        if cache and cache[0].shape[2]:
            keys, cached_values, slot_positions = cache
            scores.append(_cache_scores(queries, sink_queries, keys.astype(dtype), op.sinks, seq))
            values.append(cached_values)
            key_positions.append(slot_positions)

        visible = [_visible(op, positions, of_run, group) for of_run in key_positions]
        capped = [_capped(of_run, op.softcap) for of_run in scores]
        weights, total = _masked_exponentials(capped, visible, dtype)
        attended: Any = sum(
            jnp.einsum("bhqk,bhkd->bhqd", of_run, rows.astype(dtype))
            for of_run, rows in zip(weights, values, strict=True)
        )
        # The largest weight of a row that sees anything is 1, so only an empty row's total is below 1.
        attended = attended / jnp.maximum(total, pinned(1, dtype))
        return attended.reshape(q.shape).astype(q.dtype)

    return attend


def _cache_scores(queries: Any, sink_queries: Any, keys: Any, sinks: int, seq: int) -> Any:
    """Score the cached keys, whose first slots are the sinks."""
    if not sinks:
        return _scores(queries, keys)
    is_sink = np.arange(keys.shape[2]) < sinks
    if seq > 1:
        return _with_sinks(_scores(queries, keys), _scores(sink_queries, keys[:, :, :sinks]), is_sink)
    # A second product of few rows costs nothing beside reading the keys.
    n_row = queries.shape[2]
    both = _scores(jnp.concatenate([queries, sink_queries], axis=2), keys)
    return jnp.where(is_sink, both[:, :, n_row:], both[:, :, :n_row])


def _chunk_scores(queries: Any, sink_queries: Any, keys: Any, positions: Any, sinks: int) -> Any:
    """Score the chunk's own keys, of which only the first few rows can be sinks."""
    if keys.shape[2] == 1:
        # A single token sees of its chunk only itself, at distance 0 either way.
        return (queries * keys).sum(axis=-1, keepdims=True, dtype=queries.dtype)
    scores = _scores(queries, keys)
    if not sinks:
        return scores
    is_sink = (positions < sinks)[:, None, None] & (np.arange(keys.shape[2]) < sinks)
    return _with_sinks(scores, _scores(sink_queries, keys[:, :, :sinks]), is_sink)


def _with_sinks(scores: Any, sink_scores: Any, is_sink: Any) -> Any:
    """Put the scores of the first keys, as sinks, where they are sinks."""
    surplus = scores.shape[-1] - sink_scores.shape[-1]
    padding = [(0, 0, 0), (0, 0, 0), (0, 0, 0), (0, surplus, 0)]
    return jnp.where(is_sink, jax.lax.pad(sink_scores, pinned(0, str(scores.dtype)), padding), scores)


def _scores(queries: Any, keys: Any) -> Any:
    return jnp.einsum("bhqd,bhkd->bhqk", queries, keys)


def _capped(scores: Any, softcap: float | None) -> Any:
    if softcap is None:
        return scores
    bound = pinned(softcap, str(scores.dtype))
    return bound * jnp.tanh(scores / bound)


def _masked_exponentials(scores: list[Any], visible: list[Any], dtype: str) -> tuple[list[Any], Any]:
    """Return the softmax of runs of scores before it is divided by its total, and the total."""
    hidden = pinned(HIDDEN, dtype)
    shown = [jnp.where(seen, of_run, hidden) for seen, of_run in zip(visible, scores, strict=True)]
    # XLA would compute them again for each use.
    shown = jax.lax.optimization_barrier(shown)
    # Just above what is hidden, so that a row that sees nothing has no weights.
    top = np.nextafter(hidden, pinned(0, dtype))
    for of_run in shown:
        top = jnp.maximum(top, of_run.max(axis=-1, keepdims=True))
    weights = [jnp.exp(of_run - top) for of_run in shown]
    return weights, sum(of_run.sum(axis=-1, keepdims=True, dtype=dtype) for of_run in weights)


def _visible(op: SinkAttention, query_positions: Any, key_positions: Any, group: int) -> Any:
    """Return which query sees which key, ``(batch, 1, group * seq, keys)``."""
    i, j = query_positions[:, None, :, None], key_positions[:, None, None, :]
    visible = (j >= 0) & (j <= i)
    if op.window is not None:
        visible = visible & ((i - j < op.window) | (j < op.sinks))
    return jnp.tile(visible, (1, 1, group, 1)) if visible.shape[2] > 1 else visible
