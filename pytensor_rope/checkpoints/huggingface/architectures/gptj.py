"""GPT-J: attention and feed-forward network side by side on one LayerNorm, neighbours rotated."""

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
    embedding="transformer.wte",
    final_norm="transformer.ln_f",
    layers="transformer.h",
    layer={
        "attention_norm": "ln_1",
        "query": "attn.q_proj",
        "key": "attn.k_proj",
        "value": "attn.v_proj",
        "output": "attn.out_proj",
        "up": "mlp.fc_in",
        "down": "mlp.fc_out",
    },
)
# Causal masks, and the value that they mask with.
_SURPLUS = r"transformer\.h\.\d+\.attn\.(?:masked_)?bias"

_GPTJ = {
    "vocab_size": 50_400,
    "hidden_size": 4096,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "max_position_embeddings": 2048,
    "rotary_dim": 64,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
}


def gptj(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``GPTJForCausalLM``."""
    keys = ConfigKeys(config, _GPTJ)
    keys.rename(
        n_embd="hidden_size",
        n_layer="num_hidden_layers",
        n_head="num_attention_heads",
        n_positions="max_position_embeddings",
    )
    sizes = read_sizes(keys, own_head_dim=False, grouped=False, inner="n_inner")
    if not keys.has_value("rotary_dim"):
        raise keys.refuse("rotary_dim", None, "the number of rotated dimensions is needed")
    rotary = read_rotary(keys, sizes, known=("rotary_dim",), partial=True)
    keys.expect("rotary", True)
    keys.expect("scale_attn_weights", True)
    fields = {
        "epsilon": keys.positive("layer_norm_epsilon"),
        "pairing": "adjacent",
        "norm": "layer",
        "norm_bias": True,
        "residual": "parallel",
        "shared_norm": True,
        "activation": keys.translate("activation_function", ACTIVATIONS),
        "gated": False,
        "feed_forward_bias": True,
        "head_bias": True,
    }
    return describe_files(keys, _NAMES, sizes | rotary | fields, surplus=_SURPLUS)
