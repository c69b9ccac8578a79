"""What a ``config.json`` says and which tensors it promises, for each architecture."""

import json
from pathlib import Path

import numpy as np
import pytest
from published_configs import (
    COMMAND_R7B,
    COMMAND_R_PLUS,
    GEMMA2_27B,
    GEMMA3_1B,
    GEMMA_2B,
    GLM4_0414,
    GLM4_9B,
    GPT_J_6B,
    GRANITE_2B,
    LLAMA2_7B,
    MINISTRAL_8B,
    MISTRAL_7B,
    OLMO2_7B,
    OLMO3_7B,
    PHI2,
    PHI4_MINI,
    PYTHIA_70M,
    QWEN2_0_5B,
    QWEN3_0_6B,
    SMOLLM2_135M,
    SMOLLM3_3B,
    STABLELM_3B,
    STARCODER2_3B,
)

from pytensor_rope.checkpoints.huggingface.architectures import describe
from pytensor_rope.config import DecoderConfig
from pytensor_rope.frequencies import Default, Linear, Llama3, LongRoPE, YaRN
from pytensor_rope.weights import weight_shapes

DATA = Path(__file__).parent / "data"


def tensors(model):
    """Return the names and shapes in the header of a model's safetensors file."""
    data = (DATA / "zoo" / model / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return {name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"}


SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 128,
    "n_layer": 2,
    "n_head": 4,
    "n_kv_head": 2,
    "head_dim": 16,
    "context_length": 128,
}
LAYER_NORM = {"norm": "layer", "norm_bias": True}
SIDE_BY_SIDE = {"residual": "parallel", "shared_norm": True}

# What a zoo model's config says beside the sizes and what DecoderConfig has by default.
ZOO = {
    "cohere": {
        "tied": True,
        "pairing": "adjacent",
        "norm": "layer",
        **SIDE_BY_SIDE,
        "logit_scale": 0.25,
    },
    "gemma3": {
        "epsilon": 1e-6,
        "tied": True,
        "base": 1e6,
        "unit_offset": True,
        "norm_placement": "both",
        "activation": "gelu_tanh",
        "qk_norm": "head",
        "attention_scale": 32**-0.5,
        "embedding_scale": 8.0,
        "sliding_window": 8,
        "sliding_layers": (True, False),
        "sliding_base": 1e4,
        "sliding_scaling": Default(),
    },
    "glm4": {
        "epsilon": 1.5625e-07,
        "pairing": "adjacent",
        "rotary_dim": 8,
        "norm_placement": "both",
        "qkv_bias": True,
    },
    "gpt_neox": {
        "n_kv_head": 4,
        "rotary_dim": 4,
        **LAYER_NORM,
        "residual": "parallel",
        "activation": "gelu",
        "gated": False,
        "qkv_bias": True,
        "output_bias": True,
        "feed_forward_bias": True,
    },
    "gptj": {
        "n_kv_head": 4,
        "pairing": "adjacent",
        "rotary_dim": 8,
        **LAYER_NORM,
        **SIDE_BY_SIDE,
        "activation": "gelu_tanh",
        "gated": False,
        "feed_forward_bias": True,
        "head_bias": True,
    },
    "granite": {
        "epsilon": 1e-6,
        "attention_scale": 0.1,
        "embedding_scale": 3.0,
        "residual_scale": 0.5,
        "logit_scale": 0.5,
    },
    "llama_default": {"epsilon": 1e-6},
    "llama_llama3": {
        "epsilon": 1e-6,
        "scaling": Llama3(
            factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
        ),
    },
    "llama_longrope_short": {
        "epsilon": 1e-6,
        "scaling": LongRoPE(
            original_max_position_embeddings=32,
            short_factor=(1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.8, 2.2),
            long_factor=(1.0, 1.3, 1.9, 2.8, 4.0, 6.5, 9.0, 14.0),
            factor=4.0,
        ),
    },
    "llama_yarn_mscale": {
        "context_length": 512,
        "epsilon": 1e-6,
        "scaling": YaRN(factor=8.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.5),
    },
    "mistral_sliding": {"epsilon": 1e-6, "sliding_window": 8},
    "olmo2": {"base": 5e5, "norm_placement": "after", "qk_norm": "width"},
    "phi3_partial": {"rotary_dim": 12},
    "qwen2": {"epsilon": 1e-6, "base": 1e6, "qkv_bias": True},
    "qwen3": {"epsilon": 1e-6, "base": 1e6, "qk_norm": "head"},
    "smollm3": {"epsilon": 1e-6, "base": 2e6, "rotated_layers": (True, False)},
}
FILES = [(model, name) for model in ZOO for name in ("config.json", "config_legacy.json")]
FILES = [(model, name) for model, name in FILES if (DATA / "zoo" / model / name).exists()]


def zoo(model, name="config.json"):
    return json.loads((DATA / "zoo" / model / name).read_text())


@pytest.mark.parametrize(("model", "name"), FILES)
def test_zoo_configs(model, name):
    config = describe(zoo(model, name)).config
    assert config == DecoderConfig(**(SIZES | ZOO[model]))


@pytest.mark.parametrize("model", ZOO)
def test_weights_name_exactly_the_tensors_of_the_file(model):
    architecture = describe(zoo(model))
    named = {weight.source: list(weight.shape) for weight in architecture.weights()}
    assert named == tensors(model)


@pytest.mark.parametrize("model", ZOO)
def test_weights_are_those_of_the_decoder(model):
    architecture = describe(zoo(model))
    ours = {weight.name: weight.empty()[0].shape for weight in architecture.weights()}
    assert ours == weight_shapes(architecture.config)


def test_each_row_of_a_fused_tensor_is_used_once():
    for model in ("gpt_neox", "phi3_partial", "glm4"):
        rows = {}
        for weight in describe(zoo(model)).weights():
            if weight.rows is not None:
                rows.setdefault((weight.source, weight.shape[0]), []).extend(weight.rows)
        assert rows
        for (_, n_row), used in rows.items():
            assert sorted(used) == list(range(n_row))


def part(architecture, name, tensor):
    (weight,) = (weight for weight in architecture.weights() if weight.name == name)
    assert weight.shape == tensor.shape
    return tensor[weight.rows]


def test_gpt_neox_splits_by_head():
    """Transformers views the projection as (n_head, 3 * head_dim) and chunks it in three."""
    architecture = describe(zoo("gpt_neox"))
    matrix = np.random.default_rng(0).normal(size=(192, 64))
    by_head = matrix.reshape(4, 3, 16, 64)
    for i, name in enumerate(("query", "key", "value")):
        np.testing.assert_array_equal(
            part(architecture, f"layers.1.{name}", matrix), by_head[:, i].reshape(64, 64)
        )
        np.testing.assert_array_equal(
            part(architecture, f"layers.1.{name}_bias", matrix[:, 0]), by_head[:, i, :, 0].ravel()
        )


def test_phi3_splits_one_after_the_other():
    architecture = describe(zoo("phi3_partial"))
    fused = np.random.default_rng(0).normal(size=(128, 64))
    for name, rows in (("query", fused[:64]), ("key", fused[64:96]), ("value", fused[96:])):
        np.testing.assert_array_equal(part(architecture, f"layers.0.{name}", fused), rows)
    fused = np.random.default_rng(1).normal(size=(256, 64))
    gate, up = np.split(fused, 2)
    np.testing.assert_array_equal(part(architecture, "layers.0.gate", fused), gate)
    np.testing.assert_array_equal(part(architecture, "layers.0.up", fused), up)


def test_tied_models_may_repeat_the_embedding():
    assert describe(zoo("cohere")).duplicates == {"lm_head.weight": "model.embed_tokens.weight"}
    assert describe(zoo("gpt_neox") | {"tie_word_embeddings": True}).duplicates == {
        "embed_out.weight": "gpt_neox.embed_in.weight"
    }
    assert describe(zoo("llama_default")).duplicates == {}
    sources = [weight.source for weight in describe(zoo("cohere")).weights()]
    assert "lm_head.weight" not in sources


@pytest.mark.parametrize(
    ("model", "name", "harmless"),
    [
        ("llama_default", "model.layers.0.self_attn.rotary_emb.inv_freq", True),
        ("llama_default", "model.rotary_emb.inv_freq", True),
        ("llama_default", "model.layers.0.self_attn.q_proj.bias", False),
        ("llama_default", "model.layers.0.self_attn.rotary_emb.inv_freq.scale", False),
        ("gpt_neox", "gpt_neox.layers.11.attention.bias", True),
        ("gpt_neox", "gpt_neox.layers.11.attention.masked_bias", True),
        ("gpt_neox", "gpt_neox.layers.11.attention.rotary_emb.inv_freq", True),
        ("gpt_neox", "gpt_neox.layers.11.attention.dense.bias", False),
        ("gptj", "transformer.h.3.attn.bias", True),
        ("gptj", "transformer.h.3.attn.masked_bias", True),
        ("gptj", "transformer.h.3.attn.q_proj.bias", False),
        ("qwen2", "model.layers.0.self_attn.bias", False),
    ],
)
def test_surplus_tensors(model, name, harmless):
    assert describe(zoo(model)).surplus(name) is harmless


FULL4 = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
HALVES = tuple(i % 2 == 0 for i in range(46))
SIXTHS = tuple(i % 6 != 5 for i in range(26))
QUARTERS = tuple(i % 4 != 3 for i in range(32))
NO_WINDOW = {"sliding_window": None, "sliding_layers": None}

VARIANTS = {
    "smollm2": (SMOLLM2_135M, {"tied": True, "head_dim": 64, "n_kv_head": 3, "base": 100_000.0}),
    "llama 2 leaves out": (
        LLAMA2_7B,
        {"tied": False, "head_dim": 128, "n_kv_head": 32, "base": 10_000.0, "qkv_bias": False},
    ),
    "llama with biases": (
        LLAMA2_7B | {"attention_bias": True, "mlp_bias": True},
        {"qkv_bias": True, "output_bias": True, "feed_forward_bias": True, "head_bias": False},
    ),
    "llama with its own head_dim": (LLAMA2_7B | {"head_dim": 64}, {"head_dim": 64}),
    "llama without epsilon": ({k: v for k, v in LLAMA2_7B.items() if k != "rms_norm_eps"}, {"epsilon": 1e-6}),
    "mistral": (MISTRAL_7B, {"sliding_window": 4096, "sliding_layers": None}),
    "mistral null": (MISTRAL_7B | {"sliding_window": None}, NO_WINDOW),
    "mistral leaves out": (
        {k: v for k, v in MISTRAL_7B.items() if k not in ("sliding_window", "num_key_value_heads")},
        {"sliding_window": 4096, "n_kv_head": 8},
    ),
    "mistral ungrouped": (MISTRAL_7B | {"num_key_value_heads": None}, {"n_kv_head": 32}),
    "ministral": (
        MINISTRAL_8B,
        {"sliding_window": 4096, "sliding_layers": tuple(i % 4 != 0 for i in range(32))},
    ),
    "ministral without types": (
        MINISTRAL_8B | {"layer_types": None},
        {"sliding_window": 4096, "sliding_layers": None},
    ),
    "qwen2": (QWEN2_0_5B, {**NO_WINDOW, "qkv_bias": True, "output_bias": False, "tied": True}),
    "qwen2 slides": (
        QWEN2_0_5B | {"use_sliding_window": True},
        {"sliding_window": 32768, "sliding_layers": (False,) * 21 + (True,) * 3},
    ),
    "qwen2 slides nowhere": (QWEN2_0_5B | {"use_sliding_window": True, "max_window_layers": 24}, NO_WINDOW),
    "qwen2 slides everywhere": (
        QWEN2_0_5B | {"use_sliding_window": True, "max_window_layers": 0},
        {"sliding_window": 32768, "sliding_layers": None},
    ),
    "qwen2 lists": (
        QWEN2_0_5B | {"use_sliding_window": True, "num_hidden_layers": 4, "layer_types": FULL4},
        {"sliding_layers": (False, True, False, False)},
    ),
    "qwen3": (QWEN3_0_6B, {"head_dim": 128, "qk_norm": "head", "qkv_bias": False}),
    "qwen3 without head_dim": ({k: v for k, v in QWEN3_0_6B.items() if k != "head_dim"}, {"head_dim": 128}),
    "smollm3": (
        SMOLLM3_3B,
        {"tied": True, "rotated_layers": tuple(i % 4 != 3 for i in range(36)), **NO_WINDOW},
    ),
    "smollm3 every other": (
        SMOLLM3_3B | {"no_rope_layer_interval": 2},
        {"rotated_layers": (True, False) * 18},
    ),
    "smollm3 all rotated": (SMOLLM3_3B | {"no_rope_layers": [1] * 36}, {"rotated_layers": None}),
    "smollm3 slides": (
        SMOLLM3_3B | {"use_sliding_window": True, "sliding_window": 512},
        {"sliding_window": 512, "sliding_layers": tuple(i % 4 == 3 for i in range(36))},
    ),
    "phi 2": (PHI2, {"rotary_dim": 32, "head_bias": True, "gated": False, "qk_norm": None, **SIDE_BY_SIDE}),
    "phi normalised": (PHI2 | {"qk_layernorm": True}, {"qk_norm": "head", **LAYER_NORM}),
    "phi leaves out": ({k: v for k, v in PHI2.items() if "rotary" not in k}, {"rotary_dim": 40}),
    "phi 4 mini": (
        PHI4_MINI,
        {
            "rotary_dim": 96,
            "sliding_window": 262144,
            "scaling": LongRoPE(
                original_max_position_embeddings=4096,
                short_factor=(1.0,) * 48,
                long_factor=(2.0,) * 48,
                factor=32.0,
            ),
        },
    ),
    "phi 3 su": (
        PHI4_MINI | {"rope_scaling": PHI4_MINI["rope_scaling"] | {"type": "su"}, "sliding_window": None},
        NO_WINDOW,
    ),
    "gemma": (
        GEMMA_2B,
        {
            "activation": "gelu_tanh",
            "tied": True,
            "unit_offset": True,
            "embedding_scale": 2048**0.5,
            "attention_scale": None,
            "norm_placement": "before",
        },
    ),
    "gemma 2": (
        GEMMA2_27B,
        {
            "attention_scale": 1 / 12,
            "attention_softcap": 50.0,
            "logit_softcap": 30.0,
            "sliding_window": 4096,
            "sliding_layers": HALVES,
            "norm_placement": "both",
            "sliding_base": None,
        },
    ),
    "gemma 2 leaves out": (
        {k: v for k, v in GEMMA2_27B.items() if "softcapping" not in k and k != "query_pre_attn_scalar"},
        {"attention_scale": 1 / 16, "attention_softcap": 50.0, "logit_softcap": 30.0},
    ),
    "gemma 2 uncapped": (
        GEMMA2_27B | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        {"attention_softcap": None, "logit_softcap": None},
    ),
    "gemma 3": (
        GEMMA3_1B,
        {
            "base": 1e6,
            "sliding_base": 1e4,
            "sliding_layers": SIXTHS,
            "attention_scale": 1 / 16,
            "logit_softcap": None,
        },
    ),
    "gemma 3 scaled": (
        GEMMA3_1B | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {"scaling": Linear(factor=8.0), "sliding_scaling": Default(), "sliding_base": 1e4},
    ),
    "gemma 3 without a pattern": (
        {k: v for k, v in GEMMA3_1B.items() if k != "sliding_window_pattern"},
        {"sliding_layers": SIXTHS},
    ),
    "pythia": (PYTHIA_70M, {"rotary_dim": 16, "residual": "parallel", "shared_norm": False}),
    "neox one after the other": (
        PYTHIA_70M | {"use_parallel_residual": False, "attention_bias": False},
        {"residual": "sequential", "qkv_bias": False, "output_bias": False, "feed_forward_bias": True},
    ),
    "neox 20b": (PYTHIA_70M | {"hidden_act": "gelu_fast"}, {"activation": "gelu_tanh"}),
    "gpt-j": (GPT_J_6B, {"intermediate_size": 16384, "rotary_dim": 64, "n_kv_head": 16, "head_dim": 256}),
    "command r+": (
        COMMAND_R_PLUS,
        {"qk_norm": "heads", "tied": True, "logit_scale": 0.8333333333333334, "norm_bias": False},
    ),
    "command r7b": (
        COMMAND_R7B,
        {"sliding_layers": QUARTERS, "rotated_layers": QUARTERS, "sliding_window": 4096, "base": 5e4},
    ),
    "cohere2 lists": (
        COMMAND_R7B | {"num_hidden_layers": 4, "layer_types": FULL4},
        {"sliding_layers": (False, True, False, False), "rotated_layers": (False, True, False, False)},
    ),
    "cohere2 slides everywhere": (
        COMMAND_R7B | {"layer_types": ["sliding_attention"] * 32},
        {"sliding_layers": None, "rotated_layers": None},
    ),
    "glm": (GLM4_9B, {"rotary_dim": 64, "norm_placement": "before", "qkv_bias": True, "output_bias": False}),
    "glm 4 0414": (GLM4_0414, {"norm_placement": "both", "qkv_bias": False}),
    "granite": (
        GRANITE_2B,
        {"attention_scale": 1 / 64, "embedding_scale": 12.0, "logit_scale": 0.125, "residual_scale": 0.22},
    ),
    "granite leaves out": (
        {k: v for k, v in GRANITE_2B.items() if "multiplier" not in k and k != "logits_scaling"},
        {"attention_scale": 1.0, "embedding_scale": 1.0, "logit_scale": 1.0, "residual_scale": 1.0},
    ),
    "olmo 2": (OLMO2_7B, {"norm_placement": "after", "qk_norm": "width", "base": 5e5}),
    "olmo 3": (
        OLMO3_7B,
        {
            "sliding_layers": QUARTERS,
            "sliding_base": 5e5,
            "sliding_scaling": Default(),
            "scaling": YaRN(
                factor=8.0,
                original_max_position_embeddings=8192,
                attention_factor=1.2079441541679836,
            ),
        },
    ),
    "olmo 3 without types": (OLMO3_7B | {"layer_types": None}, {"sliding_layers": QUARTERS}),
    "stablelm": (
        STABLELM_3B,
        {"rotary_dim": 20, "residual": "sequential", "shared_norm": False, "gated": True, **LAYER_NORM},
    ),
    "stablelm side by side": (
        STABLELM_3B | {"use_parallel_residual": True, "use_qkv_bias": True},
        {"qkv_bias": True, "output_bias": False, **SIDE_BY_SIDE},
    ),
    "starcoder2": (
        STARCODER2_3B,
        {
            "tied": True,
            "gated": False,
            "activation": "gelu_tanh",
            "sliding_window": 4096,
            "output_bias": True,
        },
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_published_configs(variant):
    given, expected = VARIANTS[variant]
    config = describe(given).config
    assert {key: getattr(config, key) for key in expected} == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_published_configs_name_each_weight(variant):
    architecture = describe(VARIANTS[variant][0])
    weights = [(weight.name, weight.source) for weight in architecture.weights()]
    assert [name for name, _ in weights] == list(weight_shapes(architecture.config))
    assert all(source.endswith((".weight", ".bias")) for _, source in weights)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        # Read off transformers 5.24's state dicts: module names in the model's code.
        (
            PHI2 | {"qk_layernorm": True},
            {
                "layers.0.query_norm": "model.layers.0.self_attn.q_layernorm.weight",
                "layers.0.key_norm_bias": "model.layers.0.self_attn.k_layernorm.bias",
                "layers.0.output": "model.layers.0.self_attn.dense.weight",
                "layers.31.up_bias": "model.layers.31.mlp.fc1.bias",
                "final_norm": "model.final_layernorm.weight",
                "head_bias": "lm_head.bias",
            },
        ),
        (
            GEMMA2_27B,
            {
                "layers.0.attention_norm": "model.layers.0.input_layernorm.weight",
                "layers.0.attention_output_norm": "model.layers.0.post_attention_layernorm.weight",
                "layers.0.feed_forward_norm": "model.layers.0.pre_feedforward_layernorm.weight",
                "layers.0.feed_forward_output_norm": "model.layers.0.post_feedforward_layernorm.weight",
            },
        ),
        (
            GEMMA_2B,
            {"layers.0.feed_forward_norm": "model.layers.0.post_attention_layernorm.weight"},
        ),
        (COMMAND_R_PLUS, {"layers.0.query_norm": "model.layers.0.self_attn.q_norm.weight"}),
        (
            GLM4_9B,
            {
                "layers.0.gate": "model.layers.0.mlp.gate_up_proj.weight",
                "layers.0.feed_forward_norm": "model.layers.0.post_attention_layernorm.weight",
            },
        ),
        (
            STARCODER2_3B,
            {
                "layers.0.up": "model.layers.0.mlp.c_fc.weight",
                "layers.0.down_bias": "model.layers.0.mlp.c_proj.bias",
                "final_norm_bias": "model.norm.bias",
            },
        ),
    ],
)
def test_tensor_names(given, named):
    sources = {weight.name: weight.source for weight in describe(given).weights()}
    assert {name: sources[name] for name in named} == named


def test_norms_of_each_head_are_no_matrices_to_transpose():
    weights = {weight.name: weight for weight in describe(COMMAND_R_PLUS).weights()}
    assert weights["layers.0.query_norm"].shape == (96, 128)
    assert weights["layers.0.key_norm"].shape == (8, 128)
    assert not weights["layers.0.query_norm"].transpose
    assert weights["layers.0.query"].transpose
