"""SmolLM3: a Llama that leaves some layers unrotated."""

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

_SMOLLM3 = {
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 11_008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "no_rope_layer_interval": 4,
    "tie_word_embeddings": True,
}


def smollm3(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``SmolLM3ForCausalLM``."""
    keys = ConfigKeys(config, _SMOLLM3)
    sizes = read_sizes(keys)
    rotary = read_rotary(keys, sizes)
    keys.ignore("max_window_layers")  # SmolLM3 has it from Qwen2, and its code doesn't
    rotated = _rotated_layers(keys, sizes["n_layer"])
    biased = keys.switch("attention_bias")
    fields = {
        "epsilon": keys.positive("rms_norm_eps"),
        "activation": keys.translate("hidden_act", ACTIVATIONS),
        "qkv_bias": biased,
        "output_bias": biased,
        "feed_forward_bias": keys.switch("mlp_bias"),
        "rotated_layers": None if all(rotated) else tuple(rotated),
    }
    return describe_files(keys, NAMES, sizes | rotary | _windows(keys, rotated) | fields)


def _rotated_layers(keys: ConfigKeys, n_layer: int) -> list[bool]:
    interval = keys.integer("no_rope_layer_interval")
    listed = keys.one_for_each("no_rope_layers", n_layer, {0: False, 1: True})
    return [(i + 1) % interval != 0 for i in range(n_layer)] if listed is None else listed


def _windows(keys: ConfigKeys, rotated: list[bool]) -> Fields:
    window = keys.optional_integer("sliding_window")
    if not keys.switch("use_sliding_window"):
        window = None
    slides = read_layer_types(keys, len(rotated))
    if slides is None:
        slides = [window is not None and not turns for turns in rotated]
    return sliding(keys, window, slides)
