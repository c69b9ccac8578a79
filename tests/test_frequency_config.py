"""Rotary frequencies from Hugging Face configurations and GGUF metadata."""

import copy
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pytensor_rope
from pytensor_rope.checkpoints.base import CheckpointError
from pytensor_rope.checkpoints.rope import RotaryFrequencies, frequencies_from_config
from pytensor_rope.frequencies import (
    NTK,
    Default,
    DynamicNTK,
    FrequencyFactors,
    Linear,
    Llama3,
    LongRoPE,
    MRoPE,
    Proportional,
    YaRN,
)

ZOO = json.loads(Path(__file__).with_name("data").joinpath("zoo_rope.json").read_text())
ROTATED = {"head_dim": 64, "rope_theta": 10_000.0, "max_position_embeddings": 8192}


def config(*, without=(), **keys):
    return {key: value for key, value in (ROTATED | keys).items() if key not in without}


def scaled(rope_type, **keys):
    return config(rope_scaling={"rope_type": rope_type, **keys})


def scheme(*args, **kwargs):
    return frequencies_from_config(*args, **kwargs).scaling


def refuses(match, *args, **kwargs):
    with pytest.raises(CheckpointError, match=match):
        frequencies_from_config(*args, **kwargs)


# Against transformers


def zoo_cases():
    for name, entry in ZOO.items():
        for form in ("config", "config_legacy"):
            for key in entry["rope"] if form in entry else ():
                if key.endswith("inv_freq"):
                    layer = key.removesuffix("inv_freq").rstrip("_") or None
                    yield pytest.param(entry[form], entry["rope"], layer, id=f"{name}-{form}-{layer}")


@pytest.mark.parametrize(("described", "rope", "layer"), list(zoo_cases()))
def test_as_transformers_computes_them(described, rope, layer):
    unchanged = copy.deepcopy(described)
    scaling, base, rotary_dim = frequencies_from_config(described, layer_type=layer)
    prefix = f"{layer}_" if layer else ""
    found = scaling.inverse_frequencies(rotary_dim, base=base, length=1)
    np.testing.assert_allclose(found, rope[f"{prefix}inv_freq"], rtol=1e-6)
    np.testing.assert_allclose(scaling.attention_scaling, rope[f"{prefix}attention_scaling"], rtol=1e-6)
    assert described == unchanged


def test_longrope_by_length_as_transformers_computes_it():
    entry = ZOO["llama_longrope_short"]
    scaling, base, rotary_dim = frequencies_from_config(entry["config"])
    for length, expected in entry["rope"]["inv_freq_by_length"].items():
        found = scaling.inverse_frequencies(rotary_dim, base=base, length=int(length))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_gptj_table():
    entry = ZOO["gptj"]
    scaling, base, rotary_dim = frequencies_from_config(entry["config"])
    table = np.array(entry["rope"]["embed_positions"])
    angles = np.arange(len(table))[:, None] * scaling.inverse_frequencies(rotary_dim, base=base)
    np.testing.assert_allclose(np.hstack([np.sin(angles), np.cos(angles)]), table, atol=1e-6)


def test_gemma3_has_two_bases():
    for form in ("config", "config_legacy"):
        described = ZOO["gemma3"][form]
        expected = Default(), 1_000_000.0, 16
        assert frequencies_from_config(described, layer_type="full_attention") == expected
        assert frequencies_from_config(described, layer_type="sliding_attention") == (Default(), 10_000.0, 16)
        refuses("differ by layer type: pass layer_type, one of .*full_attention", described)
        refuses(
            "no layer type 'chunked_attention' .* full_attention", described, layer_type="chunked_attention"
        )


# Real files, without what says nothing about the rotation

LLAMA_3_2_1B = {
    "model_type": "llama",
    "head_dim": 64,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500_000.0,
}
# The factors are shorter than the real ones.
PHI_3_5_MINI = {
    "model_type": "phi3",
    "hidden_size": 3072,
    "num_attention_heads": 32,
    "max_position_embeddings": 131_072,
    "original_max_position_embeddings": 4096,
    "rope_scaling": {
        "long_factor": [1.0 + i for i in range(48)],
        "short_factor": [1.0 + i / 48 for i in range(48)],
        "type": "longrope",
    },
    "rope_theta": 10_000.0,
    "sliding_window": 262_144,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163_840,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10_000,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "head_dim": 64,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "initial_context_length": 4096,
    "max_position_embeddings": 131_072,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150_000,
}
QWEN2_5_VL = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "max_position_embeddings": 128_000,
    "vision_config": {"depth": 32, "hidden_size": 1280},
    "rope_theta": 1_000_000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
}
QWEN3_VL = {
    "model_type": "qwen3_vl",
    "text_config": {
        "model_type": "qwen3_vl_text",
        "head_dim": 128,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "max_position_embeddings": 262_144,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5_000_000,
    },
    "vision_config": {"depth": 27, "hidden_size": 1152},
}


