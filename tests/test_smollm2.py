"""SmolLM2, a real pretrained model, against values that transformers gives for it."""

import gc
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from conftest import BACKENDS

from pytensor_rope import load_model

GOLDEN = np.load(Path(__file__).parent / "data" / "smollm2_reference.npz")
PROMPTS = ("raw_short", "chat_capital")

# Numba scores the whole text, the others its beginning.
SCORED = {"numba": 1024}

# A geometry of its own takes minutes to compile: small decoders cover the backends that are left out.
BACKENDS_OF = {"wrapped_sinks4_window60": ("c", "jax")}

CACHES = {
    "dense": {"sinks": 0, "window": 1024},
    "cache_sinks4_window60": {"sinks": 4, "window": 60},
    "absolute_sinks4_window60": {"sinks": 4, "window": 60, "positions": "absolute"},
    "wrapped_sinks4_window60": {"sinks": 4, "window": 60, "positions": "wrapped"},
}


@pytest.fixture(scope="module")
def model():
    yield load_model("smollm2")
    # Half a gigabyte of weights for each place that they were moved to.
    stream_on.cache_clear()
    gc.collect()


@cache
def stream_on(model, backend):
    return model.compile(backend, sinks=4, window=1020)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_full_pass_gives_the_golden_logits(model, backend, prompt):
    ids = GOLDEN[f"{prompt}_ids"]
    logits = model.logits(ids[None], backend=backend)
    assert logits.shape == (1, len(ids), model.config.vocab_size)
    assert logits.dtype == "float32"
    np.testing.assert_allclose(logits[0, -1], GOLDEN[f"{prompt}_logits"], atol=2e-3, rtol=0)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_stream_gives_the_golden_logits_and_tokens(model, backend, prompt):
    stream = stream_on(model, backend)
    ids = GOLDEN[f"{prompt}_ids"]
    stream.reset()
    np.testing.assert_allclose(stream.prefill(ids)[0], GOLDEN[f"{prompt}_logits"], atol=2e-3, rtol=0)
    stream.reset()
    assert list(stream.generate(ids, 40)) == GOLDEN[f"{prompt}_greedy"].tolist()


@pytest.mark.parametrize("kind", CACHES)
def test_a_stream_scores_the_golden_text(model, backend, kind):
    if backend not in BACKENDS_OF.get(kind, BACKENDS):
        pytest.skip(f"{kind} runs on {' and '.join(BACKENDS_OF[kind])}")
    n = SCORED.get(backend, 300)
    losses = model.compile(backend, **CACHES[kind]).score(GOLDEN["text_ids"][:n])
    assert losses.shape == (n - 1,)
    assert np.abs(losses - GOLDEN[f"nll_{kind}"][: n - 1]).mean() < 1e-3
