"""Configurations that must not be read: what is changed in one, and what the error has to name."""

from contextlib import suppress

import pytest
from published_configs import (
    ALL,
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
    SMOLLM3_3B,
    STABLELM_3B,
    STARCODER2_3B,
)

from pytensor_rope.checkpoints import CheckpointError
from pytensor_rope.checkpoints.huggingface.architectures import describe

_ORIGINAL = "original_max_position_embeddings"


def _without(config, key):
    return {other: value for other, value in config.items() if other != key}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
REFUSED = [
    # Of every architecture
    (LLAMA2_7B, {"hidden_act": "relu2"}, "hidden_act"),
    (LLAMA2_7B, {"hidden_act": None}, "hidden_act"),
    (LLAMA2_7B, {"hidden_act": ["silu"]}, "hidden_act"),
    (LLAMA2_7B, {"some_new_key": 1}, "some_new_key"),
    (LLAMA2_7B, {"some_new_key": False}, "some_new_key"),
    (LLAMA2_7B, {"quantization_config": {"bits": 4}}, "quantization_config"),
    (LLAMA2_7B, {"per_layer_config": {"1": {"num_attention_heads": 8}}}, "per_layer_config"),
    (LLAMA2_7B, {"is_encoder_decoder": True}, "is_encoder_decoder"),
    (LLAMA2_7B, {"pruned_heads": {"0": [1]}}, "pruned_heads"),
    (LLAMA2_7B, {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    (LLAMA2_7B, {"hidden_size": -4096}, "hidden_size"),
    (LLAMA2_7B, {"hidden_size": 4096.0}, "hidden_size"),
    (LLAMA2_7B, {"hidden_size": "4096"}, "hidden_size"),
    (LLAMA2_7B, {"hidden_size": True}, "hidden_size"),
    (LLAMA2_7B, {"hidden_size": None}, "hidden_size"),
    (LLAMA2_7B, {"hidden_size": 4100}, "hidden_size"),
    (LLAMA2_7B, {"hidden_size": 2**40}, "hidden_size"),
    (LLAMA2_7B, {"intermediate_size": 0}, "intermediate_size"),
    (LLAMA2_7B, {"vocab_size": 2**63}, "vocab_size"),
    (LLAMA2_7B, {"num_hidden_layers": 10**12}, "num_hidden_layers"),
    (LLAMA2_7B, {"num_attention_heads": 0}, "num_attention_heads"),
    (LLAMA2_7B, {"num_key_value_heads": 5}, "num_key_value_heads"),
    (LLAMA2_7B, {"num_key_value_heads": 64}, "num_key_value_heads"),
    (LLAMA2_7B, {"head_dim": 2**30}, "head_dim"),
    (LLAMA2_7B, {"head_dim": 127}, "head_dim"),
    (LLAMA2_7B, {"max_position_embeddings": [4096]}, "max_position_embeddings"),
    (PHI4_MINI, {"max_position_embeddings": 10**400}, "max_position_embeddings"),
    (LLAMA2_7B, {"rms_norm_eps": 0}, "rms_norm_eps"),
    (LLAMA2_7B, {"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    (LLAMA2_7B, {"rms_norm_eps": 10**400}, "rms_norm_eps"),
    (LLAMA2_7B, {"rms_norm_eps": "1e-5"}, "rms_norm_eps"),
    (LLAMA2_7B, {"attention_bias": 1}, "attention_bias"),
    (LLAMA2_7B, {"mlp_bias": "true"}, "mlp_bias"),
    (LLAMA2_7B, {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    (LLAMA2_7B, {"rope_scaling": {"rope_type": "new"}}, "rope_type"),
    (LLAMA2_7B, {"rope_scaling": "linear"}, "rope_scaling"),
    (LLAMA2_7B, {"rope_scaling": {"type": "linear"}}, "factor"),
    (LLAMA2_7B, {"rope_theta": -1.0}, "rope_theta"),
    (LLAMA2_7B, {"rope_parameters": {"rope_theta": 5.0}, "rope_theta": 7.0}, "rope_theta"),
    (LLAMA2_7B, {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    (LLAMA2_7B, {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, "mrope_"),
    (LLAMA2_7B, {"rotary_pct": 0.5}, "rotary_pct"),
    (LLAMA2_7B, {"rope_interleaved": True}, "rope_interleaved"),
    (LLAMA2_7B, {"sliding_window": 512}, "sliding_window"),
    (LLAMA2_7B, {"layer_types": ["sliding_attention"] * 32}, "layer_types"),
    (LLAMA2_7B, {"num_local_experts": 8}, "num_local_experts"),
    # Of one
    (MISTRAL_7B, {"sliding_window": 0}, "sliding_window"),
    (MISTRAL_7B, {"sliding_window": 4096.0}, "sliding_window"),
    (MISTRAL_7B, {"layer_types": ["full_attention"] * 32}, "layer_types"),
    (MISTRAL_7B, {"attention_bias": True}, "attention_bias"),
    (MINISTRAL_8B, {"layer_types": ["chunked_attention"] * 32}, "layer_types"),
    (MINISTRAL_8B, {"sliding_window": None}, "sliding_window"),
    (QWEN2_0_5B, {"layer_types": ["full_attention"] * 23}, "layer_types"),
    (QWEN2_0_5B, {"layer_types": ["sliding_attention"] * 24}, "sliding_window"),
    (QWEN2_0_5B, {"layer_types": [["full_attention"]] * 24}, "layer_types"),
    (QWEN2_0_5B, {"layer_types": "full_attention"}, "layer_types"),
    (QWEN2_0_5B, {"use_sliding_window": "no"}, "use_sliding_window"),
    (QWEN2_0_5B, {"max_window_layers": -1}, "max_window_layers"),
    (QWEN2_0_5B, {"attention_bias": False}, "attention_bias"),
    (QWEN2_0_5B, {"use_mrope": True}, "use_mrope"),
    (QWEN3_0_6B, {"num_experts": 4}, "num_experts"),
    (SMOLLM3_3B, {"no_rope_layers": [1, 0]}, "no_rope_layers"),
    (SMOLLM3_3B, {"no_rope_layers": [2] * 36}, "no_rope_layers"),
    (SMOLLM3_3B, {"no_rope_layers": [True] * 36}, "no_rope_layers"),
    (SMOLLM3_3B, {"no_rope_layer_interval": 0}, "no_rope_layer_interval"),
    (SMOLLM3_3B, {"layer_types": ["sliding_attention"] * 36}, "sliding_window"),
    (PHI2, {"qk_layernorm": 1}, "qk_layernorm"),
    (PHI2, {"head_dim": 64}, "head_dim"),
    (PHI2, {"partial_rotary_factor": 2.0}, "partial_rotary_factor"),
    (PHI2, {"layer_norm_eps": None}, "layer_norm_eps"),
    (PHI4_MINI, {"rope_scaling": YARN | {"original_max_position_embeddings": 4096}}, "rope_scaling"),
    (PHI4_MINI, {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48}}, "long_factor"),
    (PHI4_MINI, {"rope_scaling": PHI4_MINI["rope_scaling"] | {"short_factor": [1.0] * 47}}, "short_factor"),
    (
        _without(PHI4_MINI, _ORIGINAL),
        {"rope_scaling": PHI4_MINI["rope_scaling"] | {_ORIGINAL: 2048}},
        _ORIGINAL,
    ),
    (PHI4_MINI, {"full_attn_mod": 2}, "full_attn_mod"),
    (PHI4_MINI, {"lm_head_bias": True}, "lm_head_bias"),
    (GEMMA_2B, {"hidden_act": "silu"}, "hidden_act"),
    (GEMMA_2B, {"hidden_activation": "gelu"}, "hidden_activation"),
    (GEMMA2_27B, {"hidden_act": "silu"}, "hidden_act"),
    (GEMMA2_27B, {"attn_logit_softcapping": 0.0}, "attn_logit_softcapping"),
    (GEMMA2_27B, {"final_logit_softcapping": "30"}, "final_logit_softcapping"),
    (GEMMA2_27B, {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    (GEMMA2_27B, {"sliding_window": None}, "sliding_window"),
    (GEMMA3_1B, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    (GEMMA3_1B, {"_sliding_window_pattern": 5}, "_sliding_window_pattern"),
    (GEMMA3_1B, {"sliding_window_pattern": 0}, "sliding_window_pattern"),
    (GEMMA3_1B, {"rope_local_base_freq": "x"}, "rope_theta"),
    (PYTHIA_70M, {"num_key_value_heads": 2}, "num_key_value_heads"),
    (PYTHIA_70M, {"head_dim": 32}, "head_dim"),
    (PYTHIA_70M, {"rotary_pct": 0.12}, "rotary dimension"),
    (PYTHIA_70M, {"use_parallel_residual": 1}, "use_parallel_residual"),
    (PYTHIA_70M, {"rope_theta": 5000.0}, "rotary_emb_base"),
    (_without(PYTHIA_70M, "rotary_emb_base"), {"rope_theta": 5000.0}, "rotary_emb_base"),
    (_without(PYTHIA_70M, "rotary_pct"), {"partial_rotary_factor": 0.5}, "rotary_pct"),
    (GPT_J_6B, {"hidden_size": 2048}, "n_embd"),
    (GPT_J_6B, {"n_head": -1}, "n_head"),
    (GPT_J_6B, {"n_positions": "2048"}, "n_positions"),
    (GPT_J_6B, {"rotary_dim": None}, "rotary_dim"),
    (GPT_J_6B, {"rotary_dim": 512}, "rotary_dim"),
    (GPT_J_6B, {"rotary": False}, "rotary"),
    (GPT_J_6B, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
    (GPT_J_6B, {"n_inner": -1}, "n_inner"),
    (GPT_J_6B, {"intermediate_size": 1024}, "intermediate_size"),
    (COMMAND_R_PLUS, {"logit_scale": None}, "logit_scale"),
    (COMMAND_R_PLUS, {"use_qk_norm": "yes"}, "use_qk_norm"),
    (COMMAND_R7B, {"use_qk_norm": True}, "use_qk_norm"),
    (COMMAND_R7B, {"order_of_interleaved_layers": "global_attn_first"}, "order_of_interleaved_layers"),
    (COMMAND_R7B, {"rotary_pct": 0.5}, "rotary_pct"),
    (COMMAND_R7B, {"use_parallel_block": False}, "use_parallel_block"),
    (GLM4_9B, {"partial_rotary_factor": 0.0}, "partial_rotary_factor"),
    (GLM4_0414, {"mlp_bias": True}, "mlp_bias"),
    (GRANITE_2B, {"logits_scaling": 0.0}, "logits_scaling"),
    (GRANITE_2B, {"attention_multiplier": float("inf")}, "attention_multiplier"),
    (GRANITE_2B, {"residual_multiplier": -1}, "residual_multiplier"),
    (OLMO2_7B, {"clip_qkv": 8.0}, "clip_qkv"),
    (OLMO3_7B, {"layer_types": ["linear_attention"] * 32}, "layer_types"),
    (STABLELM_3B, {"qk_layernorm": True}, "qk_layernorm"),
    (STARCODER2_3B, {"norm_type": "rms_norm"}, "norm_type"),
    # Which model it is
    (LLAMA2_7B, {"model_type": "mamba"}, "model_type"),
    (LLAMA2_7B, {"model_type": None}, "model_type"),
    (LLAMA2_7B, {"model_type": ["llama"]}, "model_type"),
    (LLAMA2_7B, {"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
    (LLAMA2_7B, {"architectures": "LlamaForCausalLM"}, "architectures"),
    (GEMMA3_1B, {"architectures": ["Gemma3ForConditionalGeneration"]}, "architectures"),
    (GEMMA3_1B, {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, "text_config"),
]


@pytest.mark.parametrize(
    ("given", "change", "key"),
    [
        pytest.param(*case, id=f"{i}-{case[0]['model_type']}-{'-'.join(case[1])}")
        for i, case in enumerate(REFUSED)
    ],
)
def test_refused(given, change, key):
    with pytest.raises(CheckpointError, match=key):
        describe(given | change)


@pytest.mark.parametrize("published", ALL, ids=[config["model_type"] for config in ALL])
def test_every_architecture_refuses_what_it_does_not_know(published):
    with pytest.raises(CheckpointError, match="unheard_of"):
        describe(published | {"unheard_of": 0.5})


@pytest.mark.parametrize("published", ALL, ids=[config["model_type"] for config in ALL])
def test_wrong_values_raise_nothing_else(published):
    wrong = (None, True, -1, 0, 3, 1.5, float("nan"), 10**400, "x", [], [[]], {}, {"rope_type": []})
    for key in (*published, "rope_parameters", "rope_scaling", "layer_types", "head_dim"):
        for value in wrong:
            with suppress(CheckpointError):
                describe(published | {key: value})


@pytest.mark.parametrize(
    "change",
    [
        {"unheard_of": None},
        {"sliding_window": None},
        {"rope_scaling": None},
        {"head_dim": None},
        {"num_key_value_heads": None},
        {"quantization_config": None},
        {"attention_dropout": 0.1, "pretraining_tp": 2, "use_cache": False},
        {"is_encoder_decoder": False, "pruned_heads": {}},
        {"architectures": None},
        {"hidden_act": "swish"},
    ],
)
def test_neutral_values_change_nothing(change):
    assert describe(LLAMA2_7B | change).config == describe(LLAMA2_7B).config


def test_a_qwen_may_say_that_its_positions_have_one_axis():
    # As the files of Qwen2.5-0.5B and of DeepSeek-R1-Distill-Qwen-1.5B do.
    assert describe(QWEN2_0_5B | {"use_mrope": False}).config == describe(QWEN2_0_5B).config


@pytest.mark.parametrize(
    ("given", "change"),
    [
        (_without(PHI4_MINI, _ORIGINAL), {}),
        (PYTHIA_70M, {"rope_theta": 10_000, "partial_rotary_factor": 0.25}),
        (_without(PYTHIA_70M, "rotary_emb_base"), {"rope_theta": 10_000}),
        (_without(PYTHIA_70M, "rotary_emb_base"), {"rope_parameters": {"rope_theta": 10_000.0}}),
    ],
)
def test_what_transformers_fills_in_may_be_said(given, change):
    published = PHI4_MINI if given["model_type"] == "phi3" else PYTHIA_70M
    assert describe(given | change).config == describe(published).config


def test_an_error_lists_what_is_implemented():
    with pytest.raises(CheckpointError, match=r"'mamba': implemented are cohere, .*, starcoder2"):
        describe({"model_type": "mamba"})


@pytest.mark.parametrize("config", [None, [], "llama", {}])
def test_no_config(config):
    with pytest.raises(CheckpointError, match=r"config\.json|model_type"):
        describe(config)
