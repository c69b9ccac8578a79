"""The sink cache against StreamingLLM's definition, and its slots against a simulation."""

import pickle
from functools import cache

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import reference
from conftest import compile_for, dtypes_at_run_time, random, types_within
from pytensor.graph.traversal import ancestors

from pytensor_rope import RotaryEmbedding, SinkCache, SinkCacheState, function
from pytensor_rope.attention import SinkAttention, sink_attention
from pytensor_rope.base import LayerOp
from pytensor_rope.layout import remap_positions

BATCH, N_HEAD, N_KV_HEAD, HEAD_DIM = 2, 4, 2, 32
TOKENS = 23

# (sinks, window, headroom, positions)
CACHES = [
    (0, 8, 0, "cache"),
    (1, 8, 0, "cache"),
    (2, 8, 0, "cache"),
    (3, 8, 0, "cache"),
    (4, 8, 0, "cache"),
    (4, 8, 0, "absolute"),
    (2, 4, 3, "cache"),
    (1, 1, 0, "cache"),
]
by_cache = pytest.mark.parametrize("sink_cache", CACHES, ids=lambda value: "-".join(map(str, value)))


class Stream:
    """A cache compiled for one backend, fed chunk by chunk."""

    def __init__(self, backend, sinks, window, headroom=0, positions="cache", dtype="float32"):
        self.cache = SinkCache(sinks, window, headroom, positions)
        self.dtype = dtype
        self.inputs = chunk_inputs(BATCH, None, dtype)
        self.given = state_variables(self.initial())
        attended, new = self.cache.attend(*self.inputs, self.given, rotary=RotaryEmbedding())
        assert attended.type == self.inputs[0].type
        assert [x.type for x in new] == [x.type for x in self.given]
        self.compiled = compile_for([*self.inputs, *self.given], [attended, *new], backend)

    def initial(self):
        return self.cache.initial_state(BATCH, N_KV_HEAD, HEAD_DIM, self.dtype)

    def attend(self, q, k, v, state):
        # One memory layout: Numba compiles again for every other.
        chunk = (np.ascontiguousarray(x, dtype=self.dtype) for x in (q, k, v))
        attended, *new = self.compiled(*chunk, *state)
        return attended, SinkCacheState(*new)

    def run(self, q, k, v, chunks, state=None):
        """Attend to everything, in chunks of the lengths given."""
        state = self.initial() if state is None else state
        assert sum(chunks) == q.shape[2]
        outputs, start = [], 0
        for length in chunks:
            part = (x[:, :, start : start + length] for x in (q, k, v))
            attended, state = self.attend(*part, state)
            outputs.append(attended)
            start += length
        return np.concatenate(outputs, axis=2), state


stream = cache(Stream)


def chunk_inputs(batch, seq, dtype, head_dim=HEAD_DIM):
    shapes = {name: N_HEAD if name == "q" else N_KV_HEAD for name in ("q", "k", "v")}
    return [pt.tensor(name, shape=(batch, n, seq, head_dim), dtype=dtype) for name, n in shapes.items()]


def state_variables(state):
    return SinkCacheState(*(pt.tensor(shape=x.shape, dtype=x.dtype) for x in state))


def drawn(seed, tokens=TOKENS, batch=BATCH, head_dim=HEAD_DIM):
    return tuple(
        random(seed + i, batch, n, tokens, head_dim, dtype="float32")
        for i, n in enumerate((N_HEAD, N_KV_HEAD, N_KV_HEAD))
    )


def expected_attention(q, k, v, sinks, window, headroom=0, positions="cache"):
    return np.stack(
        [reference.stream_attention(*row, sinks, window, positions) for row in zip(q, k, v, strict=True)]
    )


@cache
def expected_of_drawn(seed, *settings, tokens=TOKENS):
    return expected_attention(*drawn(seed, tokens), *settings)


def one_hot_values(tokens=TOKENS):
    """Values that show the attention weights: token t's is the t-th unit vector."""
    return np.broadcast_to(np.eye(tokens, HEAD_DIM, dtype="float32"), (BATCH, N_KV_HEAD, tokens, HEAD_DIM))


@by_cache
@pytest.mark.parametrize("chunks", [[1] * TOKENS, [7, 9, 7], [TOKENS]], ids=["ones", "7-9-7", "whole"])
def test_any_chunking_is_streaming_attention(backend, sink_cache, chunks):
    attended, state = stream(backend, *sink_cache).run(*drawn(0), chunks)
    np.testing.assert_allclose(attended, expected_of_drawn(0, *sink_cache), rtol=0, atol=1e-5)
    assert state.length.tolist() == [TOKENS] * BATCH


@by_cache
def test_any_chunking_leaves_the_same_state(backend, sink_cache):
    of_ones, by_sevens, whole = (
        stream(backend, *sink_cache).run(*drawn(0), chunks)[1]
        for chunks in ([1] * TOKENS, [7, 9, 7], [TOKENS])
    )
    for other in (by_sevens, whole):
        np.testing.assert_allclose(other.keys, of_ones.keys, atol=1e-6)
        np.testing.assert_array_equal(other.values, of_ones.values)


