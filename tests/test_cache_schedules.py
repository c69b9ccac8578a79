"""Sink caches against the definition: any lengths, paddings, rewinds and resets, on every backend."""

from functools import cache

import cache_reference
import numpy as np
import pytensor.tensor as pt
import pytest
import reference
from conftest import compile_for
from hypothesis import given, settings
from hypothesis import strategies as st

from pytensor_rope import RotaryEmbedding, SinkCache, SinkCacheState
from pytensor_rope.layout import POSITIONS

BATCH, N_KV_HEAD, HEAD_DIM = 2, 2, 16

# (sinks, window, headroom, positions, query heads of a key/value head)
GEOMETRIES = [
    (2, 4, 3, "cache", 2),
    (0, 3, 1, "absolute", 1),
    (4, 3, 0, "wrapped", 3),
]


class Schedule:
    """A cache and the definition of it, side by side through what is done to both."""

    def __init__(self, attend, geometry, seed):
        sinks, window, headroom, positions, group = geometry
        self.attend = attend
        self.cache = SinkCache(sinks, window, headroom, positions)
        self.headroom = window if positions == "wrapped" else headroom
        self.n_head, self.seq = N_KV_HEAD * group, 3 * window
        self.rng = np.random.default_rng(seed)
        self.state = self.cache.initial_state(BATCH, N_KV_HEAD, HEAD_DIM)
        self.rows = [cache_reference.Row(sinks, window, positions) for _ in range(BATCH)]
        self.longest = [0] * BATCH

    def read(self, mask):
        """Read a chunk whose tokens are where ``mask`` is, and compare what each of them sees."""
        q, k, v = (self.rng.standard_normal((BATCH, n, self.seq, HEAD_DIM)) for n in self._heads())
        # The last head weighs all that it sees alike, and tells by its values what that is.
        q[:, -(self.n_head // N_KV_HEAD) :] = 0
        for b, row in enumerate(self.rows):
            for x in (q, k, v):
                x[b][:, ~mask[b]] = 1e4  # what padding holds must not matter
            ids = (len(row) + np.cumsum(mask[b]) - 1) % HEAD_DIM
            v[b, -1, mask[b]] = np.eye(HEAD_DIM)[ids[mask[b]]]
        q, k, v = (x.astype("float32") for x in (q, k, v))
        attended, *state = self.attend(q, k, v, mask, *self.state)
        self.state = SinkCacheState(*state)
        for b, row in enumerate(self.rows):
            for t in np.flatnonzero(mask[b]):
                self._compare(attended[b, :, t], *row.read(q[b, :, t], k[b, :, t], v[b, :, t]))
            np.testing.assert_array_equal(attended[b][:, ~mask[b]], 0)
            self.longest[b] = max(self.longest[b], len(row))
        assert self.state.length.tolist() == [len(row) for row in self.rows]

    def rewind(self, share):
        """Take back a share of what each row can."""
        self.take_back([round(share * n) for n in self.rewindable()])

    def take_back(self, counts):
        self.state = self.cache.rewind(self.state, np.array(counts))
        for row, n in zip(self.rows, counts, strict=True):
            row.rewind(n)

    def reset(self, b):
        length = self.state.length.copy()
        length[b] = 0
        self.state = self.state._replace(length=length)
        self.rows[b].rewind(len(self.rows[b]))
        self.longest[b] = 0

    def rewindable(self):
        geometry = self.cache.sinks, self.cache.window, self.headroom
        return [
            cache_reference.rewindable(len(row), longest, *geometry)
            for row, longest in zip(self.rows, self.longest, strict=True)
        ]

    def _heads(self):
        return self.n_head, N_KV_HEAD, N_KV_HEAD

    def _compare(self, attended, expected, seen):
        np.testing.assert_allclose(attended, expected, rtol=0, atol=1e-5)
        times_seen = np.bincount(np.array(seen) % HEAD_DIM, minlength=HEAD_DIM)
        np.testing.assert_allclose(attended[-1] * len(seen), times_seen, rtol=0, atol=1e-4)


@cache
def compiled(backend, geometry):
    """Attend to a chunk of three windows, of which a mask says what is real."""
    sinks, window, headroom, positions, group = geometry
    sink_cache = SinkCache(sinks, window, headroom, positions)
    heads = {"q": N_KV_HEAD * group, "k": N_KV_HEAD, "v": N_KV_HEAD}
    chunk = [
        pt.tensor(name, shape=(BATCH, n, 3 * window, HEAD_DIM), dtype="float32") for name, n in heads.items()
    ]
    mask = pt.tensor("mask", shape=(BATCH, 3 * window), dtype="bool")
    initial = sink_cache.initial_state(BATCH, N_KV_HEAD, HEAD_DIM)
    state = SinkCacheState(*(pt.tensor(shape=x.shape, dtype=x.dtype) for x in initial))
    attended, new = sink_cache.attend(*chunk, state, rotary=RotaryEmbedding(), mask=mask)
    return compile_for([*chunk, mask, *state], [attended, *new], backend)


def draw_mask(data, seq):
    """Draw which of a chunk's places hold tokens: on the left, on the right, or anywhere."""
    rows = []
    for _ in range(BATCH):
        count, kind = data.draw(st.integers(0, seq)), data.draw(st.sampled_from(["front", "back", "any"]))
        row = np.arange(seq) < count
        if kind == "any":
            np.random.default_rng(data.draw(st.integers(0, 99))).shuffle(row)
        rows.append(row[::-1] if kind == "back" else row)
    return np.array(rows)


def run_drawn_schedule(data, backend, geometry):
    schedule = Schedule(compiled(backend, geometry), geometry, seed=data.draw(st.integers(0, 99)))
    for action in data.draw(
        st.lists(st.sampled_from(["read"] * 4 + ["rewind", "reset"]), min_size=4, max_size=8)
    ):
        if action == "read":
            schedule.read(draw_mask(data, schedule.seq))
        elif action == "rewind":
            schedule.rewind(data.draw(st.floats(0, 1)))
        else:
            schedule.reset(data.draw(st.integers(0, BATCH - 1)))


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda value: "-".join(map(str, value)))
def test_any_schedule_gives_the_definition(backend, geometry):
    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def run(data):
        run_drawn_schedule(data, backend, geometry)

    run()


def drawn_geometry(seed):
    """Return 0 to 5 sinks, a window of 1 to 9, headroom of 0 to 4, and 1 to 3 query heads to a key head."""
    rng = np.random.default_rng(seed)
    positions = POSITIONS[seed % len(POSITIONS)]
    sinks, window, headroom, group = (int(rng.integers(low, high)) for low, high in RANGES)
    return sinks, window, min(headroom, window) if positions == "wrapped" else headroom, positions, group


RANGES = [(0, 6), (1, 10), (0, 5), (1, 4)]


# The smallest and the largest, as geometries of their own.
EDGES = [(0, 1, 0, "cache", 1), (0, 1, 0, "wrapped", 2), (1, 1, 4, "absolute", 3), (5, 9, 4, "cache", 1)]


# A geometry costs C and Numba seconds to compile. They have the few above.
@pytest.mark.parametrize("drawn", range(8 + len(EDGES)))
def test_any_geometry_gives_the_definition(tracing_backend, drawn):
    other = 100 * (tracing_backend == "mlx")
    geometry = EDGES[drawn] if drawn < len(EDGES) else drawn_geometry(drawn + other)

    @settings(max_examples=10, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def run(data):
        run_drawn_schedule(data, tracing_backend, geometry)

    run()


def test_rows_with_padding_before_them_across_the_wrap(backend):
    # Rows of 0, 1 and 5 pads, as batches of prompts have them, then chunks past the ring's end.
    geometry = GEOMETRIES[0]
    for pads in ((0, 1), (1, 5), (5, 0)):
        schedule = Schedule(compiled(backend, geometry), geometry, seed=sum(pads))
        schedule.read(np.array([np.arange(schedule.seq) >= n for n in pads]))
        for _ in range(3):
            schedule.read(np.ones((BATCH, schedule.seq), "bool"))


def test_rewinding_to_any_length_that_is_kept(backend):
    # A cache of 8 slots at 12 tokens, and one that was never full: every rewind that can be had.
    geometry = GEOMETRIES[0]
    attend = compiled(backend, geometry)
    for lengths in ((12, 9), (8, 10), (9, 4)):
        for n in range(max(lengths) + 1):
            schedule = Schedule(attend, geometry, seed=n)
            schedule.read(first_tokens(lengths))
            counts = [min(n, can) for can in schedule.rewindable()]
            schedule.take_back(counts)
            for count in (1, 2, 12):
                schedule.read(first_tokens((count, count)))


def first_tokens(counts, seq=12):
    return np.arange(seq) < np.array(counts)[:, None]


def test_sinks_stay_as_they_were_written_for_a_hundred_thousand_tokens(backend):
    geometry = GEOMETRIES[0]
    attend = compiled(backend, geometry)
    schedule = Schedule(attend, geometry, seed=0)
    schedule.read(first_tokens((12, 12)))
    sinks = geometry[0]
    written = [x[:, :, :sinks].copy() for x in schedule.state[:2]]
    chunk = [
        np.random.default_rng(n).standard_normal((BATCH, n, 12, HEAD_DIM)).astype("float32")
        for n in (schedule.n_head, N_KV_HEAD, N_KV_HEAD)
    ]
    state, every = schedule.state, first_tokens((12, 12))
    for _ in range(100_000 // 12):
        attended, *state = attend(*chunk, every, *state)
    assert state[2].tolist() == [12 + 100_000 // 12 * 12] * BATCH
    assert np.isfinite(attended).all()
    for now, then in zip(state, written, strict=False):
        np.testing.assert_array_equal(now[:, :, :sinks], then)


def test_masks_of_single_tokens_and_of_one_row(tracing_backend):
    sink_cache = SinkCache(1, 3)
    for batch, seq in ((2, 1), (1, 5)):
        chunk = [pt.tensor(shape=(batch, 2, seq, 4), dtype="float32") for _ in range(3)]
        mask = pt.tensor(shape=(None, None), dtype="bool")
        state = SinkCacheState(*(pt.as_tensor(x).type() for x in sink_cache.initial_state(batch, 2, 4)))
        attended, new = sink_cache.attend(*chunk, state, rotary=RotaryEmbedding(), mask=mask)
        attend = compile_for([*chunk, mask, *state], [attended, *new], tracing_backend)
        rng, rows = np.random.default_rng(0), [cache_reference.Row(1, 3) for _ in range(batch)]
        values = sink_cache.initial_state(batch, 2, 4)
        for _ in range(12):
            q, k, v = (rng.standard_normal((batch, 2, seq, 4)).astype("float32") for _ in range(3))
            shown = rng.random((batch, seq)) < 0.6
            got, *values = attend(q, k, v, shown, *values)
            for b, row in enumerate(rows):
                expected = np.zeros((2, seq, 4))
                for t in np.flatnonzero(shown[b]):
                    expected[:, t] = row.read(q[b, :, t], k[b, :, t], v[b, :, t])[0]
                np.testing.assert_allclose(got[b], expected, rtol=0, atol=1e-5)
        with pytest.raises((ValueError, AssertionError), match=r"[Ss]hape"):
            attend(q, k, v, np.ones((batch, seq + 1), "bool"), *values)


def test_gradients_of_a_chunk_with_padding(tracing_backend):
    geometry = GEOMETRIES[0]
    sinks, window, headroom, positions, _ = geometry
    sink_cache = SinkCache(sinks, window, headroom, positions)
    q, k, v = (pt.tensor(shape=(2, 1, 5, 4), dtype="float64") for _ in range(3))
    mask = pt.tensor(shape=(2, 5), dtype="bool")
    state = SinkCacheState(*sink_cache.initial_state(2, 1, 4, "float64"))
    attended, _ = sink_cache.attend(q, k, v, state, rotary=RotaryEmbedding(), mask=mask)
    gradients = compile_for([q, k, v, mask], pt.grad((attended**2).sum(), [q, k, v]), tracing_backend)
    chunk = [np.random.default_rng(i).standard_normal((2, 1, 5, 4)) for i in range(3)]
    shown = np.array([[0, 1, 1, 0, 1], [0, 0, 0, 0, 0]], "bool")
    got = gradients(*chunk, shown)

    def cost(q, k, v):
        row = cache_reference.Row(sinks, window, positions)
        read = [row.read(q[0, :, t], k[0, :, t], v[0, :, t])[0] for t in np.flatnonzero(shown[0])]
        return (np.array(read) ** 2).sum()

    tolerance = 1e-4 if tracing_backend == "mlx" else 1e-7
    for i, gradient in enumerate(got):
        expected = reference.numeric_gradient(lambda x, i=i: cost(*chunk[:i], x, *chunk[i + 1 :]), chunk[i])
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=tolerance)
