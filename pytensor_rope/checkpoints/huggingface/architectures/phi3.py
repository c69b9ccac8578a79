"""Phi-3, Phi-3.5 and Phi-4: fused projections, and a part of each head rotated."""

from collections.abc import Mapping
from typing import Any

from pytensor_rope.checkpoints.huggingface.architectures.base import (
    ACTIVATIONS,
    ROPE_KEYS,
    Architecture,
    describe_files,
    read_rotary,
    read_sizes,
    sliding,
)
from pytensor_rope.checkpoints.huggingface.architectures.names import TensorNames, stacked_gate, stacked_heads
from pytensor_rope.checkpoints.huggingface.config_keys import ConfigKeys
from pytensor_rope.frequencies import Default, LongRoPE

_NAMES = TensorNames(
    layer={
        "attention_norm": "input_layernorm",
        **stacked_heads("self_attn.qkv_proj"),
        "output": "self_attn.o_proj",
        "feed_forward_norm": "post_attention_layernorm",
        **stacked_gate("mlp.gate_up_proj"),
        "down": "mlp.down_proj",
    }
)

_PHI3 = {
    "vocab_size": 32_064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}


def phi3(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``Phi3ForCausalLM``."""
    # Its default is transformers', and goes before what rope_scaling says.
    keys = ConfigKeys({"original_max_position_embeddings": 4096, **config}, _PHI3)
    sizes = read_sizes(keys)
    known = (*ROPE_KEYS, "original_max_position_embeddings")
    rotary = read_rotary(keys, sizes, known=known, partial=True)
    if not isinstance(rotary["scaling"], Default | LongRoPE):
        raise keys.refuse("rope_scaling", rotary["scaling"], "a phi3 needs rope_type 'longrope', or none")
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        keys.expect(key, False)
    for key in ("full_attn_mod", "interpolate_factor"):
        keys.expect(key, 1)
    window = keys.optional_integer("sliding_window")
    fields = {
        "epsilon": keys.positive("rms_norm_eps"),
        "activation": keys.translate("hidden_act", ACTIVATIONS),
    }
    windows = sliding(keys, window, [window is not None] * sizes["n_layer"])
    return describe_files(keys, _NAMES, sizes | rotary | windows | fields)
