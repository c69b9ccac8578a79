"""Long streams under each policy of positions, against a decoder written out in NumPy."""

from functools import cache

import decoder_reference
import numpy as np
import pytest
from small_decoder import CONFIG, decoder_for, prompt, weights

from pytensor_rope import SinkCache, Stream
from pytensor_rope.layout import POSITIONS

# The case that ExecuTorch publishes with its remapped positions (pytorch/executorch, pull request 19011):
# a context of 64, 4 sinks, a window of 16, and 100 tokens written after a prompt of 4.
SINKS, WINDOW, PROMPT, WRITTEN = 4, 16, 4, 100


@cache
def stream_on(backend, positions):
    return Stream(decoder_for(backend), SinkCache(SINKS, WINDOW, positions=positions), backend=backend)


@cache
def reference_logits(positions, *ids):
    return decoder_reference.decoder_logits(weights(), CONFIG, np.array(ids), SINKS, WINDOW, positions)


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_text_longer_than_the_context(backend, positions):
    assert CONFIG.context_length < PROMPT + WRITTEN
    stream = stream_on(backend, positions)
    stream.reset()
    ids = prompt(PROMPT).tolist()
    logits = [stream.step(token)[0] for token in ids]
    for _ in range(WRITTEN):
        ids.append(int(logits[-1].argmax()))
        logits.append(stream.step(ids[-1])[0])
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits, reference_logits(positions, *ids), atol=1e-4, rtol=0)


def test_the_policies_differ_once_the_window_has_moved():
    ids = prompt(60).tolist()
    of_cache, absolute, wrapped = (reference_logits(positions, *ids) for positions in POSITIONS)
    lap = SINKS + 2 * WINDOW
    for logits in (absolute, wrapped):
        difference = np.abs(logits - of_cache).max(axis=-1)
        assert (difference[: SINKS + WINDOW] < 1e-9).all()
        assert difference[SINKS + WINDOW :].min() > 1e-3
    difference = np.abs(wrapped - absolute).max(axis=-1)
    assert (difference[:lap] < 1e-9).all()
    assert difference[lap:].min() > 1e-3


def logits_from(stream, position, ids):
    """Read the sinks, go on at a position far from them with an empty window, and return the logits."""
    stream.reset()
    for shared in (*stream._state.keys, *stream._state.values):
        shared.set_value(np.zeros(np.shape(shared.get_value(borrow=True)), "float32"))
    for token in ids[:SINKS]:
        stream.step(token)
    stream._rows.advance(np.array([position - SINKS]))
    stream._put_lengths()
    logits = np.concatenate([stream.step(token) for token in ids[SINKS:]])
    assert stream.lengths.tolist() == [position + len(ids) - SINKS]
    return logits


@pytest.mark.parametrize("positions", ["cache", "wrapped"])
def test_four_million_tokens_out_is_as_near(backend, positions):
    # Of the remap, both positions are as far into the ring.
    near, far = 2_000, 4_000_016
    assert (far - near) % (2 * WINDOW) == 0
    ids = prompt(90).tolist()
    stream = stream_on(backend, positions)
    logits = logits_from(stream, far, ids)
    np.testing.assert_allclose(logits, logits_from(stream, near, ids), atol=1e-4, rtol=0)
    if positions == "cache":
        # Each layer looks back a window: from then on nothing tells how long the stream has been.
        settled = SINKS + CONFIG.n_layer * WINDOW
        expected = reference_logits(positions, *ids)[settled:]
        np.testing.assert_allclose(logits[settled - SINKS :], expected, atol=1e-4, rtol=0)