@by_cache
def test_each_query_sees_exactly_its_sinks_and_its_window(backend, sink_cache):
    sinks, window, *_ = sink_cache
    q, k, _ = drawn(3)
    for chunks in ([1] * TOKENS, [7, 9, 7], [TOKENS]):
        weights, _ = stream(backend, *sink_cache).run(q, k, one_hot_values(), chunks)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-6)
        for i in range(TOKENS):
            expected = reference.visible_keys(i, sinks, window)
            assert len(expected) == min(i + 1, sinks + window)
            for row in weights[:, :, i].reshape(-1, HEAD_DIM):
                assert set(np.flatnonzero(row)) == set(expected)


def test_chunks_around_the_window_s_length(backend):
    # 1, 3, W - 1, W, W + 1 and 2 W + 3: where rings go wrong by one.
    chunks = [1, 3, 7, 8, 9, 19]
    tokens = sum(chunks)
    attended, state = stream(backend, 2, 8, 0, "cache").run(*drawn(6, tokens), chunks)
    expected = expected_of_drawn(6, 2, 8, tokens=tokens)
    np.testing.assert_allclose(attended, expected, rtol=0, atol=1e-5)
    k, v = drawn(6, tokens)[1:]
    held = slots_of(2, 8, 0, tokens)
    np.testing.assert_array_equal(state.values, v[:, :, held])
    for row in range(BATCH):
        rotated = reference.rotate(k[row][:, held], held)
        np.testing.assert_allclose(state.keys[row], rotated, atol=1e-5)


@pytest.mark.parametrize("tokens", [7, 8, 9, 17])
def test_a_prompt_longer_than_the_window_in_one_chunk(backend, tokens):
    attended, _ = stream(backend, 2, 4, 3, "cache").run(*drawn(9, tokens), [tokens])
    expected = expected_of_drawn(9, 2, 4, tokens=tokens)
    np.testing.assert_allclose(attended, expected, rtol=0, atol=1e-5)


def test_adjacent_pairing_and_partial_rotation_too(backend):
    sink_cache = SinkCache(2, 4)
    rotary = RotaryEmbedding(pairing="adjacent", rotary_dim=4, base=5e5)
    inputs = chunk_inputs(1, None, "float32", head_dim=8)
    initial = sink_cache.initial_state(1, N_KV_HEAD, 8)
    given = state_variables(initial)
    attended, new = sink_cache.attend(*inputs, given, rotary=rotary, scale=0.5)
    compiled = compile_for([*inputs, *given], [attended, *new], backend)
    q, k, v = drawn(9, 16, batch=1, head_dim=8)
    state, outputs = initial, []
    for part in (slice(0, 7), slice(7, 8), slice(8, 16)):
        out, *state = compiled(q[:, :, part], k[:, :, part], v[:, :, part], *state)
        outputs.append(out)
    expected = reference.stream_attention(
        q[0], k[0], v[0], 2, 4, scale=0.5, pairing="adjacent", rotary_dim=4, base=5e5
    )
    np.testing.assert_allclose(np.concatenate(outputs, axis=2)[0], expected, rtol=0, atol=1e-5)


def test_float16_stays_float16(float16_backend):
    compiled = stream(float16_backend, 2, 8, 0, "cache", "float16")
    q, k, v = (x.astype("float16") for x in drawn(0))
    attended, state = compiled.run(q, k, v, [7, 9, 7])
    assert [x.dtype.name for x in (attended, *state)] == ["float16", "float16", "float16", "int32"]
    expected = expected_attention(q, k, v, 2, 8)
    np.testing.assert_allclose(np.float64(attended), expected, rtol=0, atol=4e-3)


def test_dtypes_at_run_time(backend):
    compiled = stream(backend, 2, 8, 0, "cache")
    dtypes = dtypes_at_run_time(compiled.compiled, *drawn(0, 7), *compiled.initial())
    assert dtypes == ["float32", "float32", "float32", "int32"]


def test_query_heads_share_key_value_heads_in_runs(backend):
    v = np.zeros((BATCH, N_KV_HEAD, 7, HEAD_DIM), "float32")
    for head in range(N_KV_HEAD):
        v[:, head, :, head] = 1
    attended, _ = stream(backend, 2, 8, 0, "cache").run(*drawn(0, 7)[:2], v, [7])
    assert attended.argmax(axis=-1).tolist() == [[[0] * 7, [0] * 7, [1] * 7, [1] * 7]] * BATCH


def test_rows_of_different_lengths(backend):
    compiled = stream(backend, 2, 8, 0, "cache")
    first, second = drawn(12, 12), drawn(15, 12)
    _, short = compiled.run(*(x[:, :, :3] for x in first), [3])
    _, long = compiled.run(*(x[:, :, :11] for x in second), [11])
    mixed = SinkCacheState(*(np.stack([a[0], b[1]]) for a, b in zip(short, long, strict=True)))
    assert mixed.length.tolist() == [3, 11]
    chunk = [np.stack([a[0][:, 3:10], b[1][:, 5:12]]) for a, b in zip(first, second, strict=True)]
    attended, state = compiled.run(*chunk, [7], mixed)
    assert state.length.tolist() == [10, 18]
    streams = [
        [np.concatenate([x[row][:, :seen], part[row]], axis=1) for x, part in zip(given, chunk, strict=True)]
        for row, given, seen in ((0, first, 3), (1, second, 11))
    ]
    for row, seen in ((0, 3), (1, 11)):
        expected = reference.stream_attention(*streams[row], 2, 8)[:, seen:]
        np.testing.assert_allclose(attended[row], expected, rtol=0, atol=1e-5)


