"""Command R and Command R7B: a parallel residual on one LayerNorm, neighbours rotated."""

from collections.abc import Mapping
from typing import Any

from pytensor_rope.checkpoints.huggingface.architectures.base import (
    ACTIVATIONS,
    Architecture,
    Fields,
    describe_files,
    read_pattern,
    read_rotary,
    read_sizes,
    sliding,
)
from pytensor_rope.checkpoints.huggingface.architectures.llama import NAMES
from pytensor_rope.checkpoints.huggingface.config_keys import ConfigKeys

_COHERE = {
    "vocab_size": 256_000,
    "hidden_size": 8192,
    "intermediate_size": 22_528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
}
_COHERE2 = _COHERE | {"sliding_window": 4096, "sliding_window_pattern": 4}


def cohere(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``CohereForCausalLM``."""
    keys = ConfigKeys(config, _COHERE)
    sizes = read_sizes(keys)
    rotary = read_rotary(keys, sizes)
    fields = _shared(keys) | {"qk_norm": "heads" if keys.switch("use_qk_norm") else None}
    return describe_files(keys, NAMES, sizes | rotary | fields)


def cohere2(config: Mapping[str, Any]) -> Architecture:
    """Describe a ``Cohere2ForCausalLM``, whose layers are rotated if they slide."""
    keys = ConfigKeys(config, _COHERE2)
    sizes = read_sizes(keys)
    rotary = read_rotary(keys, sizes)
    slides = read_pattern(keys, sizes["n_layer"], "sliding_window_pattern", "_sliding_window_pattern")
    windows = sliding(keys, keys.optional_integer("sliding_window"), slides)
    _expect_usual(keys)
    fields = _shared(keys) | {"rotated_layers": None if all(slides) else tuple(slides)}
    return describe_files(keys, NAMES, sizes | rotary | windows | fields)


def _shared(keys: ConfigKeys) -> Fields:
    biased = keys.switch("attention_bias")
    return {
        "epsilon": keys.positive("layer_norm_eps"),
        "pairing": "adjacent",
        "norm": "layer",
        "residual": "parallel",
        "shared_norm": True,
        "activation": keys.translate("hidden_act", ACTIVATIONS),
        "qkv_bias": biased,
        "output_bias": biased,
        "logit_scale": keys.positive("logit_scale"),
    }


def _expect_usual(keys: ConfigKeys) -> None:
    """Read what files say that the code of transformers takes for granted."""
    keys.expect("order_of_interleaved_layers", "local_attn_first")
    keys.expect("position_embedding_type", "rope_gptj")
    keys.expect("rotary_pct", 1.0)
    keys.expect("use_qk_norm", False)
    for key in ("use_embedding_sharing", "use_gated_activation", "use_parallel_block"):
        keys.expect(key, True)
    keys.ignore("layer_switch", "use_parallel_embedding")  # the pattern again, and how it was trained
