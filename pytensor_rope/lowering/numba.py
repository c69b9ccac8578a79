"""Registrations with the Numba linker: one pass over the data where the generic graph takes several."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.link.numba.dispatch.basic import (
    numba_funcify_and_cache_key,
    numba_njit,
    register_funcify_and_cache_key,
)

from pytensor_rope.angles import Angles
from pytensor_rope.attention import SinkAttention
from pytensor_rope.base import LayerOp, computation_dtype
from pytensor_rope.norm import RMSNormalize, RMSNormalizeGradient
from pytensor_rope.rotate import Rotate

# Part of every cache key: raise it whenever a kernel changes.
_VERSION = 3

type _Lowered = tuple[Callable[..., Any], str | None]

_generic = numba_funcify_and_cache_key.dispatch(OpFromGraph)


def _cache_key(op: LayerOp, *others: object) -> str:
    props = [getattr(op, name) for name in op.__props__]
    return sha256(repr((type(op), props, others, _VERSION)).encode()).hexdigest()


@numba_njit
def leading(x: Any, core: Any) -> Any:
    """Return how many arrays of the last ``core`` axes there are: -1 in a shape can't tell where one is 0."""
    n = 1
    for axis in range(x.ndim - core):
        n *= x.shape[axis]
    return n


@register_funcify_and_cache_key(Angles)
def _angles(op: Angles, node: Any = None, **kwargs: Any) -> _Lowered:
    d = op.rotary_dim
    position_dtype = op.input_types[0].dtype
    if d is None or not op.counts_turns(position_dtype):
        lowered: _Lowered = _generic(op, node=node, **kwargs)
        return lowered
    n_pair = d // 2
    is_float64 = op.dtype == "float64"
    f = op.turns_of(d, bits=88 if is_float64 else 64)
    f_hi = np.array([word >> 24 if is_float64 else word for word in f], dtype="uint64")
    f_lo = np.array([word & 0xFFFFFF for word in f], dtype="uint64")

    radians = 2 * np.pi / (2**64 if is_float64 else 2**32)

    @numba_njit
    def float32_angle(magnitude: Any, i: Any) -> Any:
        phase = np.uint32((magnitude * f_hi[i]) >> np.uint64(32))
        fold = np.uint32(phase + np.uint32(2**30)) >> np.uint32(31)
        folded = np.int32(np.uint32(phase - np.uint32(fold << np.uint32(31))))
        sign = np.float32(1) - np.float32(2) * np.float32(fold)
        return np.float32(folded) * np.float32(radians), sign

    @numba_njit
    def float64_angle(magnitude: Any, i: Any) -> Any:
        phase = magnitude * f_hi[i] + ((magnitude * f_lo[i]) >> np.uint64(24))
        return np.float64(np.int64(phase)) * radians, 1.0

    angle_and_sign = float64_angle if is_float64 else float32_angle
    dtype = np.dtype(op.dtype).type

    @numba_njit
    def angles(position_ids: Any) -> Any:
        positions = np.ascontiguousarray(position_ids).reshape(-1)
        cos = np.empty((positions.size, n_pair), dtype=dtype)
        sin = np.empty((positions.size, n_pair), dtype=dtype)
        for t in range(positions.size):
            negative = positions[t] < 0
            magnitude = np.uint64(abs(np.int64(positions[t]))) if negative else np.uint64(positions[t])
            direction = dtype(-1) if negative else dtype(1)
            for i in range(n_pair):
                angle, sign = angle_and_sign(magnitude, i)
                cos[t, i] = np.cos(angle) * sign
                sin[t, i] = np.sin(angle) * sign * direction
        shape = (*position_ids.shape, n_pair)
        return cos.reshape(shape), sin.reshape(shape)

    return angles, _cache_key(op, position_dtype)


