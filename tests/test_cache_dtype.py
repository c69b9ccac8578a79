"""Streams whose cache is narrower than their decoder."""

from functools import cache

import numpy as np
import pytest
from small_decoder import CONFIG, WINDOW, decoder_for, fresh, prompt, reference_logits, weights

from pytensor_rope import Decoder, SinkCache, Stream


@cache
def float16_stream_on(backend):
    return Stream(decoder_for(backend), SinkCache(2, WINDOW), backend=backend, dtype="float16")


def state(stream):
    return {name: np.array(array) for name, array in stream._own_state.arrays().items()}


def test_keys_and_values_are_kept_in_float16(float16_backend):
    stream, wide = float16_stream_on(float16_backend), fresh(float16_backend)
    stream.reset()
    stream.prefill(prompt())
    wide.prefill(prompt())
    narrow, wide_state = state(stream), state(wide)
    assert {str(array.dtype) for name, array in narrow.items() if name != "length"} == {"float16"}
    assert 2 * stream.nbytes == wide.nbytes
    # What the first layer keeps depends on no attention: it is the same, rounded (to a neighbour at worst,
    # where one backend sums in two orders).
    for name in ("keys.0", "values.0"):
        want = wide_state[name].astype("float16")
        np.testing.assert_array_less(np.abs(narrow[name] - want), np.spacing(np.abs(want)) * 1.5)


def test_logits_are_float32_and_near_the_wide_cache_s(float16_backend):
    stream = float16_stream_on(float16_backend)
    stream.reset()
    for token in prompt():
        one_at_a_time = stream.step(token)
    assert one_at_a_time.dtype == "float32"
    spread = np.ptp(reference_logits(2)[-1])
    np.testing.assert_allclose(one_at_a_time[0], reference_logits(2)[-1], atol=2e-3 * spread, rtol=0)
    stream.reset()
    stream.prefill(prompt()[:13])
    # Attention is to what is kept, so chunks make no difference, but for the order of sums before a rounding.
    chunks = stream.prefill(prompt()[13:])
    np.testing.assert_allclose(chunks, one_at_a_time, atol=2e-4 * spread, rtol=0)


def test_a_float16_stream_is_saved_bit_for_bit(float16_backend, tmp_path):
    stream = float16_stream_on(float16_backend)
    stream.reset()
    stream.prefill(prompt())
    before = state(stream)
    stream.save(tmp_path / "a")
    stream.reset()
    stream.prefill(prompt(seed=1))
    stream.load(tmp_path / "a")
    for name, array in state(stream).items():
        assert (array.dtype, array.tobytes()) == (before[name].dtype, before[name].tobytes())
    with pytest.raises(ValueError, match="dtype is 'float16' there and 'float32' here"):
        fresh(float16_backend).load(tmp_path / "a")


def test_a_float64_decoder_keeps_float64_or_less():
    pytest.importorskip("jax")
    wide = {name: array.astype("float64") for name, array in weights().items()}
    decoder = Decoder(config=CONFIG, weights=wide)
    for dtype, atol in ((None, 1e-9), ("float32", 1e-4)):
        stream = Stream(decoder, SinkCache(2, WINDOW), backend="jax", dtype=dtype)
        logits = stream.prefill(prompt())
        assert stream.dtype == (dtype or "float64")
        assert logits.dtype == "float64"
        np.testing.assert_allclose(logits[0], reference_logits(2)[-1], atol=atol, rtol=0)


def test_what_cannot_be_kept_is_refused():
    decoder, sinks = decoder_for("reference"), SinkCache(2, WINDOW)
    with pytest.raises(NotImplementedError, match=r"Numba has no float16 arrays\. Keep the cache in float32"):
        Stream(decoder, sinks, backend="numba", dtype="float16")
    for dtype in ("float64", "bfloat16", 3):
        message = f"one of float16, float32 for a decoder in float32; got {dtype!r}"
        with pytest.raises(ValueError, match=message):
            Stream(decoder, sinks, backend="numba", dtype=dtype)
