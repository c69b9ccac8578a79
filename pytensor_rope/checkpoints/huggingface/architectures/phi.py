"""Phi-1, Phi-1.5 and Phi-2: attention and feed-forward network side by side on one LayerNorm."""

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

_NAMES = TensorNames(
    final_norm="model.final_layernorm",
    layer={
        "attention_norm": "input_layernorm",
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "output": "self_attn.dense",
        "query_norm": "self_attn.q_layernorm",
        "key_norm": "self_attn.k_layernorm",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    },
)

_PHI = {
    "vocab_size": 51_200,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
}


def phi(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``PhiForCausalLM``."""
    keys = ConfigKeys(config, _PHI)
    sizes = read_sizes(keys, own_head_dim=False)
    rotary = read_rotary(keys, sizes, partial=True)
    fields = {
        "epsilon": keys.positive("layer_norm_eps"),
        "norm": "layer",
        "norm_bias": True,
        "residual": "parallel",
        "shared_norm": True,
        "activation": keys.translate("hidden_act", ACTIVATIONS),
        "gated": False,
        "qkv_bias": True,
        "output_bias": True,
        "feed_forward_bias": True,
        "head_bias": True,
        "qk_norm": "head" if keys.switch("qk_layernorm") else None,
    }
    return describe_files(keys, _NAMES, sizes | rotary | fields)
