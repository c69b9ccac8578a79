"""Attention over a sink cache in Numba."""

from typing import Any

import numpy as np
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pytensor_rope.attention import SinkAttention
from pytensor_rope.base import computation_dtype
from pytensor_rope.lowering.numba.exp import exp_below_0
from pytensor_rope.lowering.numba.fetch import fetch_ahead
from pytensor_rope.lowering.numba.kernel import Lowered, cache_key

# Queries scored at once, at most: few enough that they see much the same keys, and scores stay in the cache.
_BLOCK = 128

# Queries that are multiplied here rather than by BLAS, at most.
_FEW = 8

_LAST = np.int32(2**31 - 1)


@register_funcify_and_cache_key(SinkAttention)
def _sink_attention(op: SinkAttention, **kwargs: Any) -> Lowered:
    q_type = op.input_types[0]
    has_cache = len(op.input_types) > 5
    computed = computation_dtype(q_type.dtype)
    dtype = np.dtype(computed).type
    bits_dtype, sign_shift = (np.int64, 63) if computed == "float64" else (np.int32, 31)
    magnitude = bits_dtype(np.iinfo(bits_dtype).max)
    exp = exp_below_0(computed)
    q_dtype = np.dtype(q_type.dtype).type
    sinks = op.sinks
    window = 2**31 if op.window is None else op.window
    fixed_scale = op.scale
    line = 64 // dtype().itemsize  # Numbers that memory gives at once.
    has_softcap, softcap = op.softcap is not None, dtype(op.softcap or 1)

    # Loops where NumPy would take slices: assigning to a slice makes Numba compile for seconds.
    @numba_njit
    def nearness(positions: Any) -> Any:
        """Return each key's position, none's as -1, and a sink's as one that is in every window."""
        near = np.empty(positions.shape[0], dtype=np.int32)
        for key in range(near.size):
            j = positions[key]
            near[key] = np.int32(-1) if j < 0 else (_LAST if j < sinks else j)
        return near

    @numba_njit
    def window_start(i: Any) -> Any:
        start = np.int64(i) - window + 1
        return np.int32(start if start > 0 else 0)

    @numba_njit
    def extent(first: Any, last: Any, key_positions: Any, near: Any) -> Any:
        """Return how many keys there are up to the last that any query sees."""
        for key in range(near.size - 1, -1, -1):
            if key_positions[key] <= last and near[key] >= first:
                return key + 1
        return 0

    # BLAS copies keys and values before it multiplies, which for few queries takes longer than to do so here.
    @numba_njit(fastmath={"contract", "nsz", "reassoc"})
    def dot(queries: Any, row: Any, keys: Any, key: Any) -> Any:
        total = dtype(0)
        for dim in range(keys.shape[1]):
            total += queries[row, dim] * keys[key, dim]
        return total

    @numba_njit
    def scored(queries: Any, keys: Any) -> Any:
        if queries.shape[0] > _FEW:
            return np.dot(queries, keys.T)
        scores = np.empty((queries.shape[0], keys.shape[0]), dtype=dtype)
        for key in range(keys.shape[0]):
            for dim in range(0, keys.shape[1], line):
                fetch_ahead(keys, key, dim)
            for row in range(queries.shape[0]):
                scores[row, key] = dot(queries, row, keys, key)
        return scores

    @numba_njit
    def weighted(weights: Any, values: Any) -> Any:
        n, head_dim = values.shape
        if weights.shape[0] > _FEW:
            return np.dot(weights, values)
        sums = np.zeros((weights.shape[0], head_dim), dtype=dtype)
        in_fours = n // 4 * 4
        for key in range(0, in_fours, 4):
            for dim in range(0, 4 * head_dim, line):
                fetch_ahead(values, key, dim)
            for row in range(weights.shape[0]):
                for dim in range(head_dim):
                    sums[row, dim] += (
                        weights[row, key] * values[key, dim]
                        + weights[row, key + 1] * values[key + 1, dim]
                        + weights[row, key + 2] * values[key + 2, dim]
                        + weights[row, key + 3] * values[key + 3, dim]
                    )
        for key in range(in_fours, n):
            for row in range(weights.shape[0]):
                for dim in range(head_dim):
                    sums[row, dim] += weights[row, key] * values[key, dim]
        return sums

    @numba_njit
    def score_sinks(scores: Any, sink_queries: Any, keys: Any, key_positions: Any) -> Any:
        """Score the sinks among the first keys again, as they are to be seen."""
        for column in range(min(sinks, scores.shape[1])):
            if 0 <= key_positions[column] < sinks:
                for row in range(scores.shape[0]):
                    total = dtype(0)
                    for dim in range(keys.shape[1]):
                        total += sink_queries[row, dim] * keys[column, dim]
                    scores[row, column] = total

    @numba_njit
    def cap(scores: Any) -> Any:
        for row in range(scores.shape[0]):
            for column in range(scores.shape[1]):
                scores[row, column] = softcap * np.tanh(scores[row, column] / softcap)

    @numba_njit
    def in_order(bits: Any) -> Any:
        """Turn a float's bits into an integer that is ordered as floats are, and back."""
        return bits_dtype(bits ^ ((bits >> bits_dtype(sign_shift)) & magnitude))

    @numba_njit
    def highest(scores: Any, row: Any, i: Any, key_positions: Any, near: Any, so_far: Any) -> Any:
        """Set the scores of keys that the row doesn't see to minus infinity; return the highest of all."""
        first = window_start(i)
        # A maximum of integers is vectorized, one of floats is not.
        top = in_order(dtype(so_far).view(bits_dtype))
        for column in range(scores.shape[1]):
            seen = (key_positions[column] <= i) & (near[column] >= first)
            score = scores[row, column] if seen else dtype(-np.inf)
            scores[row, column] = score
            top = max(top, in_order(dtype(score).view(bits_dtype)))
        return bits_dtype(in_order(top)).view(dtype)

    @numba_njit
    def exponentiate(scores: Any, row: Any, top: Any) -> Any:
        total = dtype(0)
        for column in range(scores.shape[1]):
            weight = exp(scores[row, column] - top)
            scores[row, column] = weight
            total += weight
        return total

    @numba_njit
    def rows_scaled(x: Any, n_kv_head: Any, scale: Any) -> Any:
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
        scale = dtype(1 / np.sqrt(max(head_dim, 1))) if fixed_scale is None else dtype(fixed_scale)
        queries, sink_queries = rows_scaled(q, n_kv_head, scale), rows_scaled(q_sink, n_kv_head, scale)
        keys, values = np.ascontiguousarray(keys), np.ascontiguousarray(values)
        k, v = np.ascontiguousarray(k), np.ascontiguousarray(v)
        out = np.empty(queries.shape, dtype=q_dtype)
        n_row = queries.shape[2]
        # Whole heads, or a part of one.
        block = _BLOCK // seq * seq if 0 < seq <= _BLOCK else _BLOCK
        for b in range(batch):
            slots_near, chunk_near = nearness(slot_positions[b]), nearness(positions[b])
            start = 0
            while start < n_row:
                end = min(start + block, n_row if seq <= _BLOCK else (start // seq + 1) * seq)
                first, last = _LAST, np.int32(-1)
                for row in range(start, min(end, start + seq)):
                    i = positions[b, row % seq]
                    if i >= 0:
                        first, last = min(first, window_start(i)), max(last, i)
                n_slot = extent(first, last, slot_positions[b], slots_near)
                n_own = extent(first, last, positions[b], chunk_near)
                for h in range(n_kv_head):
                    attend_block(
                        queries[b, h, start:end],
                        sink_queries[b, h, start:end],
                        keys[b, h, :n_slot],
                        values[b, h, :n_slot],
                        k[b, h, :n_own],
                        v[b, h, :n_own],
                        positions[b],
                        slot_positions[b],
                        chunk_near,
                        slots_near,
                        start,
                        out[b, h],
                    )
                start = end
        return out.reshape(q.shape)

    @numba_njit
    def attend_block(
        queries: Any,
        sink_queries: Any,
        keys: Any,
        values: Any,
        k: Any,
        v: Any,
        positions: Any,
        slot_positions: Any,
        chunk_near: Any,
        slots_near: Any,
        start: Any,
        out: Any,
    ) -> None:
        """Attend with the rows from ``start`` on; what a row sees nothing of is 0."""
        seq = positions.shape[0]
        cached, chunk = scored(queries, keys), scored(queries, k)
        score_sinks(cached, sink_queries, keys, slot_positions)
        # A single token sees of its chunk only itself, at distance 0 either way.
        if seq > 1:
            score_sinks(chunk, sink_queries, k, positions)
        if has_softcap:
            cap(cached)
            cap(chunk)
        factors = np.empty(queries.shape[0], dtype=dtype)
        for row in range(factors.size):
            i = positions[(start + row) % seq]
            top = highest(cached, row, i, slot_positions, slots_near, dtype(-np.inf))
            top = highest(chunk, row, i, positions, chunk_near, top)
            sees_nothing = top == -np.inf
            if sees_nothing:
                top = dtype(0)
            total = exponentiate(cached, row, top) + exponentiate(chunk, row, top)
            factors[row] = dtype(0) if sees_nothing else dtype(1) / total
        from_cache, from_chunk = weighted(cached, values), weighted(chunk, v)
        for row in range(factors.size):
            for dim in range(out.shape[1]):
                attended = from_cache[row, dim] + from_chunk[row, dim]
                out[start + row, dim] = q_dtype(attended * factors[row])

    @numba_njit
    def attend_without_cache(q: Any, q_sink: Any, k: Any, v: Any, positions: Any) -> Any:
        none = np.empty((k.shape[0], k.shape[1], 0, k.shape[3]), dtype=dtype)
        no_slots = np.empty((k.shape[0], 0), dtype=np.int32)
        return attend(q, q_sink, k, v, positions, none, none, no_slots)

    return attend if has_cache else attend_without_cache, cache_key(op, q_type.dtype, has_cache)
