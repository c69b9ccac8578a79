"""Caches of schemes whose keys can't be rotated for good: read as one forward pass at that length."""

from functools import cache

import decoder_reference
import numpy as np
import pytensor.tensor as pt
import pytest
import reference
from conftest import BACKENDS, compile_for, on_all_backends, random

from pytensor_rope import (
    Decoder,
    DecoderConfig,
    RotaryEmbedding,
    SinkCache,
    SinkCacheState,
    Stream,
)
from pytensor_rope.frequencies import DynamicNTK, LongRoPE, XPos, YaRN

HEAD_DIM, N_HEAD, N_KV_HEAD, TOKENS = 8, 4, 2, 26
HEADS = (N_HEAD, N_KV_HEAD, N_KV_HEAD)  # Of queries, keys and values.
ORIGINAL = 5  # Length beyond which the frequencies change.
SHORT, LONG = (1.0, 1.1, 1.3, 2.0), (1.0, 2.0, 5.0, 40.0)
SCHEMES = {
    "dynamic": DynamicNTK(factor=4.0, original_max_position_embeddings=ORIGINAL),
    "longrope": LongRoPE(
        short_factor=SHORT,
        long_factor=LONG,
        original_max_position_embeddings=ORIGINAL,
        attention_factor=1.25,
    ),
    "xpos": XPos(scale_base=4.0),
    "deepseek": YaRN(
        factor=4.0,
        original_max_position_embeddings=8,
        mscale=1.0,
        mscale_all_dim=0.7,
        softmax_correction=True,
    ),
}
BASE = 10_000.0
CASES = [
    *((name, 2, 9, "cache") for name in SCHEMES),
    *((name, 2, 9, "absolute") for name in ("dynamic", "xpos")),
    *((name, 0, 64, "cache") for name in ("dynamic", "longrope", "xpos")),
]


