"""GGUF files of every architecture: the configuration and the weights that they hold."""

import math

import numpy as np
import pytest
from families import FAMILIES, family_weights, write_family
from gguf_models import IN_ZOO, MADE, SIZES, TOKENIZER, ZOO, file_of, load, made, meant, random_tensors, zoo
from gguf_writer import convert, write_gguf

from pytensor_rope import DecoderConfig
from pytensor_rope.checkpoints import load_checkpoint


def check(checkpoint, model_type, config, tensors):
    assert checkpoint.config == config
    expected = meant(model_type, config, tensors)
    assert checkpoint.weights.keys() == expected.keys()
    for name, weight in checkpoint.weights.items():
        assert weight.dtype == np.float32
        assert weight.flags.c_contiguous
        np.testing.assert_array_equal(weight, expected[name], err_msg=name)


@pytest.mark.parametrize("name", IN_ZOO)
def test_a_file_of_a_zoo_model_is_that_model(tmp_path, name):
    theirs, tensors = zoo(name)
    architecture, metadata, arrays = convert(theirs, tensors)
    path = write_gguf(tmp_path / "zoo.gguf", architecture, metadata | TOKENIZER, arrays)
    check(load_checkpoint(path), theirs["model_type"], DecoderConfig(**SIZES | IN_ZOO[name]), tensors)


@pytest.mark.parametrize("name", MADE)
def test_a_file_of_a_random_model_is_that_model(tmp_path, name):
    architecture, metadata, arrays, config, tensors = made(name)
    checkpoint = load(tmp_path / "made.gguf", architecture, metadata, arrays)
    check(checkpoint, MADE[name][0]["model_type"], config, tensors)


@pytest.mark.parametrize("values_at_once", [1 << 18, 100])
@pytest.mark.parametrize("name", ["llama_biased", "glm", "gemma3_seven_layers"])
def test_queries_keys_and_values_may_be_one_tensor(tmp_path, monkeypatch, name, values_at_once):
    monkeypatch.setattr("pytensor_rope.checkpoints.reading._VALUES_AT_ONCE", values_at_once)
    architecture, metadata, arrays, config, tensors = made(name)
    for i in range(config.n_layer):
        for kind in ("weight", "bias"):
            parts = [arrays.pop(f"blk.{i}.attn_{letter}.{kind}", None) for letter in "qkv"]
            if parts[0] is not None:
                arrays[f"blk.{i}.attn_qkv.{kind}"] = np.concatenate(parts)
    checkpoint = load(tmp_path / "fused.gguf", architecture, metadata, arrays)
    check(checkpoint, MADE[name][0]["model_type"], config, tensors)


def test_biases_may_be_separate_where_the_weights_are_one_tensor(tmp_path):
    architecture, metadata, arrays, config, tensors = made("llama_biased")
    for i in range(config.n_layer):
        parts = [arrays.pop(f"blk.{i}.attn_{letter}.weight") for letter in "qkv"]
        arrays[f"blk.{i}.attn_qkv.weight"] = np.concatenate(parts)
    checkpoint = load(tmp_path / "fused.gguf", architecture, metadata, arrays)
    check(checkpoint, "llama", config, tensors)


@pytest.mark.parametrize(
    ("name", "metadata", "expected"),
    [
        ("gemma3_seven_layers", {"attention.sliding_window_pattern": 2}, (True, False) * 3 + (True,)),
        ("gemma3_seven_layers", {"attention.sliding_window_pattern": 0}, (True,) * 7),
        ("gemma3_seven_layers", {"attention.sliding_window_pattern": 1}, (False,) * 7),
        (
            "gemma2",
            {"attention.sliding_window_pattern": [False, True, True, False]},
            (False, True, True, False),
        ),
        ("cohere2", {"attention.sliding_window_pattern": 2}, (True, False, True, False)),
    ],
)
def test_which_layers_slide_may_be_in_the_metadata(tmp_path, name, metadata, expected):
    architecture, usual, arrays, *_ = made(name)
    config = load(tmp_path / "sliding.gguf", architecture, usual, arrays, **metadata).config
    assert config.sliding_layers == expected
    if name == "cohere2":
        assert config.rotated_layers == expected


