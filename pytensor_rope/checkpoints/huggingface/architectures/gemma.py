"""Gemma, Gemma 2 and the language model of Gemma 3."""

from collections.abc import Mapping
from typing import Any

from pytensor_rope.checkpoints.huggingface.architectures.base import (
    ACTIVATIONS,
    ROPE_KEYS,
    TANH_GELUS,
    Architecture,
    Fields,
    describe_files,
    read_layer_types,
    read_pattern,
    read_rotary,
    read_sizes,
    sliding,
)
from pytensor_rope.checkpoints.huggingface.architectures.llama import NAMES
from pytensor_rope.checkpoints.huggingface.architectures.names import TensorNames
from pytensor_rope.checkpoints.huggingface.config_keys import ConfigKeys

_SANDWICH_NAMES = TensorNames(
    layer={
        **NAMES.layer,
        "attention_output_norm": "post_attention_layernorm",
        "feed_forward_norm": "pre_feedforward_layernorm",
        "feed_forward_output_norm": "post_feedforward_layernorm",
    }
)

_GEMMA = {
    "vocab_size": 256_000,
    "hidden_size": 3072,
    "intermediate_size": 24_576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "hidden_act": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
_GEMMA2 = {
    "vocab_size": 256_000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
_GEMMA3 = _GEMMA2 | {
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "sliding_window_pattern": 6,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}


def gemma(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``GemmaForCausalLM``."""
    keys = ConfigKeys(config, _GEMMA)
    sizes = read_sizes(keys)
    rotary = read_rotary(keys, sizes)
    # The first files say "gelu" and mean the approximation.
    fields = {"activation": keys.translate("hidden_act", TANH_GELUS | {"gelu": "gelu_tanh"})}
    if keys.has_value("hidden_activation"):
        keys.translate("hidden_activation", TANH_GELUS)
    return describe_files(keys, NAMES, sizes | rotary | _shared(keys, sizes) | fields)


def gemma2(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``Gemma2ForCausalLM``."""
    keys = ConfigKeys(config, _GEMMA2)
    sizes = read_sizes(keys)
    rotary = read_rotary(keys, sizes)
    n_layer = sizes["n_layer"]
    slides = read_layer_types(keys, n_layer) or [i % 2 == 0 for i in range(n_layer)]
    windows = sliding(keys, keys.optional_integer("sliding_window"), slides)
    fields = _sandwich(keys) | {"attention_softcap": keys.optional_positive("attn_logit_softcapping")}
    return describe_files(keys, _SANDWICH_NAMES, sizes | rotary | windows | _shared(keys, sizes) | fields)


def gemma3_text(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``Gemma3ForCausalLM``."""
    keys = ConfigKeys(config, _GEMMA3)
    sizes = read_sizes(keys)
    slides = read_pattern(keys, sizes["n_layer"], "sliding_window_pattern", "_sliding_window_pattern")
    windows = sliding(keys, keys.optional_integer("sliding_window"), slides)
    rotary = _rotary_by_layer(keys, sizes, windows)
    if keys.has_value("attn_logit_softcapping"):
        # transformers 5.24 reads it and doesn't apply it.
        raise keys.refuse("attn_logit_softcapping", config["attn_logit_softcapping"], "it isn't implemented")
    fields = _sandwich(keys) | {"qk_norm": "head"}
    return describe_files(keys, _SANDWICH_NAMES, sizes | rotary | windows | _shared(keys, sizes) | fields)


def _shared(keys: ConfigKeys, sizes: Fields) -> Fields:
    biased = keys.switch("attention_bias")
    return {
        "epsilon": keys.positive("rms_norm_eps"),
        "unit_offset": True,
        "qkv_bias": biased,
        "output_bias": biased,
        "embedding_scale": sizes["hidden_size"] ** 0.5,
    }


def _sandwich(keys: ConfigKeys) -> Fields:
    """Read what Gemma 2 and Gemma 3 share."""
    activation = keys.translate("hidden_activation", ACTIVATIONS)
    if keys.has_value("hidden_act") and keys.translate("hidden_act", ACTIVATIONS) != activation:
        raise keys.refuse("hidden_act", keys.config["hidden_act"], "hidden_activation is another one")
    return {
        "norm_placement": "both",
        "activation": activation,
        "attention_scale": keys.positive("query_pre_attn_scalar") ** -0.5,
        "logit_softcap": keys.optional_positive("final_logit_softcapping"),
    }


def _rotary_by_layer(keys: ConfigKeys, sizes: Fields, windows: Fields) -> Fields:
    known = (*ROPE_KEYS, "rope_local_base_freq")
    rotary = read_rotary(keys, sizes, known=known, layer="full_attention")
    if not windows:
        return rotary
    local = read_rotary(keys, sizes, known=known, layer="sliding_attention")
    return rotary | {"sliding_base": local["base"], "sliding_scaling": local["scaling"]}
