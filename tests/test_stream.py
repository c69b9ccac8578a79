"""Streams of a small decoder, against a decoder written out in NumPy."""

import decoder_reference
import numpy as np
import pytest
from small_decoder import CONFIG, WINDOW, decoder_for, fresh, prompt, reference_logits, weights

from pytensor_rope import SinkCache, Stream
from pytensor_rope.sampling import Sampler

SINKS = (0, 1, 4)


@pytest.mark.parametrize("sinks", SINKS)
def test_one_token_at_a_time_gives_the_reference(backend, sinks):
    stream = fresh(backend, sinks)
    logits = np.concatenate([stream.step(token) for token in prompt()])
    np.testing.assert_allclose(logits, reference_logits(sinks), atol=1e-4, rtol=0)


@pytest.mark.parametrize("sinks", SINKS)
def test_any_chunking_gives_the_reference(backend, sinks):
    for lengths in ([30], [5, 25], [1, 2, 27], [9, 1, 1, 8, 11]):
        stream = fresh(backend, sinks)
        read = 0
        for length in lengths:
            logits = stream.prefill(prompt()[read : read + length])
            read += length
            np.testing.assert_allclose(
                logits[0], reference_logits(sinks)[read - 1], atol=1e-4, rtol=0, err_msg=f"{lengths}"
            )
            assert stream.position == read


def test_a_prompt_of_several_chunks_gives_one_token_at_a_time(backend):
    ids = prompt(150, seed=1)
    stream = fresh(backend)
    for token in ids:
        one_at_a_time = stream.step(token)
    np.testing.assert_allclose(fresh(backend).prefill(ids), one_at_a_time, atol=1e-4, rtol=0)


def test_a_score_is_the_negative_log_likelihood_of_each_next_token(backend):
    stream = fresh(backend)
    stream.step(3)  # a score starts from an empty cache, whatever was read before
    seen = []
    losses = stream.score(prompt(), progress=seen.append)
    logits = reference_logits(2)[:-1]
    log_total = np.log(np.exp(logits).sum(axis=-1))
    want = log_total - logits[np.arange(29), prompt()[1:]]
    np.testing.assert_allclose(losses, want, atol=1e-4, rtol=0)
    assert seen[-1] == 29


def test_greedy_text_follows_the_likeliest_tokens(backend):
    stream = fresh(backend)
    logits, want = stream.prefill([1, 2, 3]), []
    for _ in range(20):
        want.append(int(logits[0].argmax()))
        logits = stream.step(want[-1])
    assert list(fresh(backend).generate([1, 2, 3], 20)) == want
    stop = want[6]
    cut = want[: want.index(stop) + 1]
    assert list(fresh(backend).generate([1, 2, 3], None, stop=(stop,))) == cut


def test_sampled_text_is_what_the_reference_logits_and_the_seed_give(backend):
    written = list(fresh(backend).generate([1, 2, 3], 12, temperature=1.0, seed=5))
    ids = np.array([1, 2, 3, *written])
    logits = decoder_reference.decoder_logits(weights(), CONFIG, ids, 2, WINDOW)
    sampler = Sampler(temperature=1.0, seed=5)
    assert [sampler(row) for row in logits[2:-1]] == written


def test_generate_reads_on_from_what_was_read(backend):
    stream = fresh(backend)
    stream.prefill(prompt()[:10])
    (token,) = stream.generate(prompt()[10:], 1)
    assert token == reference_logits(2)[-1].argmax()
    assert stream.position == 30


def test_an_endless_text_goes_on_and_memory_does_not_grow(backend):
    stream = fresh(backend)
    tokens = stream.generate([1], None, temperature=1.0, seed=0)
    states = stream._state
    shapes = [np.shape(keys.get_value(borrow=True)) for keys in states.keys]
    assert all(0 <= next(tokens) < CONFIG.vocab_size for _ in range(60))
    assert stream.position == 60
    assert [np.shape(keys.get_value(borrow=True)) for keys in states.keys] == shapes
    itemsize = 4
    assert stream.nbytes == 2 * sum(np.prod(shape) for shape in shapes) * itemsize


def test_two_streams_of_one_model_do_not_disturb_each_other(backend):
    first, second = fresh(backend, 2), fresh(backend, 3)
    for token in prompt():
        a, b = first.step(token), second.step(token)
    np.testing.assert_allclose(a[0], reference_logits(2)[-1], atol=1e-4, rtol=0)
    np.testing.assert_allclose(b[0], reference_logits(3)[-1], atol=1e-4, rtol=0)


REFUSED = [
    ([], ValueError, "token_ids is empty"),
    ([61], ValueError, "from 0 to 60, the vocabulary; got 61"),
    ([3, -1], ValueError, "from 0 to 60, the vocabulary; got -1"),
    ([0.5], TypeError, "token_ids must be integers; got float64"),
    (["a"], TypeError, "token_ids must be integers"),
    ([[1], [2]], ValueError, r"shape \(1, n\) for this stream's batch; got \(2, 1\)"),
]


@pytest.mark.parametrize(("ids", "error", "message"), REFUSED)
def test_wrong_token_ids_are_refused_before_anything_is_read(ids, error, message):
    stream = Stream(decoder_for("reference"), SinkCache(2, 8), backend="jax")
    for read in (stream.prefill, stream.score, lambda ids: stream.generate(ids, 1)):
        with pytest.raises(error, match=message):
            read(ids)
    assert stream.position == 0


def test_wrong_settings_are_refused_at_once():
    stream = Stream(decoder_for("reference"), SinkCache(2, 8), backend="jax")
    for wrong, name in (
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "temperature": -1.0}, "temperature"),
        ({"max_tokens": 5, "top_k": 0}, "top_k"),
        ({"max_tokens": 5, "top_p": 0.0}, "top_p"),
    ):
        with pytest.raises(ValueError, match=name):
            stream.generate([1], **wrong)
    for wrong, error in (
        ("abc", TypeError),
        (3, TypeError),
        ([1.5], TypeError),
        ([-1], ValueError),
        ([61], ValueError),
    ):
        with pytest.raises(error, match="stop"):
            stream.generate([1], 1, stop=wrong)
    with pytest.raises(TypeError, match=r"max_tokens must be an integer; got 2\.5"):
        stream.generate([1], 2.5)
    with pytest.raises(ValueError, match=r"token must be one id a row, shape \(1,\); got \(2, 2\)"):
        stream.step([[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="backend must be one of"):
        Stream(decoder_for("reference"), SinkCache(2, 8), backend="torch")
    with pytest.raises(ValueError, match="at least 2 tokens"):
        stream.score([1])
    rows = Stream(decoder_for("reference"), SinkCache(2, 8), backend="jax", batch=2)
    with pytest.raises(ValueError, match="batch=2"):
        rows.generate([1], 1)
    with pytest.raises(ValueError, match="batch=2"):
        rows.score([1, 2])


def test_a_stream_ends_where_its_counter_does():
    stream = Stream(decoder_for("reference"), SinkCache(2, 8), backend="jax")
    stream._rows.advance(np.array([2**31 - 2]))
    with pytest.raises(ValueError, match="A stream ends at 2147483647 tokens"):
        stream.prefill([1, 2])