@register_funcify_and_cache_key(Rotate)
def _rotate(op: Rotate, **kwargs: Any) -> _Lowered:
    x_type, cos_type, _ = op.input_types
    step, apart = (1, None) if op.pairing == "half" else (2, 1)
    rotary_dim = op.rotary_dim
    n_lead, n_cos_lead = x_type.ndim - 2, cos_type.ndim - 2
    dtype = np.dtype(computation_dtype(x_type.dtype)).type
    out_dtype = np.dtype(x_type.dtype).type

    @numba_njit
    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        seq, d = x.shape[-2], x.shape[-1]
        n_pair = (d if rotary_dim is None else rotary_dim) // 2
        odd = rotary_dim is None and d % 2 == 1
        if odd or cos.shape[-1] != n_pair or 2 * n_pair > d or cos.shape[-2] != seq:
            raise ValueError("x and the angles it is rotated by don't fit together")
        offset = n_pair if apart is None else apart
        rows = np.ascontiguousarray(x).reshape((leading(x, 2), seq, d))
        cosines = np.ascontiguousarray(cos).reshape((leading(cos, 2), seq, n_pair))
        sines = np.ascontiguousarray(sin).reshape(cosines.shape)
        out = np.empty(rows.shape, dtype=out_dtype)
        for row in range(rows.shape[0]):
            # Which of the angles' rows this one takes: they broadcast over the leading axes.
            at, stride, rest = 0, 1, row
            for back in range(n_lead):
                size = x.shape[n_lead - 1 - back]
                angle_size = cos.shape[n_cos_lead - 1 - back] if back < n_cos_lead else 1
                if angle_size not in (1, size):
                    raise ValueError("x and the angles it is rotated by don't fit together")
                if angle_size != 1:
                    at += rest % size * stride
                stride *= angle_size
                rest //= size
            for t in range(seq):
                for i in range(n_pair):
                    first, second = dtype(rows[row, t, step * i]), dtype(rows[row, t, step * i + offset])
                    c, s = dtype(cosines[at, t, i]), dtype(sines[at, t, i])
                    out[row, t, step * i] = out_dtype(first * c - second * s)
                    out[row, t, step * i + offset] = out_dtype(second * c + first * s)
                for i in range(2 * n_pair, d):
                    out[row, t, i] = rows[row, t, i]
        return out.reshape(x.shape)

    return rotate, _cache_key(op, n_lead, n_cos_lead, x_type.dtype)


@register_funcify_and_cache_key(RMSNormalize)
def _rms_normalize(op: RMSNormalize, **kwargs: Any) -> _Lowered:
    x_type, *weight_type = op.input_types
    dtype = np.dtype(computation_dtype(x_type.dtype)).type
    x_dtype = np.dtype(x_type.dtype).type
    epsilon, offset = dtype(op.epsilon), dtype(1 if op.unit_offset else 0)

    @numba_njit
    def normalize(x: Any, weight: Any) -> Any:
        n = x.shape[-1]
        rows = np.ascontiguousarray(x).reshape((leading(x, 1), n))
        out = np.empty(rows.shape, dtype=x_dtype)
        for row in range(rows.shape[0]):
            r = reciprocal_rms(rows, row)
            for i in range(n):
                out[row, i] = x_dtype(dtype(rows[row, i]) * r * (offset + weight[i]))
        return out.reshape(x.shape)

    @numba_njit
    def reciprocal_rms(rows: Any, row: Any) -> Any:
        total = dtype(0)
        for i in range(rows.shape[1]):
            total += dtype(rows[row, i]) * dtype(rows[row, i])
        return dtype(1) / np.sqrt(total / dtype(rows.shape[1]) + epsilon)

    @numba_njit
    def scaled(x: Any, weight: Any) -> Any:
        if weight.shape[0] != x.shape[-1]:
            raise ValueError("weight must have one value a feature of x")
        return normalize(x, weight.astype(dtype))

    @numba_njit
    def unscaled(x: Any) -> Any:
        return normalize(x, np.full(x.shape[-1], dtype(1) - offset))

    return scaled if weight_type else unscaled, _cache_key(op, x_type.dtype, len(weight_type))