def test_rows_do_not_see_each_other(backend):
    compiled = stream(backend, 2, 8, 0, "cache")
    q, k, v = drawn(0)
    alone, _ = compiled.run(q, k, v, [7, 9, 7])
    others = [x.copy() for x in (q, k, v)]
    for x in others:
        x[1] *= -3
    beside, _ = compiled.run(*others, [7, 9, 7])
    np.testing.assert_array_equal(beside[0], alone[0])


def test_unwritten_slots_are_never_seen(backend):
    compiled = stream(backend, 4, 8, 0, "cache")
    initial = compiled.initial()
    garbage = SinkCacheState(initial.keys + np.float32(7), initial.values + np.float32(1e3), initial.length)
    q, k, _ = drawn(3)
    v = one_hot_values()
    clean, _ = compiled.run(q, k, v, [1] * 3 + [20])
    attended, state = compiled.run(q[:, :, :3], k[:, :, :3], v[:, :, :3], [1] * 3, garbage)
    np.testing.assert_array_equal(attended, clean[:, :, :3])
    np.testing.assert_allclose(attended[:, :, 2, :3].sum(axis=-1), 1, atol=1e-6)
    assert (attended[:, :, 2, :3] > 0).all()
    np.testing.assert_array_equal(state.values[:, :, 3:], garbage.values[:, :, 3:])
    rest, _ = compiled.run(q[:, :, 3:], k[:, :, 3:], v[:, :, 3:], [20], state)
    np.testing.assert_array_equal(rest, clean[:, :, 3:])


def test_state_given_stays_valid(backend):
    compiled = stream(backend, 2, 8, 0, "cache")
    q, k, v = drawn(0)
    _, before = compiled.run(q[:, :, :16], k[:, :, :16], v[:, :, :16], [7, 9])
    copied = SinkCacheState(*(x.copy() for x in before))
    rest = [x[:, :, 16:] for x in (q, k, v)]
    first, _ = compiled.run(*rest, [7], before)
    second, _ = compiled.run(*rest, [7], before)
    np.testing.assert_array_equal(first, second)
    for given, kept in zip(before, copied, strict=True):
        np.testing.assert_array_equal(given, kept)


def test_queries_and_keys_take_the_position_before_the_update(backend):
    # Scores of a token with itself: a rotation of both by one angle leaves their product alone.
    compiled = stream(backend, 1, 1, 0, "cache")
    q, k, v = drawn(18, 7)
    attended, _ = compiled.run(q, k, v, [1] * 7)
    expected = expected_of_drawn(18, 1, 1, tokens=7)
    np.testing.assert_allclose(attended, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 2])
def test_state_in_shared_variables(backend, batch):
    sink_cache = SinkCache(2, 4)
    inputs = chunk_inputs(batch, 1, "float32", head_dim=8)
    initial = sink_cache.initial_state(batch, N_KV_HEAD, 8)
    state = SinkCacheState(*(pytensor.shared(x, shape=x.shape) for x in initial))
    attended, new = sink_cache.attend(*inputs, state, rotary=RotaryEmbedding())
    step = function(inputs, attended, backend=backend, updates=zip(state, new, strict=True))
    q, k, v = drawn(21, 16, batch=batch, head_dim=8)
    outputs = [step(*(x[:, :, t : t + 1] for x in (q, k, v))) for t in range(16)]
    got = np.concatenate(outputs, axis=2)
    np.testing.assert_allclose(got, expected_attention(q, k, v, 2, 4), rtol=0, atol=1e-5)
    assert np.asarray(state.length.get_value()).tolist() == [16] * batch


def test_state_carried_by_a_scan(scan_backend):
    sink_cache = SinkCache(2, 4)
    rotary = RotaryEmbedding()
    initial = sink_cache.initial_state(1, N_KV_HEAD, 8)
    q, k, v = (pt.tensor(shape=(None, 1, n, 1, 8), dtype="float32") for n in (N_HEAD, N_KV_HEAD, N_KV_HEAD))

    def step(q, k, v, *state):
        attended, new = sink_cache.attend(q, k, v, SinkCacheState(*state), rotary=rotary)
        return attended, *new

    given = [pt.as_tensor(x) for x in initial]
    attended, *_ = pytensor.scan(step, sequences=[q, k, v], outputs_info=[None, *given], return_updates=False)
    values = drawn(24, 16, batch=1, head_dim=8)
    by_step = [np.moveaxis(x[:, :, :, None], 2, 0) for x in values]
    got = compile_for([q, k, v], attended, scan_backend)(*by_step)
    expected = expected_attention(*values, 2, 4)
    np.testing.assert_allclose(got[:, :, :, 0], np.moveaxis(expected, 2, 0), rtol=0, atol=1e-5)


