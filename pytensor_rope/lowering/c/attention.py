"""Attention over a sink cache in C."""

from typing import Any, override

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply
from pytensor.link.c.params_type import ParamsType

from pytensor_rope.attention import SinkAttention
from pytensor_rope.base import computation_dtype
from pytensor_rope.lowering.c.kernel import Kernel, register


class SinkAttentionKernel(Kernel):
    """
    Attend to the cache, if there is one, and to the chunk.

    A negative ``window`` hides nothing, and a ``softcap`` of 0 caps nothing.
    """

    __props__ = ("sinks", "window", "scale", "scaled", "softcap")
    params_type = ParamsType(
        sinks=ps.int64, window=ps.int64, scale=ps.float64, scaled=ps.bool, softcap=ps.float64
    )
    headers = ("parallel.h", "multiply.h", "exp.h", "attention.h")
    function = "sink_attention"

    def __init__(self, sinks: int, window: int, scale: float, scaled: bool, softcap: float) -> None:
        self.sinks = sinks
        self.window = window
        self.scale = scale
        self.scaled = scaled
        self.softcap = softcap

    @override
    def perform(self, node: Apply[Any], inputs: Any, output_storage: Any, params: Any = None) -> None:
        q, q_sink, k, v, positions, *cache = inputs
        key_positions, is_sink_column = positions, np.arange(k.shape[2]) < self.sinks * (k.shape[2] > 1)
        if cache:
            keys, values, slot_positions = cache
            k, v = np.concatenate([keys, k], axis=2), np.concatenate([values, v], axis=2)
            key_positions = np.concatenate([slot_positions, positions], axis=1)
            is_sink_column = np.append(np.arange(keys.shape[2]) < self.sinks, is_sink_column)
        dtype = np.dtype(computation_dtype(q.dtype.name)).type
        scale = dtype(self.scale if self.scaled else 1 / np.sqrt(q.shape[-1]))
        group = q.shape[1] // k.shape[1]
        k, v = (np.repeat(x.astype(dtype), group, axis=1) for x in (k, v))

        i, j = positions[:, None, :, None].astype("int64"), key_positions[:, None, None, :]
        is_sink = (j >= 0) & (j < self.sinks)
        visible = (j >= 0) & (j <= i)
        if self.window >= 0:
            visible &= is_sink | (i - j < self.window)
        scores, sink_scores = (x.astype(dtype) * scale @ k.swapaxes(-1, -2) for x in (q, q_sink))
        scores = np.where(is_sink & is_sink_column, sink_scores, scores)
        if self.softcap:
            scores = dtype(self.softcap) * np.tanh(scores / dtype(self.softcap))
        scores = np.where(visible, scores, -np.inf)
        highest = scores.max(axis=-1, keepdims=True, initial=np.finfo(dtype).min)
        weights = np.exp(scores - highest)
        total = weights.sum(axis=-1, keepdims=True)
        output_storage[0][0] = (weights @ v / np.where(total == 0, dtype(1), total)).astype(q.dtype)


def _lower(op: SinkAttention, node: Apply[Any]) -> list[Any] | None:
    q, q_sink, k, v, positions, *cache = node.inputs
    dtypes = {x.type.dtype for x in (q, q_sink, k, v, *cache[:2])}
    position_dtypes = {x.type.dtype for x in (positions, *cache[2:])}
    if len(dtypes) > 1 or position_dtypes != {"int32"}:
        return None
    kernel = SinkAttentionKernel(
        sinks=op.sinks,
        window=-1 if op.window is None else op.window,
        scale=0.0 if op.scale is None else op.scale,
        scaled=op.scale is not None,
        softcap=op.softcap or 0.0,
    )
    return kernel.make_node(*node.inputs).outputs


register(SinkAttention, _lower)