def test_llama_3_2_1b():
    expected = Llama3(
        factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )
    assert frequencies_from_config(LLAMA_3_2_1B) == (expected, 500_000.0, 64)
    found = expected.inverse_frequencies(64, base=500_000.0)
    np.testing.assert_allclose(found[[15, 31]], [1.29054792821e-3, 9.41830672543e-8], rtol=1e-11)


def test_phi_3_5_mini():
    scaling, base, rotary_dim = frequencies_from_config(PHI_3_5_MINI)
    assert (base, rotary_dim) == (10_000.0, 96)
    assert isinstance(scaling, LongRoPE)
    assert scaling.original_max_position_embeddings == 4096
    np.testing.assert_allclose(scaling.attention_scaling, 1.1902380714238083, rtol=1e-15)


def test_deepseek_v3():
    scaling, base, rotary_dim = frequencies_from_config(DEEPSEEK_V3)
    assert (base, rotary_dim) == (10_000.0, 64)
    assert scaling.attention_scaling == 1
    np.testing.assert_allclose(scaling.softmax_scaling, (0.1 * math.log(40) + 1) ** 2, rtol=1e-15)


@pytest.mark.parametrize("model", ["deepseek_v2", "kimi_k2", "glm4_moe_lite", "longcat_flash", "youtu"])
def test_deepseek_and_kin_correct_the_softmax_scale(model):
    assert scheme(DEEPSEEK_V3 | {"model_type": model}).softmax_scaling > 1


def test_others_do_not_correct_the_softmax_scale():
    described = {key: value for key, value in DEEPSEEK_V3.items() if key != "qk_rope_head_dim"}
    assert scheme(described | {"model_type": "llama", "head_dim": 64}).softmax_scaling == 1


@pytest.mark.parametrize("layer", [None, "full_attention", "sliding_attention"])
def test_gpt_oss(layer):
    expected = YaRN(factor=32.0, original_max_position_embeddings=4096, truncate=False)
    assert frequencies_from_config(GPT_OSS, layer_type=layer) == (expected, 150_000.0, 64)
    refuses("rope_parameters are missing", {key: GPT_OSS[key] for key in GPT_OSS if key != "rope_scaling"})


def test_qwen2_5_vl():
    expected = MRoPE(section=[16, 24, 24]), 1_000_000.0, 128
    assert frequencies_from_config(QWEN2_5_VL) == expected
    saved = {"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"}
    assert frequencies_from_config(QWEN2_5_VL | {"rope_scaling": saved}) == expected


def test_qwen3_vl():
    expected = MRoPE(section=[24, 20, 20], interleaved=True), 5_000_000.0, 128
    assert frequencies_from_config(QWEN3_VL) == expected
    assert frequencies_from_config(QWEN3_VL["text_config"]) == expected
    del (text := copy.deepcopy(QWEN3_VL["text_config"]))["rope_scaling"]["mrope_interleaved"]
    assert frequencies_from_config(text) == expected


def test_hunyuan():
    rope_scaling = {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0}
    rope_scaling |= {"mscale_all_dim": 1.0, "type": "dynamic"}
    assert scheme(config(rope_scaling=rope_scaling)) == NTK(factor=1000.0)


def test_gemma3_scales_full_attention_alone():
    # gemma-3-4b-it, whose file leaves most to transformers.
    described = {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
    }
    full = frequencies_from_config(described, layer_type="full_attention")
    assert full == (Linear(factor=8.0), 1_000_000.0, 256)
    assert frequencies_from_config(described, layer_type="sliding_attention") == (Default(), 10_000.0, 256)


def test_olmo3_scales_full_attention_alone():
    described = config(
        model_type="olmo3",
        rope_theta=500_000,
        rope_scaling={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192},
    )
    full = frequencies_from_config(described, layer_type="full_attention")
    assert full == (YaRN(factor=8.0, original_max_position_embeddings=8192), 500_000.0, 64)
    assert frequencies_from_config(described, layer_type="sliding_attention") == (Default(), 500_000.0, 64)
    refuses("pass layer_type", described)


def test_gemma4_rotates_part_of_larger_heads():
    described = {
        "model_type": "gemma4_text",
        "head_dim": 256,
        "global_head_dim": 512,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    }
    full = frequencies_from_config(described, layer_type="full_attention")
    assert full == (Proportional(partial_rotary_factor=0.25), 1_000_000.0, 512)
    assert frequencies_from_config(described, layer_type="sliding_attention") == (Default(), 10_000.0, 256)


# One model, described in several ways

YARN = {"factor": 4.0, "original_max_position_embeddings": 2048, "beta_fast": 16.0}
NESTED = {"rope_type": "yarn", "rope_theta": 5e5, **YARN}


