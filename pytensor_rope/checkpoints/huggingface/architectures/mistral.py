"""Mistral, all of whose layers slide or none, and Ministral, which says it of each."""

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

_MISTRAL = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
}


def mistral(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``MistralForCausalLM``."""
    keys = ConfigKeys(config, _MISTRAL)
    sizes = read_sizes(keys)
    window = keys.optional_integer("sliding_window")
    slides = [window is not None] * sizes["n_layer"]
    if (read_layer_types(keys, sizes["n_layer"]) or slides) != slides:
        raise keys.refuse(
            "layer_types", config["layer_types"], "all layers of a mistral are as sliding_window says"
        )
    return _describe(keys, sizes, sliding(keys, window, slides))


def ministral(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``MinistralForCausalLM``."""
    keys = ConfigKeys(config, _MISTRAL)
    sizes = read_sizes(keys)
    window = keys.optional_integer("sliding_window")
    slides = read_layer_types(keys, sizes["n_layer"]) or [window is not None] * sizes["n_layer"]
    return _describe(keys, sizes, sliding(keys, window, slides))


def _describe(keys: ConfigKeys, sizes: Fields, windows: Fields) -> Architecture:
    rotary = read_rotary(keys, sizes)
    fields = {
        "epsilon": keys.positive("rms_norm_eps"),
        "activation": keys.translate("hidden_act", ACTIVATIONS),
    }
    return describe_files(keys, NAMES, sizes | rotary | windows | fields)
