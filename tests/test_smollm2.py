"""SmolLM2, a real pretrained model, against values that transformers gives for it."""

import gc
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from conftest import BACKENDS, on_all_backends
from safetensors.numpy import save_file

from pytensor_rope import load_model
from pytensor_rope.checkpoints import load_checkpoint

GOLDEN = np.load(Path(__file__).parent / "data" / "smollm2_reference.npz")

# JAX and MLX compile again for another length.
READ_ON = {"raw_short": BACKENDS, "chat_capital": ("c", "numba")}

# Numba scores the whole text, the others its beginning.
SCORED = {"numba": 1024}

CACHES = {
    "dense": {"sinks": 0, "window": 1024},
    "cache_sinks4_window60": {"sinks": 4, "window": 60},
    "absolute_sinks4_window60": {"sinks": 4, "window": 60, "positions": "absolute"},
    "wrapped_sinks4_window60": {"sinks": 4, "window": 60, "positions": "wrapped"},
}


# A geometry of its own takes a minute to compile: small decoders cover the backends that are left out.
SCORED_ON = {
    "dense": ("numba", "jax"),
    "cache_sinks4_window60": BACKENDS,
    "absolute_sinks4_window60": ("c",),
    "wrapped_sinks4_window60": ("c", "jax"),
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


@pytest.mark.parametrize(("prompt", "backend"), on_all_backends(READ_ON))
def test_a_full_pass_gives_the_golden_logits(model, backend, prompt):
    ids = GOLDEN[f"{prompt}_ids"]
    logits = model.logits(ids[None], backend=backend)
    assert logits.shape == (1, len(ids), model.config.vocab_size)
    assert logits.dtype == "float32"
    np.testing.assert_allclose(logits[0, -1], GOLDEN[f"{prompt}_logits"], atol=2e-3, rtol=0)


@pytest.mark.parametrize(("prompt", "backend"), on_all_backends(READ_ON))
def test_a_stream_gives_the_golden_logits_and_tokens(model, backend, prompt):
    stream = stream_on(model, backend)
    ids = GOLDEN[f"{prompt}_ids"]
    stream.reset()
    np.testing.assert_allclose(stream.prefill(ids)[0], GOLDEN[f"{prompt}_logits"], atol=2e-3, rtol=0)
    stream.reset()
    assert list(stream.generate(ids, 40)) == GOLDEN[f"{prompt}_greedy"].tolist()


def test_a_directory_of_the_same_model_is_the_same(model, tmp_path):
    directory = write_directory(model, tmp_path)
    written = load_model(directory)
    assert written.config == model.config
    theirs, ours = load_checkpoint(directory).weights, load_checkpoint("smollm2").weights
    for name, weight in ours.items():
        np.testing.assert_array_equal(theirs[name], weight, err_msg=name)
    ids = GOLDEN["raw_short_ids"]
    np.testing.assert_array_equal(written.logits(ids[None], "c"), model.logits(ids[None], "c"))
    text = "Gravity is 9.81 m/s²: naïve?\n<|im_end|>"
    assert written.tokenizer.encode(text) == model.tokenizer.encode(text)
    assert written.tokenizer.decode(ids) == model.tokenizer.decode(ids)


def write_directory(model, directory):
    """Write a Llama as a Hugging Face directory."""
    config = model.config
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_kv_head,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.epsilon,
        "rope_theta": config.base,
        "tie_word_embeddings": True,
        "vocab_size": config.vocab_size,
    }
    (directory / "config.json").write_text(json.dumps(settings))
    (directory / "tokenizer.json").write_text(model.tokenizer._backend.to_str())
    weights = load_checkpoint("smollm2").weights
    tensors = {theirs: weights[ours] for ours, theirs in OUTSIDE.items()}
    for i in range(config.n_layer):
        for ours, theirs in INSIDE.items():
            weight = weights[f"layers.{i}.{ours}"]
            tensors[f"model.layers.{i}.{theirs}.weight"] = np.ascontiguousarray(weight.T)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


OUTSIDE = {"embedding": "model.embed_tokens.weight", "final_norm": "model.norm.weight"}
INSIDE = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


@pytest.mark.parametrize(("kind", "backend"), on_all_backends(SCORED_ON))
def test_a_stream_scores_the_golden_text(model, backend, kind):
    n = SCORED.get(backend, 300)
    losses = model.compile(backend, **CACHES[kind]).score(GOLDEN["text_ids"][:n])
    assert losses.shape == (n - 1,)
    assert np.abs(losses - GOLDEN[f"nll_{kind}"][: n - 1]).mean() < 1e-3