@pytest.mark.parametrize(
    "described",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", **YARN}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn", **YARN}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn", "type": "yarn", **YARN}},
        {"rope_theta": None, "rope_parameters": NESTED},
        {"rope_theta": 5e5, "rope_parameters": NESTED},
        {"rope_theta": None, "rope_parameters": {"full_attention": NESTED, "sliding_attention": NESTED}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", **YARN}, "rope_parameters": NESTED},
        {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "finetuned": True, **YARN, "mscale": None}},
    ],
)
@pytest.mark.parametrize("layer", [None, "full_attention", "sliding_attention"])
@pytest.mark.parametrize("head", [{"head_dim": 64}, {"head_dim": None, "hidden_size": 512, "n_head": 8}])
def test_the_same_model_described_in_many_ways(described, layer, head):
    expected = YaRN(factor=4.0, original_max_position_embeddings=2048, beta_fast=16.0)
    assert frequencies_from_config(config(**described | head), layer_type=layer) == (expected, 5e5, 64)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"partial_rotary_factor": 0.25}, 16),
        ({"rotary_pct": 0.25}, 16),
        ({"rotary_dim": 16}, 16),
        ({"rotary_ndims": 16}, 16),
        ({"rotary_dim": 16, "partial_rotary_factor": 0.25}, 16),
        ({"partial_rotary_factor": 0.25, "rope_parameters": {"partial_rotary_factor": 0.25}}, 16),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}}, 32),
        ({"partial_rotary_factor": 0.334, "head_dim": 192}, 64),
        ({"model_type": "glm4"}, 32),
        ({"model_type": "glm4", "partial_rotary_factor": 1.0}, 64),
        ({"model_type": "gpt_neox"}, 16),
        ({"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "head_dim": 192}, 64),
        ({"qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "partial_rotary_factor": 0.5, "head_dim": 128}, 64),
        (
            {"qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "partial_rotary_factor": 0.5, "head_dim": None},
            64,
        ),
        ({"head_dim": None, "hidden_size": 4096, "num_attention_heads": 32}, 128),
        ({"head_dim": None, "n_embd": 4096, "n_head": 16}, 256),
        ({"head_dim": 65, "rotary_dim": 64}, 64),
        ({"head_dim": None, "rotary_dim": 32}, 32),
    ],
)
def test_rotary_dimension(parts, expected):
    # https://github.com/huggingface/transformers/issues/48630 and vLLM's PR 30384: the part taken twice.
    assert frequencies_from_config(config(**parts)).rotary_dim == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"head_dim": 10, "partial_rotary_factor": 0.3}, "head_dim 10 times partial_rotary_factor 0.3, is 3"),
        ({"head_dim": 65}, "rotary dimension, from head_dim, is 65: a positive even number"),
        ({"rotary_dim": 7}, "rotary dimension is 7"),
        ({"rotary_dim": 128}, "rotary_dim is 128, more than head_dim, 64"),
        ({"rotary_dim": 16, "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 .* contradicts .* 16"),
        ({"rotary_dim": 16, "rotary_ndims": 32}, "rotary_dim is 16, but rotary_ndims is 32"),
        (
            {"rotary_pct": 0.5, "partial_rotary_factor": 0.25},
            "partial_rotary_factor is 0.25, but rotary_pct is",
        ),
        ({"partial_rotary_factor": 0.25, "rope_parameters": {"partial_rotary_factor": 0.5}}, "contradict"),
        ({"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "partial_rotary_factor": 0.5}, "contradicts"),
        ({"head_dim": None}, "head_dim is missing, and so are hidden_size and num_attention_heads"),
        ({"head_dim": 64.5}, "head_dim must be an integer"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5: .* at most 1"),
        ({"partial_rotary_factor": "half"}, "partial_rotary_factor must be a number"),
        (
            {"rotary_dim": 32, "rope_scaling": {"type": "proportional"}},
            "head_dim is 64, but rotary_dim is 32",
        ),
    ],
)
def test_refused_rotary_dimensions(keys, message):
    refuses(message, config(**keys))


# Each type


@pytest.mark.parametrize("rope_type", ["default", "none", None])
def test_default(rope_type):
    assert (
        scheme(config()) == scheme(config(rope_scaling=None)) == scheme(config(rope_scaling={})) == Default()
    )
    assert scheme(scaled(rope_type)) == scheme(config(rope_scaling={"type": rope_type})) == Default()
    assert scheme(scaled(rope_type, factor=1.0)) == Default()
    refuses("'default' has factor, which isn't implemented for it", scaled(rope_type, factor=2.0))


def test_linear_and_ntk():
    assert scheme(scaled("linear", factor=4)) == Linear(factor=4.0)
    assert scheme(scaled("ntk", factor=4)) == NTK(factor=4.0)


def test_dynamic():
    expected = DynamicNTK(factor=2.0, original_max_position_embeddings=8192)
    assert scheme(scaled("dynamic", factor=2.0)) == expected
    assert scheme(scaled("dynamic", factor=2.0, original_max_position_embeddings=8192)) == expected
    refuses(
        "max_position_embeddings is 8192, but original_max_position_embeddings is 2048",
        scaled("dynamic", factor=2.0, original_max_position_embeddings=2048),
    )


def test_dynamic_with_alpha_is_static():
    assert scheme(scaled("dynamic", alpha=1000.0, factor=1.0)) == NTK(factor=1000.0)
    assert scheme(scaled("dynamic", alpha=None, factor=2.0)).depends_on_length
    assert scheme(scaled("dynamic", alpha=0, factor=2.0)).depends_on_length
    refuses("'dynamic' has factor", scaled("dynamic", alpha=1000.0, factor=2.0))


def test_yarn_factor():
    described = scaled("yarn", original_max_position_embeddings=1024)
    assert scheme(described).factor == 8
    described["rope_scaling"]["factor"] = None
    assert scheme(described).factor == 8
    described["rope_scaling"]["factor"] = 4.0
    assert scheme(described).factor == 4


@pytest.mark.parametrize("nothing", [0, None])
def test_yarn_without_betas_has_the_usual_ones(nothing):
    found = scheme(
        scaled(
            "yarn", factor=2.0, original_max_position_embeddings=4096, beta_fast=nothing, beta_slow=nothing
        )
    )
    assert found == YaRN(factor=2.0, original_max_position_embeddings=4096)


def test_yarn_with_everything():
    values = {
        "factor": 2.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 0.5,
        "mscale_all_dim": 0.25,
        "attention_factor": 1.5,
        "truncate": False,
    }
    assert scheme(scaled("yarn", **values)) == YaRN(**values)


@pytest.mark.parametrize(("factor", "magnitude"), [(4.0, 1 + 0.07 * math.log(4)), (0.5, 1.0)])
def test_telechat3_yarn(factor, magnitude):
    keys = {"factor": factor, "original_max_position_embeddings": 2048}
    found = scheme(scaled("telechat3-yarn", **keys))
    assert found.inverse_frequencies(64).tolist() == YaRN(**keys).inverse_frequencies(64).tolist()
    np.testing.assert_allclose(found.attention_scaling, magnitude, rtol=1e-15)
    refuses("has mscale", scaled("telechat3-yarn", **keys, mscale=1))


LONG = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "original_max_position_embeddings": 2048}


@pytest.mark.parametrize("rope_type", ["longrope", "su"])
@pytest.mark.parametrize(
    ("keys", "factor", "attention_factor"),
    [
        ({}, 4, None),
        ({"factor": 2.0}, 2, None),
        ({"attention_factor": 1.5}, 1, 1.5),
        ({"short_mscale": 1.25, "long_mscale": 1.25}, 1, 1.25),
        ({"factor": 2.0, "attention_factor": 1.0}, 2, 1),
    ],
)
def test_longrope(rope_type, keys, factor, attention_factor):
    expected = LongRoPE(**LONG, factor=factor, attention_factor=attention_factor)
    assert scheme(scaled(rope_type, **LONG, **keys)) == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"long_factor": [2.0] * 31}, "equally long; got 32 and 31"),
        (
            {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
            "one factor a pair, rotary_dim // 2 = 32; got 48",
        ),
        ({"short_mscale": 1.1, "long_mscale": 1.2}, "short_mscale is 1.1, but long_mscale is 1.2"),
        ({"short_mscale": 1.1}, "short_mscale and long_mscale go together"),
        ({"short_mscale": 1.1, "long_mscale": 1.1, "attention_factor": 1.0}, "contradict"),
    ],
)
def test_refused_longrope(keys, message):
    refuses(message, scaled("longrope", **LONG | keys))