@cache
def padded_chunks(backend):
    """Attend to a chunk of which only the first ``count`` tokens are real."""
    sink_cache = SinkCache(1, 3)
    rotary = RotaryEmbedding()
    q, k, v = chunk_inputs(2, 5, "float32", head_dim=8)
    state = state_variables(sink_cache.initial_state(2, N_KV_HEAD, 8))
    count = pt.tensor("count", shape=(2,), dtype="int32")
    positions = sink_cache.chunk_positions(state.length, k, count)
    angles = rotary.angles(positions, like=q)
    sink_angles = rotary.angles(sink_cache.sink_query_positions(positions), like=q)
    rotated = rotary.rotate(k, *angles)
    attended = sink_attention(
        rotary.rotate(q, *angles),
        rotary.rotate(q, *sink_angles),
        rotated,
        v,
        positions,
        state.keys,
        state.values,
        sink_cache.slot_positions(state.length),
        sinks=1,
        window=3,
    )
    new = sink_cache.update(state, rotated, v, count)
    return sink_cache, compile_for([q, k, v, *state, count], [attended, *new], backend)


@cache
def gradients(backend, dtype):
    """Gradients of a chunk that sees sinks, the ring and itself, for its queries, keys and values."""
    sink_cache = SinkCache(2, 3)
    shapes = {"q": (2, 2, 3, 4), "k": (2, 1, 3, 4), "v": (2, 1, 3, 4), "probe": (2, 2, 3, 4)}
    q, k, v, probe = (pt.tensor(name, shape=shape, dtype=dtype) for name, shape in shapes.items())
    state = state_variables(sink_cache.initial_state(2, 1, 4, dtype))
    attended, new = sink_cache.attend(q, k, v, state, rotary=RotaryEmbedding())
    of_chunk = pt.grad((attended * probe).sum(dtype=dtype), [q, k, v])
    assert [g.type.dtype for g in of_chunk] == [dtype] * 3
    compiled = compile_for([q, k, v, probe, *state], [attended, *new, *of_chunk], backend)
    return sink_cache, compiled


def int32(*values):
    return np.array(values, dtype="int32")


def test_padding_is_neither_seen_nor_written_nor_counted(backend):
    sink_cache, compiled = padded_chunks(backend)
    q, k, v = drawn(27, 10, head_dim=8)
    counts = [int32(5, 3), int32(2, 5), int32(0, 1)]
    state, streams = sink_cache.initial_state(2, N_KV_HEAD, 8), [[], []]
    got = [[], []]
    for turn, count in enumerate(counts):
        # Pads full of large numbers, which a mask must hide and a write must leave out.
        chunk = [x[:, :, turn : turn + 5].copy() for x in (q, k, v)]
        for row in range(2):
            streams[row].append([x[row][:, : count[row]].copy() for x in chunk])
            for x in chunk:
                x[row][:, count[row] :] = 1e4
        attended, *state = compiled(*chunk, *state, count)
        for row in range(2):
            got[row].append(attended[row][:, : count[row]])
            np.testing.assert_array_equal(attended[row][:, count[row] :], 0)
    assert state[2].tolist() == [7, 9]
    for row in range(2):
        parts = [np.concatenate(x, axis=1) for x in zip(*streams[row], strict=True)]
        expected = reference.stream_attention(*parts, 1, 3)
        np.testing.assert_allclose(np.concatenate(got[row], axis=1), expected, rtol=0, atol=1e-5)
        held = slots_of(1, 3, 0, parts[0].shape[1])
        np.testing.assert_array_equal(state[1][row], parts[2][:, held])


def test_row_that_sees_nothing_is_zero(backend):
    sink_cache, compiled = padded_chunks(backend)
    initial = sink_cache.initial_state(2, N_KV_HEAD, 8)
    attended, *state = compiled(*drawn(30, 5, head_dim=8), *initial, int32(0, 4))
    np.testing.assert_array_equal(attended[0], 0)
    np.testing.assert_array_equal(attended[1][:, 4:], 0)
    assert (np.abs(attended[1][:, :4]).max(axis=-1) > 0).all()
    for unchanged, given in zip(state, initial, strict=True):
        np.testing.assert_array_equal(unchanged[0], given[0])


def test_gradients_against_finite_differences(backend):
    sink_cache, compiled = gradients(backend, "float64")
    streams = [random(33 + i, 2, n, 9, 4) for i, n in enumerate((2, 1, 1))]
    probe = random(36, 2, 2, 3, 4)
    given = sink_cache.initial_state(2, 1, 4, "float64")
    for turn in range(3):
        chunk = [np.ascontiguousarray(x[:, :, 3 * turn : 3 * turn + 3]) for x in streams]
        attended, *rest = compiled(*chunk, probe, *given)
        given = rest[:3]
    tolerance = 5e-6 if backend == "mlx" else 1e-8
    of_row = [x[1] for x in streams]
    np.testing.assert_allclose(
        attended[1], reference.stream_attention(*of_row, 2, 3, first=6), rtol=0, atol=tolerance
    )
    for i, gradient in enumerate(rest[3:]):

        def cost(part, i=i):
            whole = [x.copy() for x in of_row]
            whole[i][:, 6:] = part
            return (reference.stream_attention(*whole, 2, 3, first=6) * probe[1]).sum()

        expected = reference.numeric_gradient(cost, of_row[i][:, 6:])
        np.testing.assert_allclose(gradient[1], expected, rtol=0, atol=tolerance)


