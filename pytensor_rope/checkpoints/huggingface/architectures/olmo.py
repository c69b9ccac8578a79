"""OLMo 2 and OLMo 3, which normalise what is added and not what is read."""

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
from pytensor_rope.checkpoints.huggingface.architectures.names import TensorNames
from pytensor_rope.checkpoints.huggingface.config_keys import ConfigKeys

_NAMES = TensorNames(
    layer={
        **NAMES.layer,
        "attention_output_norm": "post_attention_layernorm",
        "feed_forward_output_norm": "post_feedforward_layernorm",
    }
)

_OLMO2 = {
    "vocab_size": 50_304,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}
_OLMO3 = _OLMO2 | {"sliding_window": 4096}


def olmo2(config: Mapping[str, Any]) -> Architecture:
    """Describe an ``Olmo2ForCausalLM``."""
    keys = ConfigKeys(config, _OLMO2)
    sizes = read_sizes(keys)
    rotary = read_rotary(keys, sizes)
    return describe_files(keys, _NAMES, sizes | rotary | _shared(keys))


def olmo3(config: Mapping[str, Any]) -> Architecture:
    """Describe an ``Olmo3ForCausalLM``, whose sliding layers aren't scaled."""
    keys = ConfigKeys(config, _OLMO3)
    sizes = read_sizes(keys)
    n_layer = sizes["n_layer"]
    slides = read_layer_types(keys, n_layer) or [(i + 1) % 4 != 0 for i in range(n_layer)]
    windows = sliding(keys, keys.optional_integer("sliding_window"), slides)
    rotary = read_rotary(keys, sizes, layer="full_attention")
    if windows:
        local = read_rotary(keys, sizes, layer="sliding_attention")
        rotary |= {"sliding_base": local["base"], "sliding_scaling": local["scaling"]}
    return describe_files(keys, _NAMES, sizes | rotary | windows | _shared(keys))


def _shared(keys: ConfigKeys) -> Fields:
    biased = keys.switch("attention_bias")
    return {
        "epsilon": keys.positive("rms_norm_eps"),
        "norm_placement": "after",
        "activation": keys.translate("hidden_act", ACTIVATIONS),
        "qkv_bias": biased,
        "output_bias": biased,
        "qk_norm": "width",
    }