def test_proportional():
    assert scheme(scaled("proportional")) == Proportional(partial_rotary_factor=1.0)
    found = frequencies_from_config(scaled("proportional", partial_rotary_factor=0.25, factor=8.0))
    assert found == (Proportional(partial_rotary_factor=0.25, factor=8.0), 10_000.0, 64)


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({"rope_type": "linear", "factor": 2.0}, Linear(factor=2.0)),
        ({"type": "yarn", **YARN}, YaRN(factor=4.0, original_max_position_embeddings=2048, beta_fast=16.0)),
    ],
)
def test_sections_on_top_of_other_types(keys, scaling):
    described = config(model_type="qwen3_vl_text", rope_scaling={"mrope_section": [12, 10, 10], **keys})
    assert scheme(described) == MRoPE(section=[12, 10, 10], interleaved=True, scaling=scaling)


@pytest.mark.parametrize(
    ("model", "keys", "message"),
    [
        (None, {"type": "mrope"}, "mrope_section is missing"),
        ("qwen2_vl", {"rope_type": "default"}, "mrope_section is missing"),
        (None, {"type": "mrope", "mrope_section": [16, 16]}, "three numbers of pairs are needed"),
        (None, {"type": "mrope", "mrope_section": [16, 24, 24]}, "add up to rotary_dim // 2 = 32"),
        (
            "qwen2_vl",
            {"mrope_section": [8, 12, 12], "mrope_interleaved": True},
            "the order of qwen2_vl is False",
        ),
        ("ernie4_5_vl_moe", {"mrope_section": [11, 11, 10]}, "order that ernie4_5_vl_moe has isn't known"),
        (None, {"type": "dynamic", "factor": 2.0, "mrope_section": [8, 12, 12]}, "same at every length"),
    ],
)
def test_refused_sections(model, keys, message):
    refuses(message, config(model_type=model, rope_scaling=keys))


