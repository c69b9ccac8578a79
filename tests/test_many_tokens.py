"""Tokens decoded several in one call: the same as one at a time."""

from functools import cache

import numpy as np
import pytest
from conftest import on_all_backends
from small_decoder import CONFIG, decoder_for, weights

from pytensor_rope import Decoder, SinkCache, Stream

PROMPT = [1, 2, 3]


@cache
def read_by(backend):
    return Stream(decoder_for(backend), SinkCache(sinks=2, window=6), backend=backend)


def written(backend, max_tokens=23, **options):
    stream = read_by(backend)
    stream.reset()
    return list(stream.generate(PROMPT, max_tokens, **options)), stream


WHERE = {"greedy": ("c", "jax"), "drawn": ("jax",)}
OPTIONS = {"greedy": {}, "drawn": {"temperature": 0.9, "seed": 3}}


@pytest.mark.parametrize(("choice", "backend"), on_all_backends(WHERE))
def test_they_are_the_same_as_one_at_a_time(choice, backend):
    one_by_one, stream = written(backend, **OPTIONS[choice])
    logits = stream.step(one_by_one[-1])
    together, stream = written(backend, at_once=5, **OPTIONS[choice])
    assert len(set(one_by_one)) > 5 and together == one_by_one
    assert stream.position == len(PROMPT) + 22
    np.testing.assert_allclose(stream.step(together[-1]), logits, rtol=1e-4, atol=1e-4)


def test_nothing_is_read_beyond_a_token_that_ends_the_text():
    tokens, _ = written("jax")
    end = next(token for i, token in enumerate(tokens) if i > 6 and token not in tokens[:i])
    place = tokens.index(end)
    until_end, stream = written("jax", None, stop=[end], at_once=5)
    assert until_end == tokens[: place + 1] and stream.position == len(PROMPT) + place
    logits = stream.step(end)
    stream.reset()
    stream.prefill(PROMPT + tokens[:place])
    np.testing.assert_allclose(stream.step(end), logits, rtol=1e-4, atol=1e-4)


def test_a_fork_taken_between_goes_on_from_there():
    tokens, stream = written("jax", 6, at_once=5)
    again, other = stream.fork(), stream.fork()
    rest = list(again.generate(tokens[-1:], 6, at_once=5))
    assert list(other.generate(tokens[-1:], 6)) == rest == written("jax", 12)[0][6:]


@pytest.mark.parametrize(("backend", "options"), [("mlx", {}), ("jax", {"temperature": 1.0, "top_k": 3})])
def test_what_allows_no_more_decodes_one_at_a_time(backend, options):
    stream = Stream(decoder_for(backend), SinkCache(sinks=2, window=6), backend=backend)
    together = list(stream.generate(PROMPT, 7, at_once=3, seed=0, **options))
    stream.reset()
    assert together == list(stream.generate(PROMPT, 7, seed=0, **options))
    assert not any(name.startswith("decode") for name in stream._own_state.functions)


def test_logits_that_are_no_numbers_end_a_text_where_they_come():
    tokens, _ = written("jax")
    bad = next(token for i, token in enumerate(tokens) if i > 1 and token not in tokens[:i])
    spoiled = dict(weights())
    spoiled["embedding"] = np.where(
        np.arange(CONFIG.vocab_size)[:, None] == bad, np.nan, weights()["embedding"]
    )
    spoiled["embedding"] = spoiled["embedding"].astype("float32")
    ends = []
    for at_once in (1, 5):
        stream = Stream(Decoder(config=CONFIG, weights=spoiled), SinkCache(sinks=2, window=6), backend="jax")
        text = stream.generate(PROMPT, None, at_once=at_once)
        until = [next(text) for _ in range(tokens.index(bad) + 1)]
        with pytest.raises(ValueError, match="logits must be finite"):
            next(text)
        ends.append((until, stream.position))
    assert ends[0] == ends[1] == (tokens[: tokens.index(bad) + 1], len(PROMPT) + tokens.index(bad) + 1)


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (1025, ValueError), (2.5, TypeError), (True, TypeError)]
)
def test_a_wrong_number_is_refused_at_once(value, error):
    with pytest.raises(error, match="at_once"):
        read_by("jax").generate(PROMPT, 5, at_once=value)
