"""Rows of one stream that go their own ways, each against a decoder written out in NumPy."""

from functools import cache

import decoder_reference
import numpy as np
import pytest
from small_decoder import CONFIG, decoder_for, prompt, weights

from pytensor_rope import SinkCache, Stream

SINKS, WINDOW, HEADROOM = 2, 8, 3
SLOTS = SINKS + WINDOW + HEADROOM


def stream(backend, batch=3):
    return Stream(decoder_for(backend), SinkCache(SINKS, WINDOW, HEADROOM), backend=backend, batch=batch)


shared = cache(stream)


def fresh(backend):
    rows = shared(backend)
    rows.reset()
    return rows


@cache
def ids(row, n=60):
    return prompt(n, seed=10 + row).tolist()


@cache
def logits_after(*read):
    """Return the logits after the last of the tokens, from a row that has read these alone."""
    return decoder_reference.decoder_logits(weights(), CONFIG, np.array(read), SINKS, WINDOW)[-1]


def check(logits, read):
    """Compare the logits of each row that has read something; the others must have none."""
    for row, of_row in zip(logits, read, strict=True):
        if of_row is None:
            assert np.isnan(row).all()
        else:
            np.testing.assert_allclose(row, logits_after(*of_row), atol=1e-4, rtol=0)


def test_prompts_of_different_lengths_are_each_what_they_are_alone(backend):
    rows = fresh(backend)
    read = [ids(0)[:5], ids(1)[:1], ids(2)[:30]]
    check(rows.prefill(read), read)
    assert rows.lengths.tolist() == [5, 1, 30]
    assert rows.position == 30
    for _ in range(12):
        tokens = [ids(row)[len(of_row)] for row, of_row in enumerate(read)]
        read = [[*of_row, token] for of_row, token in zip(read, tokens, strict=True)]
        logits = rows.step(tokens)
    check(logits, read)
    more = [ids(0)[17:40], [], ids(2)[42:44]]
    check(rows.prefill(more), [ids(0)[:40], None, ids(2)[:44]])
    assert rows.lengths.tolist() == [40, 13, 44]


def test_prompts_that_end_in_different_chunks(backend):
    # Chunks are of 64 tokens, of 16 on MLX: one row ends in the second, one with the first, one early on.
    rows = fresh(backend)
    read = [ids(0, 70), ids(1, 64), ids(2, 3)]
    check(rows.prefill(read), read)
    assert rows.lengths.tolist() == [70, 64, 3]