# What is refused


@pytest.mark.parametrize(
    ("rope_type", "keys", "missing"),
    [
        ("linear", {}, "factor"),
        ("ntk", {}, "factor"),
        ("dynamic", {}, "factor"),
        ("yarn", {"factor": 2.0}, "original_max_position_embeddings"),
        ("longrope", {"short_factor": [1.0] * 32, "original_max_position_embeddings": 64}, "long_factor"),
        (
            "longrope",
            {"short_factor": [1.0] * 32, "long_factor": [1.0] * 32},
            "original_max_position_embeddings",
        ),
        (
            "llama3",
            {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            "original_max_position_emb",
        ),
        ("llama3", {"factor": 8.0, "high_freq_factor": 4.0}, "low_freq_factor"),
    ],
)
def test_missing_keys_are_named(rope_type, keys, missing):
    refuses(f"rope_type '{rope_type}' needs {missing}.*is missing. Add it to", scaled(rope_type, **keys))


@pytest.mark.parametrize("rope_type", ["dynamic", "yarn", "longrope"])
def test_the_longest_sequence_is_needed(rope_type):
    keys = {"dynamic": {"factor": 2.0}, "yarn": {"original_max_position_embeddings": 64}, "longrope": LONG}
    described = scaled(rope_type, **keys[rope_type])
    assert scheme(described | {"max_position_embeddings": None, "n_positions": 8192}) == scheme(described)
    refuses("needs max_position_embeddings, which is missing", described | {"max_position_embeddings": None})


def test_a_missing_base_is_not_guessed():
    # https://github.com/lyogavin/airllm/issues/368: 10000 in place of 500000.
    refuses("rope_theta is missing", config(without=["rope_theta"]))
    refuses("rope_theta is missing", config(without=["rope_theta"], model_type="cohere"))
    for model in ("llama", "gptj", "gpt_neox"):
        found = frequencies_from_config(config(without=["rope_theta"], model_type=model, rotary_dim=64))
        assert found.base == 10_000


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (
            scaled("xdrope", alpha=1000.0),
            "unknown rope_type 'xdrope'; known are default, dynamic, linear, llama3",
        ),
        (scaled(["yarn"]), "rope_type is .*: a name is needed"),
        (
            config(rope_scaling={"type": "linear", "rope_type": "yarn", "factor": 2.0}),
            "they contradict each other",
        ),
        (
            config(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "default"}),
            "rope_parameters.rope_type is 'default', but rope_scaling.type is 'linear'",
        ),
        (
            config(
                rope_scaling={"type": "linear", "factor": 2.0},
                rope_parameters={"rope_type": "linear", "factor": 4.0},
            ),
            "rope_parameters.factor is 4.0, but rope_scaling.factor is 2.0",
        ),
        (config(rope_parameters={"rope_theta": 5e5}), "rope_theta is 500000.0, but rope_theta is 10000.0"),
        (config(rotary_emb_base=5e5), "rope_theta is 10000.0, but rotary_emb_base is 500000.0"),
        (
            scaled("yarn", factor=2.0, original_max_position_embeddings=64)
            | {"original_max_position_embeddings": 128},
            "is 64, but original_max_position_embeddings is 128",
        ),
        (scaled("linear", factor="2"), "'linear': factor must be a number; got '2'"),
        (scaled("linear", factor=-2.0), "'linear': factor must be positive"),
        (scaled("linear", factor=2.0, surprise=1), "'linear' has surprise, which isn't implemented for it"),
        (scaled("default", llama_4_scaling_beta=0.1), "has llama_4_scaling_beta"),
        (
            scaled("yarn", factor=2.0, original_max_position_embeddings=64, low_freq_factor=1),
            "has low_freq_factor",
        ),
        (scaled("yarn", factor=2.0, original_max_position_embeddings=64.5), "must be an integer; got 64.5"),
        (scaled("yarn", factor=2.0, original_max_position_embeddings=64, beta_fast=0.5), "Are they swapped"),
        (config(rope_theta="10000"), "rope_theta must be a number"),
        (config(rope_theta=0), "rope_theta must be positive"),
        (config(rope_scaling=4.0), "rope_scaling is 4.0: an object with keys is needed"),
        (config(swa_rope_theta=10_000), "the configuration has swa_rope_theta, which isn't implemented"),
        (config(rope_ratio=50), "has rope_ratio"),
        (
            config(rope_parameters={"full_attention": {"rope_theta": 1e4}, "rope_type": "default"}),
            "values beside those of the layer types",
        ),
        (
            config(text_config={"head_dim": 64, "rope_theta": 5e5}),
            "rope_theta is 10000.0, but text_config.rope_theta is 500000.0",
        ),
    ],
)
def test_refused_configurations(described, message):
    refuses(message, described)


