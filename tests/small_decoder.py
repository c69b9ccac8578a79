"""A small decoder with random weights, for tests of streams."""

from functools import cache

import decoder_reference
import numpy as np

from pytensor_rope import Decoder, DecoderConfig, SinkCache, Stream

CONFIG = DecoderConfig(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=40,
    n_layer=2,
    n_head=4,
    n_kv_head=2,
    head_dim=8,
    context_length=64,
    base=500.0,
)
WINDOW = 8


@cache
def decoder_for(backend):
    decoder = Decoder(config=CONFIG, seed=0)
    # Larger weights than usual, so that attention is far from uniform.
    for name, parameter in decoder.parameters.items():
        if not name.endswith("norm"):
            parameter.set_value(parameter.get_value() * 15)
    return decoder


@cache
def weights():
    return {name: np.array(p.get_value()) for name, p in decoder_for("reference").parameters.items()}


@cache
def prompt(n=30, seed=0):
    return np.random.default_rng(seed).integers(0, CONFIG.vocab_size, n)


@cache
def stream_on(backend, sinks=2):
    return Stream(decoder_for(backend), SinkCache(sinks, WINDOW), backend=backend)


@cache
def reference_logits(sinks):
    """Return the logits after each token of the prompt, ``(n, vocab_size)``, in float64."""
    return decoder_reference.decoder_logits(weights(), CONFIG, prompt(), sinks, WINDOW)


def fresh(*args, **kwargs):
    stream = stream_on(*args, **kwargs)
    stream.reset()
    return stream
