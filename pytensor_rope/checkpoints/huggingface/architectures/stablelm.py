"""StableLM: gated feed-forward networks, LayerNorm, and a part of each head rotated."""

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

_STABLELM = {
    "vocab_size": 50_304,
    "hidden_size": 2560,
    "intermediate_size": 6912,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "layer_norm_eps": 1e-5,
}


def stablelm(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``StableLmForCausalLM``."""
    keys = ConfigKeys(config, _STABLELM)
    sizes = read_sizes(keys, own_head_dim=False)
    rotary = read_rotary(keys, sizes, partial=True)
    keys.expect("qk_layernorm", False)  # a LayerNorm without a bias beside those that have one
    parallel = keys.switch("use_parallel_residual")
    fields = {
        "epsilon": keys.positive("layer_norm_eps"),
        "norm": "layer",
        "norm_bias": True,
        "residual": "parallel" if parallel else "sequential",
        "shared_norm": parallel,
        "activation": keys.translate("hidden_act", ACTIVATIONS),
        "qkv_bias": keys.switch("use_qkv_bias"),
    }
    return describe_files(keys, NAMES, sizes | rotary | fields)