def test_row_that_sees_nothing_has_a_finite_gradient(backend):
    sink_cache, compiled = gradients(backend, "float64")
    state = sink_cache.initial_state(2, 1, 4, "float64")
    # Positions below 0 are padding: the whole chunk of the first row is.
    state = state._replace(length=int32(-3, 0))
    chunk = [random(37 + i, 2, n, 3, 4) for i, n in enumerate((2, 1, 1))]
    attended, *rest = compiled(*chunk, random(40, 2, 2, 3, 4), *state)
    np.testing.assert_array_equal(attended[0], 0)
    for gradient in rest[3:]:
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[0], 0)
        assert np.abs(gradient[1]).max() > 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_have_the_input_s_dtype(dtype):
    sink_cache = SinkCache(2, 3)
    chunk = chunk_inputs(1, None, dtype)
    state = state_variables(sink_cache.initial_state(1, N_KV_HEAD, HEAD_DIM, dtype))
    attended, _ = sink_cache.attend(*chunk, state, rotary=RotaryEmbedding())
    of_chunk = pt.grad(attended.sum(dtype=dtype), chunk)
    assert [gradient.dtype for gradient in of_chunk] == [dtype] * 3


def test_gradients_have_the_input_s_dtype_at_run_time(tracing_backend):
    sink_cache, compiled = gradients(tracing_backend, "float32")
    state = sink_cache.initial_state(2, 1, 4)
    chunk = [random(41 + i, 2, n, 3, 4, dtype="float32") for i, n in enumerate((2, 1, 1, 2))]
    dtypes = dtypes_at_run_time(compiled, *chunk, *state)
    assert dtypes == ["float32"] * 3 + ["int32"] + ["float32"] * 3


def slots_of(sinks, window, headroom, tokens):
    simulation = reference.SlotSimulation(sinks, window, headroom)
    for _ in range(tokens):
        simulation.append()
    return simulation.positions()


@pytest.mark.parametrize("headroom", [0, 3])
@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("sinks", [0, 1, 4])
def test_slots_hold_what_a_simulation_holds(sinks, window, headroom):
    sink_cache = SinkCache(sinks, window, headroom)
    lengths = [*range(40), 1000, 1001]
    given = pt.tensor("length", shape=(None,), dtype="int32")
    held = sink_cache.slot_positions(given)
    assert held.dtype == "int32"
    got = held.eval({given: int32(*lengths)}, mode="FAST_COMPILE")
    for length, row in zip(lengths, got, strict=True):
        assert row.tolist() == slots_of(sinks, window, headroom, length)


def test_slots_on_every_backend(backend):
    sink_cache = SinkCache(2, 4, 1)
    length = pt.tensor("length", shape=(None,), dtype="int32")
    lengths = [*range(20), 2**31 - 1]
    got = compile_for([length], sink_cache.slot_positions(length), backend)(int32(*lengths))
    assert got.shape == (21, 7)
    for n, row in zip(lengths[:-1], got, strict=False):
        assert row.tolist() == slots_of(2, 4, 1, n)
    last = got[-1]
    assert last[:2].tolist() == [0, 1]
    assert sorted(last[2:].tolist()) == list(range(2**31 - 6, 2**31 - 1))


def test_nothing_is_evicted_before_the_cache_is_full():
    # Window 8: all 8 tokens are held after the 8th, and the first goes when the 9th comes.
    assert slots_of(0, 8, 0, 8) == [*range(8)]
    sink_cache = SinkCache(0, 8)
    length = pt.tensor("length", shape=(None,), dtype="int32")
    held = sink_cache.slot_positions(length).eval({length: int32(6, 8, 9)}, mode="FAST_COMPILE")
    assert held[0].tolist() == [0, 1, 2, 3, 4, 5, -1, -1]
    assert held[1].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert held[2].tolist() == [8, 1, 2, 3, 4, 5, 6, 7]


def test_headroom_keeps_more_than_is_seen(backend):
    _, state = stream(backend, 2, 4, 3, "cache").run(*drawn(0)[:2], one_hot_values(), [7, 9, 7])
    kept = set(np.flatnonzero(state.values[0, 0].sum(axis=0)))
    assert kept == {0, 1, *range(TOKENS - 7, TOKENS)}


def test_chunk_positions_are_int32_and_per_row():
    sink_cache = SinkCache(1, 3)
    length = pt.tensor("length", shape=(2,), dtype="int32")
    count = pt.tensor("count", shape=(2,), dtype="int32")
    like = pt.tensor("like", shape=(2, 1, 3, 4), dtype="float32")
    every = sink_cache.chunk_positions(length, like)
    padded = sink_cache.chunk_positions(length, like, count)
    seen_from = sink_cache.sink_query_positions(every)
    assert {x.dtype for x in (every, padded, seen_from)} == {"int32"}
    given = {length: int32(0, 10)}
    mode = "FAST_COMPILE"
    assert every.eval(given, mode=mode).tolist() == [[0, 1, 2], [10, 11, 12]]
    assert seen_from.eval(given, mode=mode).tolist() == [[0, 1, 2], [3, 3, 3]]
    assert padded.eval(given | {count: int32(2, 0)}, mode=mode).tolist() == [[0, 1, -1], [-1, -1, -1]]
    absolute = SinkCache(1, 3, positions="absolute").sink_query_positions(every)
    assert absolute.eval(given, mode=mode).tolist() == [[0, 1, 2], [10, 11, 12]]


