"""Llama, and what else is stored as one: SmolLM2, TinyLlama, Yi."""

from collections.abc import Mapping
from typing import Any

from pytensor_rope.checkpoints.huggingface.architectures.base import (
    ACTIVATIONS,
    Architecture,
    describe_files,
    read_rotary,
    read_sizes,
)
from pytensor_rope.checkpoints.huggingface.architectures.names import TensorNames
from pytensor_rope.checkpoints.huggingface.config_keys import ConfigKeys

NAMES = TensorNames(
    layer={
        "attention_norm": "input_layernorm",
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "output": "self_attn.o_proj",
        "query_norm": "self_attn.q_norm",
        "key_norm": "self_attn.k_norm",
        "feed_forward_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }
)

_LLAMA = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
}


def llama(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``LlamaForCausalLM``."""
    keys = ConfigKeys(config, _LLAMA)
    sizes = read_sizes(keys)
    rotary = read_rotary(keys, sizes)
    keys.expect("is_llama_config", True)  # SmolLM2 has them
    keys.expect("rope_interleaved", False)
    biased = keys.switch("attention_bias")
    fields = {
        "epsilon": keys.positive("rms_norm_eps"),
        "activation": keys.translate("hidden_act", ACTIVATIONS),
        "qkv_bias": biased,
        "output_bias": biased,
        "feed_forward_bias": keys.switch("mlp_bias"),
    }
    return describe_files(keys, NAMES, sizes | rotary | fields)
