"""GPT-NeoX and Pythia: fused projections, LayerNorm, and usually a parallel residual."""

from collections.abc import Mapping
from typing import Any

from pytensor_rope.checkpoints.huggingface.architectures.base import (
    ACTIVATIONS,
    ROPE_KEYS,
    Architecture,
    describe_files,
    read_rotary,
    read_sizes,
)
from pytensor_rope.checkpoints.huggingface.architectures.names import TensorNames, interleaved_heads
from pytensor_rope.checkpoints.huggingface.config_keys import ConfigKeys

_NAMES = TensorNames(
    embedding="gpt_neox.embed_in",
    final_norm="gpt_neox.final_layer_norm",
    head="embed_out",
    layers="gpt_neox.layers",
    layer={
        "attention_norm": "input_layernorm",
        **interleaved_heads("attention.query_key_value"),
        "output": "attention.dense",
        "feed_forward_norm": "post_attention_layernorm",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    },
)
# Causal masks, and the value that they mask with.
_SURPLUS = r"gpt_neox\.layers\.\d+\.attention\.(?:masked_)?bias"

_GPT_NEOX = {
    "vocab_size": 50_432,
    "hidden_size": 6144,
    "intermediate_size": 24_576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "max_position_embeddings": 2048,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "use_parallel_residual": True,
    "attention_bias": True,
}


def gpt_neox(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``GPTNeoXForCausalLM``."""
    keys = ConfigKeys(config, _GPT_NEOX)
    sizes = read_sizes(keys, own_head_dim=False, grouped=False)
    _check_rotary_keys(keys)
    rotary = read_rotary(keys, sizes, known=(*ROPE_KEYS, "rotary_pct", "rotary_emb_base"), partial=True)
    biased = keys.switch("attention_bias")
    fields = {
        "epsilon": keys.positive("layer_norm_eps"),
        "norm": "layer",
        "norm_bias": True,
        "residual": "parallel" if keys.switch("use_parallel_residual") else "sequential",
        "activation": keys.translate("hidden_act", ACTIVATIONS),
        "gated": False,
        "qkv_bias": biased,
        "output_bias": biased,
        "feed_forward_bias": True,
    }
    return describe_files(keys, _NAMES, sizes | rotary | fields, surplus=_SURPLUS)


def _check_rotary_keys(keys: ConfigKeys) -> None:
    """Refuse what transformers overlooks: it has names of its own for the rotation, and defaults for them."""
    section = keys.config.get("rope_parameters") or keys.config.get("rope_scaling") or {}
    for key, own, default in (
        ("rope_theta", "rotary_emb_base", 10_000),
        ("partial_rotary_factor", "rotary_pct", 0.25),
    ):
        value = keys.config.get(key)
        named = keys.config.get(own) is not None or (isinstance(section, Mapping) and key in section)
        if value is not None and value != default and not named:
            raise keys.refuse(key, value, f"a gpt_neox has {own} for it, and {default} where that is missing")