def positions_in_the_cache(sink_cache, tokens):
    """Return the positions in the cache at which the last of the tokens sees each one, and itself."""
    length = pt.tensor("length", shape=(1,), dtype="int32")
    last = pt.as_tensor(np.array([[tokens - 1]], "int32"))
    held, from_sinks = pytensor.function(
        [length],
        [sink_cache.slot_positions(length), sink_cache.sink_query_positions(last)],
        mode="FAST_COMPILE",
    )(int32(tokens))
    at = int(from_sinks[0, 0])
    seen = [
        j for j in held[0].tolist() if j >= 0 and (j < sink_cache.sinks or tokens - 1 - j < sink_cache.window)
    ]
    return {j: j if j < sink_cache.sinks else at - (tokens - 1 - j) for j in sorted(seen)}


def test_positions_in_the_cache_count_on_from_the_sinks():
    # StreamingLLM's picture: tokens 0 to 3 and 6 to 9 are at 0 to 7.
    assert positions_in_the_cache(SinkCache(4, 4), 10) == dict(
        zip([0, 1, 2, 3, 6, 7, 8, 9], range(8), strict=True)
    )
    # One sink in a cache of four, after ten tokens: 1 to 6 are gone.
    assert positions_in_the_cache(SinkCache(1, 3), 10) == {0: 0, 7: 1, 8: 2, 9: 3}
    # Nothing is gone, and no position is left out, until there are more tokens than slots.
    for sinks, window in ((0, 8), (2, 6), (4, 4)):
        for tokens in range(1, 30):
            seen = positions_in_the_cache(SinkCache(sinks, window), tokens)
            assert list(seen.values()) == [*range(min(tokens, 8))]
            assert tokens > 8 or list(seen) == [*range(tokens)]


INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def test_remapped_positions_of_every_integer_dtype(backend):
    given = [pt.tensor(shape=(None,), dtype=dtype) for dtype in INTEGERS]
    cases = [(x, sinks, ring) for sinks, ring in ((4, 32), (0, 6)) for x in range(len(INTEGERS))]
    remapped = [remap_positions(given[x], sinks, ring) for x, sinks, ring in cases]
    assert [y.dtype for y in remapped] == [*INTEGERS, *INTEGERS]
    every = [-9, -1, *range(120), 127, 255, 30_000, 65_535, 2**31 - 1, 2**32 - 1, 2**62 + 5, 2**64 - 1]
    limits = [np.iinfo(dtype) for dtype in INTEGERS]
    values = [[p for p in every if limit.min <= p <= limit.max] for limit in limits]
    arrays = [np.array(x, dtype) for x, dtype in zip(values, INTEGERS, strict=True)]
    got = compile_for(given, remapped, backend)(*arrays)
    for (x, sinks, ring), of_x in zip(cases, got, strict=True):
        assert of_x.dtype == INTEGERS[x]
        assert of_x.tolist() == [p if p < sinks else sinks + (p - sinks) % ring for p in values[x]]


def test_remapped_positions_of_a_dtype_smaller_than_the_ring():
    given = pt.tensor(shape=(None,), dtype="int8")
    for sinks, ring in ((4, 128), (200, 6), (100, 100)):
        got = remap_positions(given, sinks, ring).eval({given: np.arange(-128, 128).astype("int8")})
        assert got.tolist() == np.arange(-128, 128).astype("int8").tolist()


def test_refused_remaps():
    with pytest.raises(TypeError, match="position_ids must be integers; got float32"):
        remap_positions(pt.fvector(), 4, 32)
    with pytest.raises(TypeError, match="position_ids must be integers; got bool"):
        remap_positions(pt.bvector().astype("bool"), 4, 32)
    with pytest.raises(ValueError, match="ring must be at least 1; got 0"):
        remap_positions(pt.ivector(), 4, 0)
    with pytest.raises(ValueError, match="sinks must be at least 0; got -1"):
        remap_positions(pt.ivector(), -1, 32)


def test_a_wrapped_cache_is_a_ring_of_two_windows():
    for headroom in (0, 5, 16):
        sink_cache = SinkCache(4, 16, headroom, positions="wrapped")
        assert (sink_cache.ring, sink_cache.capacity, sink_cache.headroom) == (32, 36, 16)
    assert eval(repr(sink_cache)) == sink_cache
    with pytest.raises(ValueError, match=r"headroom must be at most the window, 16, .*; got 17"):
        SinkCache(4, 16, 17, positions="wrapped")


