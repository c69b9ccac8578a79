"""StarCoder2: a Llama with LayerNorm, biases and a feed-forward network without a gate."""

from collections.abc import Mapping
from typing import Any

from pytensor_rope.checkpoints.huggingface.architectures.base import (
    ACTIVATIONS,
    Architecture,
    describe_files,
    read_rotary,
    read_sizes,
    sliding,
)
from pytensor_rope.checkpoints.huggingface.architectures.llama import NAMES
from pytensor_rope.checkpoints.huggingface.architectures.names import TensorNames
from pytensor_rope.checkpoints.huggingface.config_keys import ConfigKeys

_NAMES = TensorNames(layer={**NAMES.layer, "up": "mlp.c_fc", "down": "mlp.c_proj"})

_STARCODER2 = {
    "vocab_size": 49_152,
    "hidden_size": 3072,
    "intermediate_size": 12_288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "hidden_act": "gelu_pytorch_tanh",
    "norm_epsilon": 1e-5,
    "use_bias": True,
    "tie_word_embeddings": True,
}


def starcoder2(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``Starcoder2ForCausalLM``."""
    keys = ConfigKeys(config, _STARCODER2)
    sizes = read_sizes(keys)
    rotary = read_rotary(keys, sizes)
    keys.expect("mlp_type", "default")
    keys.expect("norm_type", "layer_norm")
    window = keys.optional_integer("sliding_window")
    windows = sliding(keys, window, [window is not None] * sizes["n_layer"])
    biased = keys.switch("use_bias")
    fields = {
        "epsilon": keys.positive("norm_epsilon"),
        "norm": "layer",
        "norm_bias": True,
        "activation": keys.translate("hidden_act", ACTIVATIONS),
        "gated": False,
        "qkv_bias": biased,
        "output_bias": biased,
        "feed_forward_bias": biased,
    }
    return describe_files(keys, _NAMES, sizes | rotary | windows | fields)
