"""Sink caches against the definition: any lengths, paddings, rewinds and resets, on every backend."""

from functools import cache

import cache_reference
import numpy as np
import pytensor.tensor as pt
import pytest
from conftest import compile_for
from hypothesis import given, settings
from hypothesis import strategies as st

from pytensor_rope import RotaryEmbedding, SinkCache, SinkCacheState

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
        counts = [round(share * n) for n in self.rewindable()]
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