def dynamic(length):
    stretch = 4 * length / ORIGINAL - 3 if length > ORIGINAL else 1
    base = BASE * stretch ** (HEAD_DIM / (HEAD_DIM - 2))
    rotation = {"thetas": [base ** (-2 * i / HEAD_DIM) for i in range(HEAD_DIM // 2)]}
    return rotation, rotation


def longrope(length):
    factors = LONG if length > ORIGINAL else SHORT
    rotation = {"thetas": [10.0**-i / factor for i, factor in enumerate(factors)], "magnitude": 1.25}
    return rotation, rotation


def xpos(length):
    zeta = [(2 * i + 0.4 * HEAD_DIM) / (1.4 * HEAD_DIM) for i in range(HEAD_DIM // 2)]
    thetas = [10.0**-i for i in range(HEAD_DIM // 2)]
    return (
        {"thetas": thetas, "decay": [z ** (1 / 4) for z in zeta]},
        {"thetas": thetas, "decay": [z ** (-1 / 4) for z in zeta]},
    )


def deepseek(length):
    # d ln(L / 2 pi n) / 2 ln b is below 0 for 32 turns, 0.105 for 1: rounded to 0 and 1.
    plain = [10.0**-i for i in range(HEAD_DIM // 2)]
    log = 0.1 * np.log(4)
    rotation = {
        "thetas": [plain[0], *(theta / 4 for theta in plain[1:])],
        "magnitude": (log + 1) / (0.7 * log + 1),
    }
    return rotation, rotation


AT_LENGTH = {"dynamic": dynamic, "longrope": longrope, "xpos": xpos, "deepseek": deepseek}
SCALE = {"deepseek": (0.07 * np.log(4) + 1) ** 2 / np.sqrt(HEAD_DIM)}


@cache
def steps_on(backend):
    """The step of every case, in one compiled function."""
    q, k, v = (pt.tensor(shape=(1, heads, 1, HEAD_DIM), dtype="float32") for heads in HEADS)
    inputs, outputs, states = [q, k, v], [], {}
    for name, sinks, window, positions in CASES:
        sink_cache = SinkCache(sinks, window, positions=positions)
        initial = sink_cache.initial_state(1, N_KV_HEAD, HEAD_DIM)
        state = SinkCacheState(*(pt.as_tensor(x).type() for x in initial))
        attended, new = sink_cache.attend(q, k, v, state, rotary=RotaryEmbedding(scaling=SCHEMES[name]))
        inputs += state
        outputs += [attended, *new]
        states[name, sinks, window, positions] = initial
    return states, compile_for(inputs, outputs, backend)


def chunk():
    return [
        random(seed, 1, heads, TOKENS, HEAD_DIM)
        for seed, heads in ((0, N_HEAD), (1, N_KV_HEAD), (2, N_KV_HEAD))
    ]


@cache
def decoded(backend):
    """Return what attending token by token gives, for each scheme and cache, ``(n_head, seq, head_dim)``."""
    states, step = steps_on(backend)
    given = [x for state in states.values() for x in state]
    attended = {key: [] for key in states}
    for t in range(TOKENS):
        token = [np.ascontiguousarray(x[:, :, t : t + 1], dtype="float32") for x in chunk()]
        outputs = step(*token, *given)
        for i, key in enumerate(states):
            attended[key].append(outputs[4 * i])
        given = [x for i, x in enumerate(outputs) if i % 4]
    return {key: np.concatenate(rows, axis=2)[0] for key, rows in attended.items()}


@pytest.mark.parametrize(("name", "sinks", "window", "positions"), CASES)
def test_token_by_token_against_the_definition(backend, name, sinks, window, positions):
    q, k, v = (x[0].astype("float32") for x in chunk())
    expected = reference.stream_attention(
        q, k, v, sinks, window, positions, scale=SCALE.get(name), at_length=AT_LENGTH[name]
    )
    np.testing.assert_allclose(decoded(backend)[name, sinks, window, positions], expected, atol=3e-6)


@cache
def forward_on(backend):
    """A chunk over an empty cache that holds everything: one full forward pass at the chunk's length."""
    q, k, v = (pt.tensor(shape=(1, heads, None, HEAD_DIM), dtype="float32") for heads in HEADS)
    sink_cache = SinkCache(0, 64)
    initial = sink_cache.initial_state(1, N_KV_HEAD, HEAD_DIM)
    outputs = [
        sink_cache.attend(q, k, v, initial, rotary=RotaryEmbedding(scaling=SCHEMES[name]))[0]
        for name in ("dynamic", "longrope", "xpos")
    ]
    return compile_for([q, k, v], outputs, backend)


@pytest.mark.parametrize("length", [1, ORIGINAL, ORIGINAL + 1, TOKENS])
def test_decoding_equals_one_forward_pass_at_that_length(backend, length):
    tokens = [np.ascontiguousarray(x[:, :, :length], dtype="float32") for x in chunk()]
    for name, attended in zip(("dynamic", "longrope", "xpos"), forward_on(backend)(*tokens), strict=True):
        step = decoded(backend)[name, 0, 64, "cache"][:, length - 1]
        np.testing.assert_allclose(attended[0, :, -1], step, rtol=0, atol=1e-5)


def test_what_is_shown_far_out_is_what_is_shown_near(backend):
    # Both positions belong in the same slot of rings of 9 and of 64. The decay of position 300 alone would
    # leave float32's range.
    states, step = steps_on(backend)
    token = [np.ascontiguousarray(x[:, :, :1], dtype="float32") for x in chunk()]
    shown = []
    for position in (4 * 576, 6_944 * 576):
        given = []
        for seed, state in enumerate(states.values()):
            keys, values = (random(seed + 20, *x.shape, dtype="float32") for x in state[:2])
            given += [keys, values, np.array([position], "int32")]
        outputs = step(*token, *given)
        shown.append({key: outputs[4 * i] for i, key in enumerate(states)})
    for key in states:
        name, _, _, positions = key
        if name != "deepseek" and positions == "cache":
            np.testing.assert_allclose(shown[1][key], shown[0][key], rtol=0, atol=1e-5)


CONFIG = DecoderConfig(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=40,
    n_layer=1,
    n_head=N_HEAD,
    n_kv_head=N_KV_HEAD,
    head_dim=HEAD_DIM,
    context_length=64,
    scaling=SCHEMES["dynamic"],
)


def decoder(name, n_layer):
    config = DecoderConfig(**{**vars(CONFIG), "scaling": SCHEMES[name], "n_layer": n_layer})
    made = Decoder(config=config, seed=0)
    for key, parameter in made.parameters.items():
        if not key.endswith("norm"):
            parameter.set_value(parameter.get_value() * 15)
    return made


@pytest.mark.parametrize(
    ("name", "backend"), on_all_backends({"dynamic": ("c", "jax", "mlx"), "longrope": BACKENDS})
)
def test_a_decoders_stream_equals_its_full_pass_across_the_threshold(backend, name):
    made = decoder(name, n_layer=1)
    stream = Stream(made, SinkCache(0, 64), backend=backend)
    token_ids = pt.tensor("token_ids", shape=(1, None), dtype="int32")
    full = compile_for([token_ids], made(token_ids)[:, -1], backend)
    ids = np.random.default_rng(4).integers(0, CONFIG.vocab_size, 9).astype("int32")
    for length in range(1, len(ids) + 1):
        logits = stream.step(ids[length - 1])
        if length not in (1, ORIGINAL, ORIGINAL + 1, len(ids)):
            continue  # JAX and MLX compile again for every length.
        np.testing.assert_allclose(logits, full(ids[None, :length]), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("name", "n_layer"), [("dynamic", 2), ("longrope", 2)])
def test_a_prompt_is_read_as_its_tokens_one_by_one(backend, name, n_layer):
    # The frequencies change at length 5, and no more once the cache shows 2 sinks and 7 tokens.
    made = decoder(name, n_layer)
    ids = np.random.default_rng(5).integers(0, CONFIG.vocab_size, 20)
    weights = {key: parameter.get_value() for key, parameter in made.parameters.items()}
    expected = decoder_reference.decoder_logits(
        weights, made.config, ids, 2, 7, "cache", at_length=AT_LENGTH[name]
    )
    stream = Stream(made, SinkCache(2, 7), backend=backend)
    np.testing.assert_allclose(stream.prefill(ids[:4]), expected[3:4], rtol=0, atol=2e-4)
    np.testing.assert_allclose(stream.prefill(ids[4:15]), expected[14:15], rtol=0, atol=2e-4)
    for t in range(15, 20):
        np.testing.assert_allclose(stream.step(ids[t]), expected[t : t + 1], rtol=0, atol=2e-4)