@register_funcify_and_cache_key(RMSNormalizeGradient)
def _rms_normalize_gradient(op: RMSNormalizeGradient, **kwargs: Any) -> _Lowered:
    _, x_type, *weight_type = op.input_types
    dtype = np.dtype(computation_dtype(x_type.dtype)).type
    x_dtype = np.dtype(x_type.dtype).type
    epsilon, offset = dtype(op.epsilon), dtype(1 if op.unit_offset else 0)

    @numba_njit
    def gradient(g: Any, x: Any, weight: Any) -> Any:
        n = x.shape[-1]
        if g.shape != x.shape or weight.shape[0] != n:
            raise ValueError("x, its weight and the gradient don't fit together")
        rows = np.ascontiguousarray(x).reshape((leading(x, 1), n))
        g_rows = np.ascontiguousarray(g).reshape(rows.shape)
        gx, gw = np.empty(rows.shape, dtype=x_dtype), np.zeros(n, dtype=dtype)
        for row in range(rows.shape[0]):
            square, along = dtype(0), dtype(0)
            for i in range(n):
                value = dtype(rows[row, i])
                square += value * value
                along += dtype(g_rows[row, i]) * (offset + weight[i]) * value
            r = dtype(1) / np.sqrt(square / dtype(n) + epsilon)
            along = along * r / dtype(n)
            for i in range(n):
                normalized = dtype(rows[row, i]) * r
                g_i = dtype(g_rows[row, i])
                gx[row, i] = x_dtype(r * (g_i * (offset + weight[i]) - normalized * along))
                gw[i] += g_i * normalized
        return gx.reshape(x.shape), gw

    if weight_type:
        w_dtype = np.dtype(weight_type[0].dtype).type

        @numba_njit
        def scaled(g: Any, x: Any, weight: Any) -> Any:
            gx, gw = gradient(g, x, weight.astype(dtype))
            return gx, gw.astype(w_dtype)

        return scaled, _cache_key(op, x_type.dtype, weight_type[0].dtype)

    @numba_njit
    def unscaled(g: Any, x: Any) -> Any:
        gx, _ = gradient(g, x, np.full(x.shape[-1], dtype(1) - offset))
        return gx

    return unscaled, _cache_key(op, x_type.dtype)