def test_harmless_keys():
    described = config(
        rope_interleave=True, no_rope_layers=[1, 0], use_rope=None, property="x", europe=1, rope_scaling=None
    )
    assert frequencies_from_config(described) == (Default(), 10_000.0, 64)


def test_layer_types():
    nested = config(
        without=["rope_theta"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "linear_attention": None,
        },
    )
    full = frequencies_from_config(nested, layer_type="full_attention")
    assert full == (Linear(factor=2.0), 5e5, 64)
    assert frequencies_from_config(nested, layer_type="sliding_attention") == (Default(), 1e4, 64)
    refuses("of type 'linear_attention' aren't rotated", nested, layer_type="linear_attention")
    refuses(
        "no layer type 'global' in the configuration, which has full_attention", nested, layer_type="global"
    )
    refuses("pass layer_type, one of full_attention, sliding_attention, linear_attention", nested)
    # A base at the top level is that of full attention.
    assert frequencies_from_config(nested | {"rope_theta": 5e5}, layer_type="sliding_attention").base == 1e4
    refuses("contradict", nested | {"rope_theta": 1e4}, layer_type="full_attention")


def test_layer_types_without_parameters_of_their_own():
    described = config(layer_types=["full_attention", "chunked_attention"])
    for layer in ("full_attention", "sliding_attention", "chunked_attention"):
        assert frequencies_from_config(described, layer_type=layer) == (Default(), 10_000.0, 64)
    refuses(
        "no layer type 'global'; known are full_attention, chunked_attention", described, layer_type="global"
    )


def test_no_mapping():
    with pytest.raises(TypeError, match=r"config must be a mapping .*; got a list"):
        frequencies_from_config([])
    refuses("rope_freqs is a tensor of GGUF files", config(), rope_freqs=np.ones(32))


# GGUF


def metadata(architecture="llama", *, without=(), **keys):
    usual = {
        "embedding_length": 2048,
        "attention.head_count": 32,
        "context_length": 131_072,
        "rope.freq_base": np.float32(500_000.0),
        "rope.dimension_count": 64,
    }
    keys = {key.replace("__", "."): value for key, value in keys.items()}
    values = {key: value for key, value in (usual | keys).items() if key not in without}
    return {"general.architecture": architecture} | {f"{architecture}.{key}": v for key, v in values.items()}


def gguf_scaling(kind, **keys):
    return {"rope__scaling__type": kind} | {f"rope__scaling__{key}": value for key, value in keys.items()}


def test_gguf_default():
    expected = Default(), 500_000.0, 64
    assert frequencies_from_config(metadata()) == expected
    assert frequencies_from_config(metadata(), layer_type="full_attention") == expected
    assert frequencies_from_config(metadata(without=["rope.dimension_count"])) == expected
    assert frequencies_from_config(metadata(without=["rope.freq_base"])).base == 10_000
    assert frequencies_from_config(metadata(rope__dimension_count=32)).rotary_dim == 32
    long_keys = metadata(attention__key_length=128, without=["rope.dimension_count"])
    assert frequencies_from_config(long_keys).rotary_dim == 128
    assert scheme(metadata(**gguf_scaling("none", factor=4.0))) == Default()


@pytest.mark.parametrize(
    "keys",
    [
        gguf_scaling("linear", factor=np.float32(4.0)),
        {"rope__scaling__factor": 4.0},
        {"rope__scale_linear": 4.0},
        {"rope__scale_linear": 2.0, "rope__scaling__factor": 4.0},
    ],
)
def test_gguf_linear(keys):
    assert scheme(metadata(**keys)) == Linear(factor=4.0)


