"""Attention over a sink cache, and over the chunk that comes after it."""

from collections.abc import Sequence
from typing import Any, cast, override

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.tensor.shape import specify_shape

from pytensor_rope.base import LayerOp, Tensor, computation_dtype, pinned, sizes

# Below every score: finite, so that subtracting a row's maximum from it gives no NaN.
HIDDEN = -1e30

type Shape = tuple[int | None, ...]


class SinkAttention(LayerOp):
    r"""
    Softmax attention of a chunk of queries to cached keys and to the chunk's own.

    A query at position i sees a key at position j if

    .. math::

        0 \le j \le i \quad\text{and}\quad (j < S \ \text{or}\ i - j < W),

    with S sinks and a window of W. Sinks are scored against ``q_sink``, other keys against ``q``: the same
    queries, turned to the positions from which each kind of key is to be seen. A row that sees nothing
    yields 0. With a ``softcap`` c, scores x are squeezed into :math:`c \tanh(x / c)` first.

    Inputs are q and q_sink ``(batch, n_head, seq, head_dim)``; k and v ``(batch, n_kv_head, seq,
    head_dim)``; their positions ``(batch, seq)``, negative for padding; and with a cache its keys and
    values ``(batch, n_kv_head, slots, head_dim)``, sinks first, and the positions its slots hold
    ``(batch, slots)``, negative for none. The output is like q. A ``window`` of None hides nothing.
    """

    __props__ = ("sinks", "window", "scale", "softcap")

    sinks: int
    window: int | None
    scale: float | None
    softcap: float | None

    @override
    def build_inner_graph(self, *inputs: Tensor) -> list[Any]:
        q, q_sink, k, v, positions, *cache = inputs
        dtype = computation_dtype(q.dtype)
        batch, n_head, seq, head_dim = sizes(q)
        n_kv_head = sizes(k)[1]
        by_kv_head = (batch, n_kv_head, n_head // n_kv_head * seq, head_dim)
        scale = self._scale(q, dtype)
        queries, sink_queries = ((x.astype(dtype) * scale).reshape(by_kv_head) for x in (q, q_sink))

        scores = [self._chunk_scores(queries, sink_queries, k.astype(dtype), positions)]
        values, key_positions = [v], [positions]
        if cache:
            keys, cached_values, slot_positions = cache
            _check_cache(k.type.shape, keys.type.shape, cached_values.type.shape)
            scores.insert(0, self._cache_scores(queries, sink_queries, keys.astype(dtype)))
            values.insert(0, cached_values)
            key_positions.insert(0, slot_positions)

        visible = self._visible(positions, _join(key_positions))
        n_key = sum(sizes(x)[1] for x in key_positions)
        by_head = (batch, n_kv_head, n_head // n_kv_head, seq, n_key)
        capped = _capped(_join(scores), self.softcap)
        weights = _masked_softmax(capped.reshape(by_head), visible[:, None, None])
        weights = weights.reshape((*by_kv_head[:-1], n_key))
        attended = _weighted_sum(weights, [x.astype(dtype) for x in values])
        out = attended.reshape((batch, n_head, seq, head_dim)).astype(q.dtype)
        return [specify_shape(out, q.type.shape)]

    @override
    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        return [shapes[0]]

    def _scale(self, q: Tensor, dtype: str) -> Any:
        if self.scale is not None:
            return pinned(self.scale, dtype)
        head_dim = q.type.shape[-1]
        if head_dim is not None:
            return pinned(1 / np.sqrt(head_dim), dtype)
        return pinned(1, dtype) / pt.sqrt(q.shape[-1].astype(dtype))

    def _cache_scores(self, queries: Tensor, sink_queries: Tensor, keys: Tensor) -> Tensor:
        """Score the cached keys, whose first slots are the sinks."""
        scores: Tensor = queries @ keys.swapaxes(-1, -2)
        if not self.sinks:
            return scores
        sink_scores = sink_queries @ keys[:, :, : self.sinks].swapaxes(-1, -2)
        return _join([sink_scores, scores[..., self.sinks :]])

    def _chunk_scores(self, queries: Tensor, sink_queries: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        """Score the chunk's own keys, of which only the first few rows can be sinks."""
        scores: Tensor = queries @ keys.swapaxes(-1, -2)
        # A single token sees of its chunk only itself, at distance 0 either way.
        if not self.sinks or keys.type.shape[2] == 1:
            return scores
        sink_scores = sink_queries @ keys[:, :, : self.sinks].swapaxes(-1, -2)
        is_sink = pt.lt(positions[:, None, None, : self.sinks], pinned(self.sinks, "int32"))
        return _join([pt.where(is_sink, sink_scores, scores[..., : self.sinks]), scores[..., self.sinks :]])

    def _visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return which query sees which key, ``(batch, seq, keys)``."""
        i, j = query_positions[:, :, None], key_positions[:, None, :]
        visible = pt.ge(j, pinned(0, "int32")) & pt.le(j, i)
        if self.window is not None:
            near = pt.lt(i - j, pinned(self.window, "int32"))
            visible = visible & (near | pt.lt(j, pinned(self.sinks, "int32")))
        return cast(Tensor, visible)


def sink_attention(
    q: Tensor,
    q_sink: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    *cache: Tensor,
    sinks: int,
    window: int | None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attend to cached keys and to a chunk's own; see :class:`SinkAttention`."""
    op = SinkAttention(sinks=sinks, window=window, scale=scale, softcap=softcap)
    return cast(Tensor, op(q, q_sink, k, v, positions, *cache))


def _check_cache(of_chunk: Shape, *of_cache: Shape) -> None:
    """Refuse a cache of other rows, heads or sizes than the chunk's, which might broadcast."""
    for shape in of_cache:
        for axis in (0, 1, 3):
            if None not in (of_chunk[axis], shape[axis]) and of_chunk[axis] != shape[axis]:
                raise ValueError(
                    f"The cache must have the chunk's batch, heads and head_dim; got {shape} for keys of "
                    f"{of_chunk}."
                )


def _join(parts: list[Tensor]) -> Tensor:
    return cast(Tensor, pt.concatenate(parts, axis=-1)) if len(parts) > 1 else parts[0]


def _capped(scores: Tensor, softcap: float | None) -> Tensor:
    if softcap is None:
        return scores
    bound = pinned(softcap, scores.dtype)
    return cast(Tensor, bound * pt.tanh(scores / bound))


def _masked_softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Return the softmax over the last axis of what is visible, 0 where nothing is."""
    dtype = scores.dtype
    shown = pt.where(visible, scores, pinned(HIDDEN, dtype))
    weights = pt.where(visible, pt.exp(shown - shown.max(axis=-1, keepdims=True)), pinned(0, dtype))
    total = weights.sum(axis=-1, keepdims=True, dtype=dtype, acc_dtype=dtype)
    # The largest weight of a row that sees anything is 1, so only an empty row's total is below 1.
    return cast(Tensor, weights / pt.maximum(total, pinned(1, dtype)))


def _weighted_sum(weights: Tensor, values: list[Tensor]) -> Tensor:
    """Multiply each run of weights with its values, and add up."""
    if len(values) == 1:
        return cast(Tensor, weights @ values[0])
    cached, chunk = values
    slots = sizes(cached)[2]
    return cast(Tensor, weights[..., :slots] @ cached + weights[..., slots:] @ chunk)


def check_shapes(
    q: tuple[int, ...],
    q_sink: tuple[int, ...],
    k: tuple[int, ...],
    v: tuple[int, ...],
    positions: tuple[int, ...],
    *cache: tuple[int, ...],
) -> None:
    """Refuse shapes of :class:`SinkAttention`'s inputs that don't fit, which might broadcast."""
    batch, n_head, seq, head_dim = q
    n_kv_head = k[1]
    if n_kv_head == 0 or n_head % n_kv_head:
        raise ValueError(f"k's heads must divide q's; got {n_kv_head} and {n_head}.")
    rows = (batch, n_kv_head, seq, head_dim)
    expected = [("q_sink", q_sink, q), ("k", k, rows), ("v", v, rows), ("positions", positions, (batch, seq))]
    if cache:
        keys, values, slot_positions = cache
        cached = (batch, n_kv_head, keys[2], head_dim)
        expected += [
            ("the cached keys", keys, cached),
            ("the cached values", values, cached),
            ("the slots' positions", slot_positions, (batch, keys[2])),
        ]
    for name, shape, wanted in expected:
        if tuple(shape) != tuple(wanted):
            raise ValueError(f"{name} must be {tuple(wanted)}, to fit q and k; got {tuple(shape)}.")