def test_caches_of_the_same_arguments_are_equal():
    one = SinkCache(2, 4, 1)
    assert one == SinkCache(2, 4, headroom=1)
    assert (
        len({one, SinkCache(2, 4, 1), SinkCache(2, 4, 1, "absolute"), SinkCache(2, 4), SinkCache(1, 4, 1)})
        == 4
    )
    assert one != (2, 4, 1, "cache")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_bytes_are_those_of_the_arrays(dtype):
    sink_cache = SinkCache(4, 60, 6)
    state = sink_cache.initial_state(2, 3, 16, dtype)
    assert sink_cache.nbytes(2, 3, 16, dtype) == state.keys.nbytes + state.values.nbytes
    with pytest.raises(ValueError, match="dtype must be one of"):
        sink_cache.nbytes(2, 3, 16, "int8")


def test_rewinding_arrays_and_variables():
    sink_cache = SinkCache(2, 4, 3)
    state = sink_cache.initial_state(2, 1, 4)._replace(length=int32(20, 9))
    back = sink_cache.rewind(state, [3, 0])
    assert back.length.tolist() == [17, 9]
    assert back.length.dtype == "int32"
    assert back.keys is state.keys
    assert sink_cache.rewind(state, np.int64(9)).length.tolist() == [11, 0]
    given, n = state_variables(state), pt.tensor("n", shape=(2,), dtype="int64")
    for symbolic in (
        sink_cache.rewind(given, n),
        sink_cache.rewind(given, [3, 0]),
        sink_cache.rewind(given, 3),
    ):
        assert symbolic.length.type == given.length.type
    values = {given.length: state.length, n: np.array([3, 0])}
    assert sink_cache.rewind(given, n).length.eval(values, mode="FAST_COMPILE").tolist() == [17, 9]
    for wrong, error, message in (
        (10, ValueError, r"at most the tokens of each row, \[20, 9\]; got 10"),
        (-1, ValueError, "n must be at least 0; got -1"),
        (1.5, TypeError, "must be one integer"),
        ([1.5, 0], TypeError, "n must be an integer, or one for each row"),
        (pt.fscalar(), TypeError, "n must be one integer, or one a row"),
        ([1, 2, 3], ValueError, "one for each of 2 rows; got 3"),
        (pt.tensor(shape=(1,), dtype="int64"), ValueError, "one for each of 2 rows; got 1"),
    ):
        with pytest.raises(error, match=message):
            sink_cache.rewind(state, wrong)


def test_how_far_back_a_row_can_go():
    # 9 slots: until the tenth token nothing is overwritten.
    earliest = SinkCache(2, 4, 3).earliest_length([0, 8, 9, 10, 4_000_000])
    assert earliest.tolist() == [0, 0, 0, 7, 3_999_997]
    # With a ring of eight at twelve tokens, nothing can be taken back.
    assert SinkCache(0, 8).earliest_length(12) == 12
    assert SinkCache(2, 4, positions="wrapped").earliest_length(11) == 7
    for longest in (2.5, "3", None):
        with pytest.raises(TypeError, match="longest must be an integer"):
            SinkCache(2, 4).earliest_length(longest)


def test_initial_state():
    sink_cache = SinkCache(4, 60, 6)
    assert (sink_cache.ring, sink_cache.capacity) == (66, 70)
    state = sink_cache.initial_state(batch=2, n_kv_head=3, head_dim=16, dtype="float16")
    assert isinstance(state, SinkCacheState)
    assert state.keys.shape == state.values.shape == (2, 3, 70, 16)
    assert [x.dtype.name for x in state] == ["float16", "float16", "int32"]
    assert state.length.tolist() == [0, 0]
    assert not any(x.any() for x in state)


@pytest.mark.parametrize("scale", [None, 0.5, np.float32(0.5), np.float64(0.5), 1])
def test_props_are_plain_values_and_survive_pickling(scale):
    sink_cache = SinkCache(np.int64(2), np.int32(4))
    inputs = chunk_inputs(1, 1, "float32")
    given = state_variables(sink_cache.initial_state(1, N_KV_HEAD, HEAD_DIM))
    attended, new = sink_cache.attend(*inputs, given, rotary=RotaryEmbedding(), scale=scale)
    ops = {v.owner.op for v in ancestors([attended, *new]) if v.owner and isinstance(v.owner.op, LayerOp)}
    assert any(isinstance(op, SinkAttention) for op in ops)
    for op in ops:
        props = {name: getattr(op, name) for name in op.__props__}
        assert types_within(props.values()) <= {int, float, str, bool, type(None)}, props
        copied = pickle.loads(pickle.dumps(op))
        assert copied == op
        assert {name: getattr(copied, name) for name in op.__props__} == props


