"""GLM-4: a part of each head rotated, neighbours with each other."""

from collections.abc import Mapping
from typing import Any

from pytensor_rope.checkpoints.huggingface.architectures.base import (
    ACTIVATIONS,
    Architecture,
    describe_files,
    read_rotary,
    read_sizes,
)
from pytensor_rope.checkpoints.huggingface.architectures.llama import NAMES
from pytensor_rope.checkpoints.huggingface.architectures.names import TensorNames, stacked_gate
from pytensor_rope.checkpoints.huggingface.config_keys import ConfigKeys

_GLM_NAMES = TensorNames(
    layer={
        **NAMES.layer,
        **stacked_gate("mlp.gate_up_proj"),
    }
)
_GLM4_NAMES = TensorNames(
    layer={
        **_GLM_NAMES.layer,
        "attention_output_norm": "post_self_attn_layernorm",
        "feed_forward_output_norm": "post_mlp_layernorm",
    }
)

_GLM = {
    "vocab_size": 151_552,
    "hidden_size": 4096,
    "intermediate_size": 13_696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "hidden_act": "silu",
    "rms_norm_eps": 1.5625e-07,
    "attention_bias": True,
}


def glm(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``GlmForCausalLM``."""
    return _describe(config, _GLM_NAMES, "before")


def glm4(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``Glm4ForCausalLM``, which normalises what is added, too."""
    return _describe(config, _GLM4_NAMES, "both")


def _describe(config: Mapping[str, Any], names: TensorNames, norm_placement: str) -> Architecture:
    keys = ConfigKeys(config, _GLM)
    sizes = read_sizes(keys)
    rotary = read_rotary(keys, sizes, partial=True)
    fields = {
        "epsilon": keys.positive("rms_norm_eps"),
        "pairing": "adjacent",
        "norm_placement": norm_placement,
        "activation": keys.translate("hidden_act", ACTIVATIONS),
        "qkv_bias": keys.switch("attention_bias"),
    }
    return describe_files(keys, names, sizes | rotary | fields)