def test_gguf_frequency_factors():
    # Llama 3's scaling, which llama.cpp writes as a tensor of float32.
    scaling, base, rotary_dim = frequencies_from_config(LLAMA_3_2_1B)
    expected = scaling.inverse_frequencies(rotary_dim, base=base)
    tensor = (Default().inverse_frequencies(rotary_dim, base=base) / expected).astype("float32")
    found = frequencies_from_config(metadata(), rope_freqs=tensor)
    assert found == (FrequencyFactors(factors=tensor), 500_000.0, 64)
    np.testing.assert_allclose(found.scaling.inverse_frequencies(64, base=base), expected, rtol=1e-7)
    stretched = metadata(**gguf_scaling("linear", factor=2.0, attn_factor=1.5))
    found = scheme(stretched, rope_freqs=tensor)
    assert found == FrequencyFactors(factors=2 * tensor.astype("float64"), attention_factor=1.5)


def test_gguf_longrope():
    short, long = np.linspace(1, 2, 32), np.linspace(1, 60, 32)
    described = metadata("phi3", **gguf_scaling("longrope", original_context_length=4096, attn_factor=1.19))
    expected = LongRoPE(
        short_factor=short, long_factor=long, original_max_position_embeddings=4096, attention_factor=1.19
    )
    assert scheme(described, rope_freqs=[short, long]) == expected
    assert scheme(described, rope_freqs=long) == FrequencyFactors(factors=long, attention_factor=1.19)
    refuses("pass both as rope_freqs", described)
    refuses("shape .*; .2, rotary_dim // 2. is needed", described, rope_freqs=np.ones((3, 32)))
    refuses("factor a pair, rotary_dim // 2 = 32; got 16", described, rope_freqs=np.ones((2, 16)))
    stretched = metadata("phi3", **gguf_scaling("longrope", factor=32.0))
    refuses("factor is 32.0 beside LongRoPE", stretched, rope_freqs=[short, long])


def test_gguf_yarn():
    described = metadata("qwen2", **gguf_scaling("yarn", factor=4.0, original_context_length=32_768))
    expected = YaRN(factor=4.0, original_max_position_embeddings=32_768)
    assert scheme(described) == expected
    usual = 1 + 0.1 * math.log(4)
    for keys in (
        {"yarn_ext_factor": 1.0, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "finetuned": True},
        {"yarn_ext_factor": -1.0, "yarn_attn_factor": np.float32(usual), "attn_factor": 1.0},
    ):
        more = gguf_scaling("yarn", factor=4.0, original_context_length=32_768, **keys)
        assert scheme(metadata("qwen2", **more)) == expected
    more = gguf_scaling("yarn", factor=4.0, attn_factor=1.5, yarn_beta_fast=16.0)
    found = scheme(metadata("qwen2", **more))
    assert (found.original_max_position_embeddings, found.beta_fast) == (131_072, 16)
    np.testing.assert_allclose(found.attention_scaling, 1.5 * usual, rtol=1e-15)


def test_gguf_deepseek():
    keys = gguf_scaling("yarn", factor=40.0, original_context_length=4096)
    keys |= {"rope__scaling__yarn_log_multiplier": np.float32(0.0707)}
    found = scheme(metadata("deepseek2", **keys))
    expected = DEEPSEEK_V3["rope_scaling"] | {"mscale": 0.707, "mscale_all_dim": 0.707}
    assert found == scheme(DEEPSEEK_V3 | {"model_type": "deepseek_v2", "rope_scaling": expected})


@pytest.mark.parametrize(
    ("architecture", "section", "expected"),
    [
        ("qwen2vl", [8, 12, 12, 0], MRoPE(section=[8, 12, 12])),
        ("qwen3vl", [12, 10, 10, 0], MRoPE(section=[12, 10, 10], interleaved=True)),
        ("qwen35", np.array([12, 10, 10], dtype="int32"), MRoPE(section=[12, 10, 10], interleaved=True)),
        ("glm4", [0, 0, 0, 0], Default()),
    ],
)
def test_gguf_sections(architecture, section, expected):
    assert scheme(metadata(architecture, rope__dimension_sections=section)) == expected