def test_building_a_float32_step_makes_no_float64():
    sink_cache = SinkCache(2, 4)
    with pytensor.config.change_flags(warn_float64="raise"):
        inputs = chunk_inputs(2, None, "float32")
        given = state_variables(sink_cache.initial_state(2, N_KV_HEAD, HEAD_DIM))
        attended, new = sink_cache.attend(*inputs, given, rotary=RotaryEmbedding())
    assert "float64" not in {v.type.dtype for v in ancestors([attended, *new])}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sinks": -1}, ValueError, "sinks must be at least 0; got -1"),
        ({"window": 0}, ValueError, "window must be at least 1; got 0"),
        ({"window": -3}, ValueError, "window must be at least 1; got -3"),
        ({"headroom": -1}, ValueError, "headroom must be at least 0; got -1"),
        ({"sinks": 1.0}, TypeError, r"sinks must be an integer; got 1\.0"),
        ({"window": "8"}, TypeError, "window must be an integer; got '8'"),
        ({"headroom": None}, TypeError, "headroom must be an integer; got None"),
        ({"sinks": True}, TypeError, "sinks must be an integer; got True"),
        ({"positions": "true"}, ValueError, "positions must be one of cache, absolute.*; got 'true'"),
        ({"positions": None}, ValueError, "positions must be one of cache, absolute.*; got None"),
        ({"positions": np.array(["cache"])}, ValueError, "positions must be one of cache.*; got array"),
    ],
)
def test_refused_hyper_parameters(arguments, error, message):
    with pytest.raises(error, match=message):
        SinkCache(**{"sinks": 4, "window": 8} | arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch": 0}, ValueError, "batch must be at least 1; got 0"),
        ({"n_kv_head": 0}, ValueError, "n_kv_head must be at least 1; got 0"),
        ({"head_dim": 2.0}, TypeError, r"head_dim must be an integer; got 2\.0"),
        ({"dtype": "bfloat16"}, ValueError, "dtype must be one of float16, float32, float64; got 'bfloat16'"),
        ({"dtype": "int32"}, ValueError, "dtype must be one of float16, float32, float64; got 'int32'"),
    ],
)
def test_refused_initial_states(arguments, error, message):
    with pytest.raises(error, match=message):
        SinkCache(4, 8).initial_state(**{"batch": 1, "n_kv_head": 1, "head_dim": 2} | arguments)


def tensor(*shape, dtype="float32"):
    return pt.tensor(shape=shape, dtype=dtype)


def refused(message, error=ValueError, **given):
    return pytest.param(given, error, message, id="-".join(given))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        refused("q must be .*; got 3 dimensions", q=tensor(4, 3, 8)),
        refused("v must be .*; got 5 dimensions", v=tensor(1, 1, 2, 3, 8)),
        refused("one dtype; got .*k float64", TypeError, k=tensor(1, 2, 3, 8, dtype="float64")),
        refused("q must be a float16.*got int64", TypeError, q=tensor(1, 4, 3, 8, dtype="int64")),
        refused("one dtype; got .*state.keys float16", TypeError, keys=tensor(1, 2, 6, 8, dtype="float16")),
        refused("state.length must be .* int32", TypeError, length=tensor(1, dtype="int64")),
        refused("state.length must be .* int32", TypeError, length=tensor(dtype="int32")),
        refused("batch must be the same for all; got .*state.length 2", length=tensor(2, dtype="int32")),
        refused("batch must be the same for all; got .*q 2", q=tensor(2, 4, 3, 8)),
        refused("n_kv_head must be the same for all; got .*k 1", k=tensor(1, 1, 3, 8)),
        refused("n_kv_head must be the same for all; got .*state.values 3", values=tensor(1, 3, 6, 8)),
        refused("seq must be the same for all; got .*k 4", k=tensor(1, 2, 4, 8)),
        refused("head_dim must be the same for all; got .*state.keys 16", keys=tensor(1, 2, 6, 16)),
        refused("heads must divide q's; got 2 and 3", q=tensor(1, 3, 3, 8)),
        refused(r"state.keys has 12 slots, but SinkCache\(sinks=2.*has 6", keys=tensor(1, 2, 12, 8)),
        refused("state.keys must be .*; got 3 dim", keys=tensor(1, 6, 8)),
        refused("head_dim=6, but the input's last axis is 8", rotary=RotaryEmbedding(head_dim=6)),
        refused("mask must be .* of bool", TypeError, mask=tensor(1, 3)),
        refused("mask must be a tensor", TypeError, mask="no"),
        refused("q must be a tensor", TypeError, q=object()),
        refused("rotary must be a RotaryEmbedding; got None", TypeError, rotary=None),
        refused("mask must be .* of bool", TypeError, mask=tensor(3, dtype="bool")),
        refused(r"chunk's batch and seq, \(1, 3\); got \(1, 4\)", mask=tensor(1, 4, dtype="bool")),
        refused(r"chunk's batch and seq, \(1, 3\); got \(2, 3\)", mask=tensor(2, 3, dtype="bool")),
    ],
)
def test_refused_inputs(given, error, message):
    state = SinkCacheState(
        keys=given.pop("keys", tensor(1, 2, 6, 8)),
        values=given.pop("values", tensor(1, 2, 6, 8)),
        length=given.pop("length", tensor(1, dtype="int32")),
    )
    right = {"q": tensor(1, 4, 3, 8), "k": tensor(1, 2, 3, 8), "v": tensor(1, 2, 3, 8)}
    arguments = {**right, "rotary": RotaryEmbedding()} | given
    with pytest.raises(error, match=message):
        SinkCache(2, 4).attend(state=state, **arguments)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), "half"])
def test_refused_scales(scale):
    state = state_variables(SinkCache(2, 4).initial_state(1, 2, 8))
    chunk = tensor(1, 4, 3, 8), tensor(1, 2, 3, 8), tensor(1, 2, 3, 8)
    with pytest.raises((TypeError, ValueError), match="scale"):
        SinkCache(2, 4).attend(*chunk, state, rotary=RotaryEmbedding(), scale=scale)
