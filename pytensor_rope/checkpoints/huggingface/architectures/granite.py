"""Granite: a Llama with factors on embeddings, scores, residuals and logits."""

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
from pytensor_rope.checkpoints.huggingface.config_keys import ConfigKeys

_GRANITE = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "logits_scaling": 1.0,
}


def granite(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``GraniteForCausalLM``."""
    keys = ConfigKeys(config, _GRANITE)
    sizes = read_sizes(keys)
    rotary = read_rotary(keys, sizes)
    biased = keys.switch("attention_bias")
    fields = {
        "epsilon": keys.positive("rms_norm_eps"),
        "activation": keys.translate("hidden_act", ACTIVATIONS),
        "qkv_bias": biased,
        "output_bias": biased,
        "feed_forward_bias": keys.switch("mlp_bias"),
        "attention_scale": keys.positive("attention_multiplier"),
        "embedding_scale": keys.positive("embedding_multiplier"),
        "residual_scale": keys.positive("residual_multiplier"),
        "logit_scale": 1 / keys.positive("logits_scaling"),
    }
    return describe_files(keys, NAMES, sizes | rotary | fields)