def test_gguf_sliding_layers():
    described = metadata("gemma3", **gguf_scaling("linear", factor=8.0))
    full = frequencies_from_config(described, layer_type="full_attention")
    assert full == (Linear(factor=8.0), 500_000.0, 64)
    assert frequencies_from_config(described, layer_type="sliding_attention") == (Default(), 10_000.0, 64)
    refuses("differ by layer type: pass layer_type", described)
    described = metadata("other", rope__freq_base_swa=20_000.0, rope__dimension_count_swa=32)
    sliding = frequencies_from_config(described, layer_type="sliding_attention")
    assert sliding == (Default(), 20_000.0, 32)
    refuses("differ by layer type", described)
    refuses("isn't in the metadata", metadata(), layer_type="sliding_attention")
    described = metadata("other", rope__freq_base_swa=20_000.0, rope__scaling__factor=2.0)
    refuses("isn't in the metadata", described, layer_type="sliding_attention")
    refuses("no layer type 'chunked_attention'", metadata(), layer_type="chunked_attention")


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (
            metadata(**gguf_scaling("ntk")),
            "llama.rope.scaling.type is 'ntk': implemented are 'none', 'linear'",
        ),
        (metadata(rope__surprise=1), "the metadata has llama.rope.surprise, which isn't implemented"),
        (metadata(rope__scaling__alpha=1000.0), "llama.rope.scaling.alpha is 1000.0: this isn't implemented"),
        (metadata(rope__scaling__attn_factor=1.5), "attn_factor is 1.5 without YaRN or LongRoPE"),
        (metadata(rope__scaling__yarn_ext_factor=1.0), "yarn_ext_factor is 1.0: this isn't implemented"),
        (metadata(rope__scaling__factor=-2.0), "llama.rope: factor must be positive"),
        (metadata(rope__freq_base=0.0), "rope.freq_base must be positive"),
        (metadata(rope__dimension_count=63), "rotary_dim must be even"),
        (metadata(rope__dimension_sections=[8, 12, 12, 0]), "dimension_sections isn't implemented for llama"),
        (metadata("qwen2vl", rope__dimension_sections=[8, 8, 8, 8]), "three numbers of pairs are needed"),
        (metadata("qwen2vl", rope__dimension_sections=[16, 24, 24]), "add up to rotary_dim // 2 = 32"),
        (metadata("qwen2vl", rope__dimension_sections=[8.0, 12, 12]), "a list of integers is needed"),
        (
            metadata("gpt-oss", **gguf_scaling("yarn", factor=32.0)),
            "read the frequencies from .* config.json",
        ),
        (metadata(**gguf_scaling("yarn", factor=4.0, yarn_ext_factor=0.5)), "yarn_ext_factor is 0.5"),
        (
            metadata(**gguf_scaling("yarn", factor=4.0, yarn_attn_factor=1.0)),
            "yarn_attn_factor is 1.0, and llama",
        ),
        (
            metadata(**gguf_scaling("yarn", factor=4.0, yarn_log_multiplier=0.1)),
            "isn't implemented for llama",
        ),
        (
            metadata("deepseek2", **gguf_scaling("yarn", factor=4.0)),
            "yarn_log_multiplier is 0.0: .* deepseek2",
        ),
        (
            metadata(
                "deepseek2", **gguf_scaling("yarn", factor=4.0, yarn_log_multiplier=0.1, attn_factor=2.0)
            ),
            "attn_factor is 2.0 beside yarn_log_multiplier",
        ),
        (metadata(without=["embedding_length", "rope.dimension_count"]), "lacks llama.rope.dimension_count"),
        (
            metadata(without=["context_length"], **gguf_scaling("yarn", factor=4.0)),
            "lacks llama.rope.scaling.original_context_length",
        ),
    ],
)
def test_refused_metadata(described, message):
    refuses(message, described)


def test_values_nested_too_deeply_are_refused():
    nested = {}
    for _ in range(100_000):
        nested = {"a": nested}
    refuses("a value is nested too deeply", config(rope_theta=nested))
    refuses("a value is nested too deeply", metadata(**{"rope.freq_base": nested}))


def test_gguf_refuses_a_negative_base_of_sliding_layers():
    refuses("rope.freq_base_swa is -1.0: a positive number", metadata(**{"rope.freq_base_swa": -1.0}))


def test_an_infinite_part_of_a_head_is_refused():
    refuses(
        "qk_nope_head_dim must be an integer; got inf",
        config(qk_rope_head_dim=64, qk_nope_head_dim=math.inf),
    )


def test_gguf_refuses_factors_it_cannot_place():
    refuses("rope_freqs beside YaRN", metadata(**gguf_scaling("yarn", factor=4.0)), rope_freqs=np.ones(32))
    refuses(
        "rope_freqs has shape .2, 32.; .rotary_dim // 2,. is needed", metadata(), rope_freqs=np.ones((2, 32))
    )
    refuses("one factor a pair", metadata(), rope_freqs=np.ones(16))


# As a whole


def test_result_is_a_named_tuple():
    found = frequencies_from_config(config())
    assert isinstance(found, RotaryFrequencies)
    assert found._fields == ("scaling", "base", "rotary_dim")
    assert isinstance(found.base, float)


def test_an_error_is_a_value_error():
    with pytest.raises(ValueError, match="rope_theta is missing"):
        frequencies_from_config({})


def test_reading_imports_neither_pytensor_nor_what_reads_checkpoints(tmp_path):
    code = """
import sys
import pytensor_rope.checkpoints.rope
loaded = {name.split(".")[0] for name in sys.modules}
print(*{"pytensor", "gguf", "tokenizers", "safetensors", "jinja2"} & loaded)
"""
    root = str(Path(pytensor_rope.__file__).parents[1])
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == []
