"""Qwen2 and Qwen2.5, with biases on queries, keys and values, and Qwen3, which normalises them instead."""

from collections.abc import Mapping
from typing import Any

from pytensor_rope.checkpoints.huggingface.architectures.base import (
    ACTIVATIONS,
    Architecture,
    Fields,
    describe_files,
    read_layer_types,
    read_rotary,
    read_sizes,
    sliding,
)
from pytensor_rope.checkpoints.huggingface.architectures.llama import NAMES
from pytensor_rope.checkpoints.huggingface.config_keys import ConfigKeys

_QWEN = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def qwen2(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``Qwen2ForCausalLM``."""
    keys = ConfigKeys(config, _QWEN)
    return _describe(keys, {"qkv_bias": True})


def qwen3(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``Qwen3ForCausalLM``."""
    keys = ConfigKeys(config, _QWEN | {"head_dim": 128})
    biased = keys.switch("attention_bias")
    return _describe(keys, {"qkv_bias": biased, "output_bias": biased, "qk_norm": "head"})


def _describe(keys: ConfigKeys, fields: Fields) -> Architecture:
    sizes = read_sizes(keys)
    rotary = read_rotary(keys, sizes)
    keys.expect("use_mrope", False)  # Qwen2.5 has it, and so have the models made from it
    fields |= {
        "epsilon": keys.positive("rms_norm_eps"),
        "activation": keys.translate("hidden_act", ACTIVATIONS),
    }
    return describe_files(keys, NAMES, sizes | rotary | _windows(keys, sizes["n_layer"]) | fields)


def _windows(keys: ConfigKeys, n_layer: int) -> Fields:
    window, first = keys.optional_integer("sliding_window"), keys.count("max_window_layers")
    if not keys.switch("use_sliding_window"):
        window = None
    slides = read_layer_types(keys, n_layer)
    if slides is None:
        slides = [window is not None and i >= first for i in range(n_layer)]
    return sliding(keys, window, slides)