@pytest.mark.parametrize(
    ("name", "metadata", "expected"),
    [
        ("gemma2", {"attn_logit_softcapping": 25.0}, {"attention_softcap": 25.0}),
        ("gemma3_seven_layers", {"final_logit_softcapping": 9.0}, {"logit_softcap": 9.0}),
        ("gemma3_seven_layers", {"rope.freq_base_swa": 500.0}, {"sliding_base": 500.0}),
        (
            "gemma3_seven_layers",
            {"attention.sliding_window": 0},
            {"sliding_window": None, "sliding_base": None, "base": 1e6},
        ),
        ("phi3_longrope", {"attention.sliding_window": 0}, {"sliding_window": None}),
        ("olmo3", {"rope.freq_base_swa": 5e5}, {"sliding_base": None}),
        ("llama_biased", {"attention.sliding_window": 0}, {"sliding_window": None}),
    ],
)
def test_what_an_architecture_has_of_its_own_is_read(tmp_path, name, metadata, expected):
    architecture, usual, arrays, *_ = made(name)
    config = load(tmp_path / "own.gguf", architecture, usual, arrays, **metadata).config
    assert {key: getattr(config, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("gemma2", "attn_logit_softcapping", {"attention_softcap": 50.0}),
        ("gemma2", "final_logit_softcapping", {"logit_softcap": 30.0}),
        ("gemma2", "attention.sliding_window", {"sliding_window": 4096}),
        ("gemma3_seven_layers", "rope.freq_base_swa", {"sliding_base": 1e4}),
        ("cohere_qk_norm", "logit_scale", {"logit_scale": 1.0}),
        ("phi", "attention.head_count_kv", {"n_kv_head": 4}),
    ],
)
def test_what_the_metadata_leave_out_is_what_llama_cpp_has(tmp_path, name, key, expected):
    architecture, metadata, arrays, *_ = made(name)
    del metadata[f"{architecture}.{key}"]
    config = load(tmp_path / "less.gguf", architecture, metadata, arrays).config
    assert {name: getattr(config, name) for name in expected} == expected


def granite(tmp_path, **metadata):
    return load(tmp_path / "granite.gguf", *file_of("granite"), **metadata)


@pytest.mark.parametrize("is_rotated", [True, False])
def test_a_granite_may_not_be_rotated(tmp_path, is_rotated):
    config = granite(tmp_path, **{"rope.scaling.finetuned": is_rotated}).config
    assert config.rotated_layers == (None if is_rotated else (False, False))


def test_a_granite_without_a_scale_divides_nothing(tmp_path):
    scales = {"attention.scale": 0.0, "embedding_scale": 0.0, "residual_scale": 0.0, "logit_scale": 1.0}
    config = granite(tmp_path, **scales).config
    assert config.attention_scale is None
    assert (config.embedding_scale, config.residual_scale, config.logit_scale) == (1, 1, 1)


@pytest.mark.parametrize(
    ("name", "n_layer", "expected"),
    [("gemma2", 46, 1 / math.sqrt(16)), ("gemma3_seven_layers", 62, 1 / math.sqrt(16))],
)
def test_the_largest_gemmas_scale_by_the_width_of_the_embedding(tmp_path, name, n_layer, expected):
    theirs, own = MADE[name]
    layers = {"n_layer": n_layer, "sliding_layers": None}
    config = DecoderConfig(**SIZES | own | layers)
    tensors = random_tensors(theirs["model_type"], config)
    architecture, metadata, arrays = convert(theirs | {"num_hidden_layers": n_layer}, tensors)
    checkpoint = load(tmp_path / "large.gguf", architecture, metadata, arrays)
    assert checkpoint.config.attention_scale == expected


# Models of which llama.cpp's converter loses nothing.
WHOLE_IN_ZOO = [
    "cohere",
    "glm4",
    "gpt_neox",
    "granite",
    "llama_default",
    "olmo2",
    "phi3_partial",
    "qwen2",
    "qwen3",
]
WHOLE_FAMILIES = [
    "llama_bias",
    "llama_linear",
    "mistral_full",
    "qwen2_tied",
    "cohere_qk_norm",
    "glm4_no_bias",
    "granite_bias",
    "olmo2_tied",
]


@pytest.mark.parametrize("name", WHOLE_IN_ZOO + WHOLE_FAMILIES)
def test_a_file_and_a_directory_of_a_model_are_the_same(tmp_path, name):
    if name in WHOLE_IN_ZOO:
        folder, (config, tensors) = ZOO / name, zoo(name)
    else:
        folder, config, tensors = write_family(name, tmp_path), FAMILIES[name]["config"], family_weights(name)
    architecture, metadata, arrays = convert(config, tensors)
    no_tokenizer = {"tokenizer.ggml.model": "none"}
    path = write_gguf(tmp_path / "model.gguf", architecture, metadata | no_tokenizer, arrays)
    file, directory = load_checkpoint(path), load_checkpoint(folder)
    assert file.tokenizer is None
    assert file.config == directory.config
    assert file.weights.keys() == directory.weights.keys()
    for weight, array in directory.weights.items():
        np.testing.assert_array_equal(file.weights[weight], array, err_msg=weight)