@register_funcify_and_cache_key(SinkAttention)
def _sink_attention(op: SinkAttention, **kwargs: Any) -> _Lowered:
    q_type = op.input_types[0]
    has_cache = len(op.input_types) > 5
    dtype = np.dtype(computation_dtype(q_type.dtype)).type
    q_dtype = np.dtype(q_type.dtype).type
    sinks, has_window = op.sinks, op.window is not None
    window = 0 if op.window is None else op.window
    fixed_scale = op.scale
    has_softcap, softcap = op.softcap is not None, dtype(op.softcap or 1)

    # Loops where NumPy would take slices: assigning to a slice makes Numba compile for seconds.
    @numba_njit
    def sees(i: Any, j: Any) -> Any:
        return 0 <= j <= i and (not has_window or j < sinks or i - j < window)

    @numba_njit
    def product(a: Any, b: Any) -> Any:
        return np.dot(a, b)

    @numba_njit
    def score_sinks(scores: Any, sink_queries: Any, keys: Any, key_positions: Any) -> Any:
        """Score the sinks among the first keys again, as they are to be seen."""
        for column in range(min(sinks, keys.shape[0])):
            if 0 <= key_positions[column] < sinks:
                for row in range(scores.shape[0]):
                    total = dtype(0)
                    for dim in range(keys.shape[1]):
                        total += sink_queries[row, dim] * dtype(keys[column, dim])
                    scores[row, column] = total

    @numba_njit
    def highest(scores: Any, row: Any, i: Any, key_positions: Any, so_far: Any) -> Any:
        """Return the highest score the row sees, and set those it doesn't see to minus infinity."""
        for column in range(scores.shape[1]):
            if sees(i, key_positions[column]):
                if has_softcap:
                    scores[row, column] = softcap * np.tanh(scores[row, column] / softcap)
                so_far = max(so_far, scores[row, column])
            else:
                scores[row, column] = -np.inf
        return so_far

    @numba_njit
    def exponentiate(scores: Any, row: Any, top: Any) -> Any:
        total = dtype(0)
        for column in range(scores.shape[1]):
            scores[row, column] = np.exp(scores[row, column] - top)
            total += scores[row, column]
        return total

    @numba_njit
    def multiply(scores: Any, row: Any, factor: Any) -> Any:
        for column in range(scores.shape[1]):
            scores[row, column] *= factor

    @numba_njit
    def softmax(cached: Any, chunk: Any, positions: Any, slot_positions: Any) -> Any:
        """Replace the scores by their softmax over both parts, 0 in a row that sees nothing."""
        seq = positions.shape[0]
        for row in range(chunk.shape[0]):
            i = positions[row % seq]
            top = highest(cached, row, i, slot_positions, dtype(-np.inf))
            top = highest(chunk, row, i, positions, top)
            sees_nothing = top == -np.inf
            if sees_nothing:
                top = dtype(0)
            total = exponentiate(cached, row, top) + exponentiate(chunk, row, top)
            factor = dtype(0) if sees_nothing else dtype(1) / total
            multiply(cached, row, factor)
            multiply(chunk, row, factor)

    @numba_njit
    def scaled_heads(x: Any, n_kv_head: Any, scale: Any) -> Any:
        """Return the scaled queries, those of one key/value head together."""
        flat = np.ascontiguousarray(x).reshape(-1)
        scaled = np.empty(flat.size, dtype=dtype)
        for index in range(flat.size):
            scaled[index] = dtype(flat[index]) * scale
        batch, n_head, seq, head_dim = x.shape
        return scaled.reshape((batch, n_kv_head, n_head // n_kv_head * seq, head_dim))

    @numba_njit
    def attend(
        q: Any, q_sink: Any, k: Any, v: Any, positions: Any, keys: Any, values: Any, slot_positions: Any
    ) -> Any:
        batch, n_kv_head, seq, head_dim = k.shape
        slots = keys.shape[2]
        if (
            q.shape != q_sink.shape
            or (q.shape[0], q.shape[2], q.shape[3]) != (batch, seq, head_dim)
            or q.shape[1] % n_kv_head != 0
            or v.shape != k.shape
            or positions.shape != (batch, seq)
            or keys.shape != (batch, n_kv_head, slots, head_dim)
            or values.shape != keys.shape
            or slot_positions.shape != (batch, slots)
        ):
            raise ValueError("queries, keys, values and their positions don't fit together")
        scale = dtype(1 / np.sqrt(head_dim)) if fixed_scale is None else dtype(fixed_scale)
        queries, sink_queries = scaled_heads(q, n_kv_head, scale), scaled_heads(q_sink, n_kv_head, scale)
        keys, values = np.ascontiguousarray(keys), np.ascontiguousarray(values)
        k, v = np.ascontiguousarray(k), np.ascontiguousarray(v)
        out = np.empty(queries.shape, dtype=q_dtype)
        for b in range(batch):
            for h in range(n_kv_head):
                cached, chunk = product(queries[b, h], keys[b, h].T), product(queries[b, h], k[b, h].T)
                score_sinks(cached, sink_queries[b, h], keys[b, h], slot_positions[b])
                if seq > 1:
                    score_sinks(chunk, sink_queries[b, h], k[b, h], positions[b])
                softmax(cached, chunk, positions[b], slot_positions[b])
                from_cache, from_chunk = product(cached, values[b, h]), product(chunk, v[b, h])
                for row in range(out.shape[2]):
                    for dim in range(head_dim):
                        out[b, h, row, dim] = q_dtype(from_cache[row, dim] + from_chunk[row, dim])
        return out.reshape(q.shape)

    @numba_njit
    def attend_without_cache(q: Any, q_sink: Any, k: Any, v: Any, positions: Any) -> Any:
        none = np.empty((k.shape[0], k.shape[1], 0, k.shape[3]), dtype=dtype)
        no_slots = np.empty((k.shape[0], 0), dtype=np.int32)
        return attend(q, q_sink, k, v, positions, none, none, no_slots)

    return attend if has_cache else attend_without_cache, _cache_key(op, q_type.dtype, has_cache)