@pytest.mark.parametrize("pads", [(0, 1, 5), (5, 0, 1)])
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding_is_never_read_on_either_side(backend, side, pads):
    seq = 20
    padded, mask = np.full((3, seq), -1), np.zeros((3, seq), "bool")
    for row, n in enumerate(pads):
        start = {"left": n, "right": 0, "both": n // 2}[side]
        mask[row, start : start + seq - n] = True
        padded[row, mask[row]] = ids(row)[: seq - n]
    rows = fresh(backend)
    read = [ids(row)[: seq - n] for row, n in enumerate(pads)]
    check(rows.prefill(padded, mask=mask), read)
    assert rows.lengths.tolist() == [seq - n for n in pads]
    check(rows.step([7, 8, 9]), [[*of_row, token] for of_row, token in zip(read, (7, 8, 9), strict=True)])


def test_rows_left_out_of_a_step_stay_where_they_are(backend):
    rows = fresh(backend)
    read = [[], [], []]
    for t in range(45):
        active = np.array([True, t % 2 == 0, t % 3 == 0])
        tokens = np.where(active, [ids(row)[len(of_row)] for row, of_row in enumerate(read)], -1)
        for of_row, token in zip(read, tokens, strict=True):
            of_row.extend([token] if token >= 0 else [])
        logits = rows.step(tokens, active=active)
        if t % 7 == 6:
            check(logits, [of_row if reads else None for of_row, reads in zip(read, active, strict=True)])
    assert rows.lengths.tolist() == [45, 23, 15]
    check(rows.step([1, 2, 3]), [[*of_row, token] for of_row, token in zip(read, (1, 2, 3), strict=True)])


def test_a_row_begins_anew_while_the_others_go_on(backend):
    rows = fresh(backend)
    rows.prefill([ids(0)[:20], ids(1)[:20], ids(2)[:20]])
    rows.reset(rows=1)
    assert rows.lengths.tolist() == [20, 0, 20]
    check(rows.prefill([[], ids(0)[:6], []]), [None, ids(0)[:6], None])
    check(rows.step([1, 2, 3]), [[*ids(0)[:20], 1], [*ids(0)[:6], 2], [*ids(2)[:20], 3]])
    rows.reset(rows=[0, 2])
    assert rows.lengths.tolist() == [0, 7, 0]


@pytest.mark.parametrize("read", [5, SLOTS, SLOTS + 1, 40])
def test_tokens_taken_back_leave_no_trace(backend, read):
    rows = fresh(backend)
    most = read if read <= SLOTS else HEADROOM
    counts = [most, most // 2, 0]
    rows.prefill([ids(row)[:read] for row in range(3)])
    rows.rewind(counts)
    kept = [ids(row)[: read - n] for row, n in enumerate(counts)]
    assert rows.lengths.tolist() == [read - n for n in counts]
    # On from there with other tokens, past where it was: what was taken back must never show.
    others = ids(3)
    for t in range(WINDOW + 3):
        kept = [[*of_row, others[t + row]] for row, of_row in enumerate(kept)]
        check(rows.step([of_row[-1] for of_row in kept]), kept)


def test_rewinds_add_up_from_the_furthest_point(backend):
    rows = fresh(backend)
    rows.prefill([ids(row)[:30] for row in range(3)])
    rows.rewind(2)
    rows.rewind(1, rows=[0])
    with pytest.raises(ValueError, match="n must be at most 0 for row 0, at 27 tokens; got 1"):
        rows.rewind(1)
    assert rows.lengths.tolist() == [27, 28, 28]  # refused for one, done for none
    rows.step([1, 2, 3])
    with pytest.raises(ValueError, match="n must be at most 1 for row 0, at 28 tokens; got 2"):
        rows.rewind(2, rows=0)
    rows.rewind([1, 2], rows=[0, 1])
    assert rows.lengths.tolist() == [27, 27, 29]
    check(rows.step([4, 5, 6]), [[*ids(0)[:27], 4], [*ids(1)[:27], 5], [*ids(2)[:28], 3, 6]])


def test_what_can_be_taken_back_counts_from_where_the_row_was_empty():
    rows = stream("jax")
    rows._rows.advance(np.array([SLOTS, SLOTS + 1, 4]))
    rows.rewind([SLOTS, 0, 4])
    with pytest.raises(ValueError, match=f"at most 3 for row 1, at {SLOTS + 1} tokens; got 4"):
        rows.rewind(4, rows=1)
    rows.reset(rows=1)
    rows._rows.advance(np.array([0, SLOTS, 0]))
    rows.rewind(np.array([SLOTS], "int8"), rows=1)
    assert rows.lengths.tolist() == [0, 0, 0]


def test_rows_come_and_go(tracing_backend):
    rows = stream(tracing_backend)
    rows.prefill([ids(0)[:20], ids(1)[:3], ids(2)[:30]])
    nbytes = rows.nbytes
    rows.drop(1)
    assert (rows.batch, rows.lengths.tolist(), rows.nbytes) == (2, [20, 30], nbytes // 3 * 2)
    check(rows.step([1, 2]), [[*ids(0)[:20], 1], [*ids(2)[:30], 2]])
    rows.rewind(HEADROOM, rows=1)
    assert rows.add(2) == range(2, 4)
    assert rows.lengths.tolist() == [21, 28, 0, 0]
    logits = rows.prefill([[3], [4, 5], ids(3)[:12], [6]])
    check(logits, [[*ids(0)[:20], 1, 3], [*ids(2)[:28], 4, 5], ids(3)[:12], [6]])
    rows.drop([0, 1, 3])
    check(rows.step(7), [[*ids(3)[:12], 7]])


LAYERS = [(2, 4, "cache"), (0, 40, "absolute")]


def test_layers_with_windows_of_their_own(backend):
    caches = [SinkCache(sinks, window, positions=positions) for sinks, window, positions in LAYERS]
    mixed = Stream(decoder_for(backend), caches, backend=backend)
    assert mixed.nbytes == 2 * 4 * CONFIG.n_kv_head * CONFIG.head_dim * (6 + 40)
    expected = decoder_reference.decoder_logits_by_layer(weights(), CONFIG, np.array(ids(0)), LAYERS)
    for t, token in enumerate(ids(0)):
        np.testing.assert_allclose(mixed.step(token)[0], expected[t], atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match="n must be at most 0"):  # one of the layers has no headroom
        mixed.rewind(1)


def test_layers_that_share_a_geometry_share_an_op_and_its_angles():
    decoder = decoder_for("reference")
    count = {}
    for caches in ([SinkCache(2, 4)] * 2, [SinkCache(2, 4), SinkCache(2, 5)]):
        stream = Stream(decoder, caches, backend="jax")
        assert callable(stream._step)
        compiled = stream._own_state.functions["_step"].compiled
        nodes = [node.op for node in compiled.maker.fgraph.apply_nodes]
        layers = {op for op in nodes if type(op).__name__ == "DecoderLayer"}
        angles = [op for op in nodes if type(op).__name__ == "Angles"]
        count[caches[0] == caches[1]] = len(layers), len(angles)
    # Another window sees the sinks from elsewhere: one more set of angles.
    assert count == {True: (1, 2), False: (2, 3)}


def refused(call, error, message):
    return pytest.param(call, error, message, id=message[:40])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        refused(lambda s: s.prefill([[1], [2, 3]]), ValueError, "one prompt for each of 3 rows; got 2 of"),
        refused(lambda s: s.prefill([[1], [2, 3], [[4]]]), ValueError, r"of shapes .*\(1, 1\)"),
        refused(lambda s: s.prefill([[1], [2, 61], []]), ValueError, "from 0 to 60, the vocabulary; got 61"),
        refused(lambda s: s.prefill([[1], [2.5, 1], []]), TypeError, "must be integers; got float64"),
        refused(lambda s: s.prefill([[], [], []]), ValueError, "token_ids is empty"),
        refused(lambda s: s.prefill(np.ones((3, 2), int), np.zeros((3, 2), bool)), ValueError, "is empty"),
        refused(lambda s: s.prefill(np.ones((3, 2), int), np.ones((3, 2))), ValueError, "mask must be bool"),
        refused(
            lambda s: s.prefill(np.ones((3, 2), int), np.ones((3, 1), bool)),
            ValueError,
            r"in the shape of token_ids, \(3, 2\); got bool of shape \(3, 1\)",
        ),
        refused(lambda s: s.step([1, 2, 3], active=[1, 0, 1]), ValueError, "active must be one boolean"),
        refused(lambda s: s.step([1, 2, 3], active=[True]), ValueError, r"got bool of shape \(1,\)"),
        refused(lambda s: s.step([1, 2, 3], active=[False] * 3), ValueError, "active leaves out every row"),
        refused(lambda s: s.step([1, -1, 3], active=[True] * 3), ValueError, "the vocabulary; got -1"),
        refused(lambda s: s.rewind(2), ValueError, "n must be at most 1 for row 1, at 1 tokens; got 2"),
        refused(lambda s: s.rewind(-1), ValueError, "n must be at least 0; got -1"),
        refused(lambda s: s.rewind(0.5), TypeError, "n must be an integer"),
        refused(
            lambda s: s.rewind(np.uint8(2)), ValueError, r"at most 1 for row 1, .*; got np.uint8\(2\)\.$"
        ),
        refused(lambda s: s.rewind([0, [0]]), ValueError, "n must make a regular array; got"),
        refused(lambda s: s.reset([0, [0]]), ValueError, "rows must make a regular array; got"),
        refused(lambda s: s.prefill([[1, 2], [3, [4]]]), ValueError, "token_ids must make a regular array"),
        refused(lambda s: s.rewind([0, 0]), ValueError, "n must be one number, or one for each of 3 rows"),
        refused(lambda s: s.rewind(0, rows=[3]), ValueError, "rows must be from 0 to 2"),
        refused(lambda s: s.reset(rows=-1), ValueError, "rows must be from 0 to 2; got -1"),
        refused(lambda s: s.reset(rows=[0, 0]), ValueError, "rows must name each row once"),
        refused(lambda s: s.reset(rows=[True, False, True]), TypeError, "For a mask, numpy.flatnonzero"),
        refused(lambda s: s.drop([0, 1, 2]), ValueError, "rows must leave a row of 3"),
        refused(lambda s: s.add(0), ValueError, "n must be at least 1; got 0"),
    ],
)
def test_what_is_refused_changes_nothing(call, error, message):
    rows = stream("jax")
    rows._rows.advance(np.array([3, 1, 2]))
    with pytest.raises(error, match=message):
        call(rows)
    assert (rows.batch, rows.lengths.tolist()) == (3, [3, 1, 2])


@pytest.mark.parametrize("change", [lambda s: s.add(), lambda s: s.drop(1)], ids=["add", "drop"])
def test_rows_that_memory_does_not_hold_change_nothing(monkeypatch, change):
    def full(state):
        raise MemoryError

    rows = stream("jax")
    rows._rows.advance(np.array([5, 3, 4]))
    monkeypatch.setattr("pytensor_rope.stream.StreamState", full)
    with pytest.raises(MemoryError):
        change(rows)
    assert (rows.batch, rows.lengths.tolist()) == (3, [5, 3, 4])


def test_a_stream_of_no_decoder_is_refused():
    with pytest.raises(TypeError, match="decoder must be a Decoder; got a DecoderConfig"):
        Stream(CONFIG, SinkCache(2, 4), backend="jax")


def test_each_row_ends_where_its_counter_does():
    rows = stream("jax")
    rows._rows.advance(np.array([5, 2**31 - 2, 0]))
    with pytest.raises(ValueError, match="ends at 2147483647 tokens, and 2147483646 have been read in row 1"):
        rows.prefill([[1], [2, 3], [4]])
    with pytest.raises(ValueError, match="in row 1"):
        rows._rows.advance(np.array([0, 1, 0]))
        rows.step([1, 2, 3])
    rows._rows.check_room(np.array([1, 0, 1]))


@pytest.mark.parametrize(
    ("caches", "error", "message"),
    [
        ([SinkCache(2, 4)] * 3, ValueError, "one for each of 2 layers; got 3"),
        ([SinkCache(2, 4), 4], TypeError, "a SinkCache or a sequence of them"),
        (None, TypeError, "cache must be a SinkCache or a sequence of them; got None"),
    ],
)
def test_caches_that_are_not_one_a_layer_are_refused(caches, error, message):
    with pytest.raises(error, match=message):
        Stream(decoder_for("reference"), caches, backend="jax")
