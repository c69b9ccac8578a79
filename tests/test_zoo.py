"""
Small models of sixteen architectures, and of more options, against what transformers gives for them.

Each backend reads every model of the zoo in one pass. Streaming, and the options of ``families.json``, are
tried where compiling is quick; ``-m slow`` tries them everywhere.
"""

import shutil
from functools import cache
from pathlib import Path

import decoder_reference
import numpy as np
import pytest
from conftest import BACKENDS, on, on_all_backends
from families import FAMILIES, write_family

from pytensor_rope import load_model
from pytensor_rope.checkpoints import load_checkpoint

ZOO = Path(__file__).parent / "data" / "zoo"
NAMES = sorted(path.name for path in ZOO.iterdir())
LEGACY = [name for name in NAMES if (ZOO / name / "config_legacy.json").exists()]
TOLERANCE = 1e-4

# Windows of two kinds, and the two ways in which layers differ most from Llama's.
STREAMED = {"gemma3": BACKENDS, "gpt_neox": BACKENDS, "smollm3": ("c", "jax")}
# A lowering of its own for the soft caps; norms with weights for each head.
READ = {"gemma2_alternating": BACKENDS, "cohere_qk_norm": BACKENDS}
# Layers that slide and layers that don't rotate; short windows in all layers.
STREAMED_TOO = dict.fromkeys(
    ("cohere2", "gemma2_alternating", "phi3_longrope_short", "smollm3_sliding"), ("jax",)
)
# At a length beyond their threshold, these are read token by token in a stream (docs/frequencies.md).
CHANGING = {"llama_dynamic_long", "phi3_longrope_long"}


@cache
def model(name):
    return load_model(ZOO / name)


@cache
def golden(name):
    with np.load(ZOO / name / "reference.npz") as file:
        return dict(file)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_pass_gives_the_golden_logits(name, backend):
    reference = golden(name)
    logits = model(name).logits(reference["input_ids"], backend)
    assert logits.dtype == "float32"
    np.testing.assert_allclose(logits, reference["logits"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", LEGACY)
def test_keys_of_version_4_give_the_same_model(name, tmp_path):
    shutil.copy(ZOO / name / "config_legacy.json", tmp_path / "config.json")
    shutil.copy(ZOO / name / "model.safetensors", tmp_path)
    legacy = load_model(tmp_path)
    assert legacy.config == model(name).config
    weights = load_checkpoint(ZOO / name).weights
    for weight, value in load_checkpoint(tmp_path).weights.items():
        np.testing.assert_array_equal(value, weights[weight], err_msg=weight)


@pytest.mark.parametrize(
    ("name", "backend"), on_all_backends({name: STREAMED.get(name, ("jax",)) for name in NAMES})
)
def test_a_stream_gives_the_golden_logits_and_tokens(name, backend):
    reference = golden(name)
    ids = reference["input_ids"]
    stream = model(name).compile(backend, sinks=4, window=60, batch=2)
    check_stream(stream, ids, np.ones_like(ids), reference["logits"])
    stream.reset()
    check_stream(stream, ids, reference["leftpad_mask"], reference["leftpad_logits"])
    stream.reset()
    n = int(reference["greedy_prompt_len"])
    tokens = [stream.prefill(ids[:, :n]).argmax(axis=1)]
    while len(tokens) < 16:
        tokens.append(stream.step(tokens[-1]).argmax(axis=1))
    np.testing.assert_array_equal(np.stack(tokens, axis=1), reference["greedy_tokens"])


def check_stream(stream, ids, mask, want):
    """Read six tokens at once and the others one by one, and compare the logits after each."""
    mask = mask.astype("bool")
    chunks = [(ids[:, :6], mask[:, :6])]
    logits = [stream.prefill(*chunks[0])]
    logits += [stream.step(ids[:, t], active=mask[:, t]) for t in range(6, ids.shape[1])]
    for got, expected, real in zip(logits, want[:, 5:].swapaxes(0, 1), mask[:, 5:].T, strict=True):
        np.testing.assert_allclose(got[real], expected[real], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["llama_default", "gemma3", "gpt_neox"])
@pytest.mark.parametrize("backend", [on(backend) for backend in ("jax", "mlx")])
def test_weights_in_float16(name, backend):
    reference = golden(name)
    narrow = load_model(ZOO / name, dtype="float16")
    logits = narrow.logits(reference["input_ids"], backend)
    assert logits.dtype == "float16"
    # Half a unit in the last place of each weight, and of what is computed from them.
    np.testing.assert_allclose(logits, reference["logits"], atol=0.03, rtol=0)
    stream = narrow.compile(backend, sinks=4, window=60, batch=2)
    assert stream.dtype == "float16"
    np.testing.assert_allclose(stream.prefill(reference["input_ids"]), logits[:, -1], atol=0.02, rtol=0)


def test_a_layer_keeps_its_own_window_within_a_longer_one():
    slots = 2 * 2 * 16 * 4  # bytes: keys and values of 2 heads of 16 float32
    mistral, gemma = model("mistral_sliding"), model("gemma3")
    assert mistral.compile("c", sinks=4, window=60).nbytes == 2 * 8 * slots
    assert mistral.compile("c", sinks=4, window=4).nbytes == 2 * 8 * slots
    assert mistral.compile("c", sinks=2, window=4).nbytes == 2 * 6 * slots
    assert gemma.compile("c", sinks=4, window=60).nbytes == (8 + 64) * slots
    assert gemma.compile("c", sinks=4, window=60, headroom=5).nbytes == (13 + 69) * slots


@pytest.mark.parametrize(("sinks", "window", "seen"), [(4, 60, (0, 8, "absolute")), (2, 4, (2, 4, "cache"))])
def test_a_sliding_model_streams_on_past_its_window(sinks, window, seen):
    sliding = model("mistral_sliding")
    ids = np.random.default_rng(0).integers(0, 97, 100)
    stream = sliding.compile("jax", sinks=sinks, window=window)
    logits = [stream.prefill(ids[:40]), *(stream.step(token) for token in ids[40:])]
    weights = load_checkpoint(ZOO / "mistral_sliding").weights
    want = decoder_reference.decoder_logits(weights, sliding.config, ids, *seen)
    np.testing.assert_allclose(np.concatenate(logits), want[39:], atol=TOLERANCE, rtol=0)


@cache
def family(name, directory):
    return load_model(write_family(name, directory / name))


@pytest.fixture(scope="session")
def family_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("families")


@pytest.mark.parametrize(
    ("name", "backend"), on_all_backends({name: READ.get(name, ("jax",)) for name in FAMILIES})
)
def test_more_of_the_kind_give_their_golden_logits(name, backend, family_directory):
    record = FAMILIES[name]
    ids = np.array(record["input_ids"]).reshape(1, -1)
    want = np.array(record["last_logits"], "float32")
    (logits,) = family(name, family_directory).logits(ids, backend)
    np.testing.assert_allclose(logits[-len(want) :], want, atol=TOLERANCE, rtol=0)
    np.testing.assert_array_equal(logits.argmax(axis=-1), record["argmax"])


@pytest.mark.parametrize(
    ("name", "backend"),
    on_all_backends({name: STREAMED_TOO.get(name, ()) for name in FAMILIES if name not in CHANGING}),
)
def test_more_of_the_kind_stream(name, backend, family_directory):
    record = FAMILIES[name]
    stream = family(name, family_directory).compile(backend, sinks=4, window=60)
    logits = stream.prefill(record["input_ids"])
    np.testing.assert_allclose(logits[0], record["last_logits"][-1], atol=TOLERANCE, rtol=0)
